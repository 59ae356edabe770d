# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which hooks run in which order: each unit's queue, and what puts events into it.

The orders are those of Juju 3.6's uniter (internal/worker/uniter: relation/resolver.go,
resolver.go). All functions want to be called in a transaction of the store.
"""

from tests.lab.juju.store import Row, Store

# Not hooks, but the agent's own work before install, and after remove.
PROVISION = "provision"
TEARDOWN = "teardown"
SUBNET_KEYS = ("egress-subnets", "ingress-address", "private-address")


def enqueue(store: Store, unit: str, kind: str, **details: object) -> None:
    """Append an event to a unit's queue, unless the same one waits there already."""
    wanted = {
        "relation": None,
        "remote_app": "",
        "remote_unit": "",
        "departing": "",
        "secret": "",
        "revision": 0,
        "action": "",
        **details,
    }
    columns = list(wanted)
    same = " AND ".join(f"{column} IS ?" for column in columns)
    waiting = store.value(
        f"SELECT 1 FROM event WHERE unit = ? AND kind = ? AND state = 'pending' AND {same}",
        unit,
        kind,
        *wanted.values(),
    )
    if not waiting:
        store.do(
            f"INSERT INTO event (unit, kind, {', '.join(columns)}) "
            f"VALUES (?, ?{', ?' * len(columns)})",
            unit,
            kind,
            *wanted.values(),
        )


def notify(store: Store, unit: str, kind: str, **details: object) -> None:
    """As `enqueue`, but a dying unit hears of nothing new."""
    if store.value("SELECT life FROM unit WHERE name = ?", unit) == "alive":
        enqueue(store, unit, kind, **details)


def ends(store: Store, relation: int) -> list[Row]:
    """The relation's two ends; one for a peer relation."""
    return store.rows("SELECT * FROM relation_end WHERE relation = ?", relation)


def own_end(store: Store, relation: int, app: str) -> Row | None:
    """The application's end of the relation, None where it has none."""
    return store.row("SELECT * FROM relation_end WHERE relation = ? AND app = ?", relation, app)


def remote_app(store: Store, relation: int, app: str) -> str:
    """The application at the other end; the application itself in a peer relation."""
    others = [end["app"] for end in ends(store, relation) if end["app"] != app]
    return str(others[0]) if others else app


def app_of(entity: str) -> str:
    """The application of a unit, or the application itself."""
    return entity.partition("/")[0]


def relations_of(store: Store, app: str) -> list[int]:
    """The application's relations, peers first, as Juju creates them."""
    return store.column(
        "SELECT relation FROM relation_end WHERE app = ? ORDER BY role != 'peers', relation", app
    )


def remote_members(store: Store, relation: int, unit: str) -> list[str]:
    """Units that are in the relation and that `unit` relates to."""
    app = app_of(unit)
    remote = remote_app(store, relation, app)
    sql = "SELECT unit FROM member WHERE relation = ? ORDER BY unit"
    return [u for u in store.column(sql, relation) if app_of(u) == remote and u != unit]


def begin_unit(store: Store, unit: str) -> None:
    """The first events of a new unit."""
    app = app_of(unit)
    enqueue(store, unit, PROVISION)
    enqueue(store, unit, "install")
    for relation in relations_of(store, app):
        remote = remote_app(store, relation, app)
        enqueue(store, unit, "relation-created", relation=relation, remote_app=remote)
    if store.application(app)["leader"] == unit:
        enqueue(store, unit, "leader-elected")
    enqueue(store, unit, "config-changed")
    enqueue(store, unit, "start")


def begin_relation(store: Store, relation: int) -> None:
    """Tell the units of both ends of a new relation."""
    for end in ends(store, relation):
        remote = remote_app(store, relation, end["app"])
        for unit in store.column(
            "SELECT name FROM unit WHERE app = ? ORDER BY number", end["app"]
        ):
            # A unit that has not installed yet gets it in its place in the first events.
            notify(store, unit, "relation-created", relation=relation, remote_app=remote)


def enter(store: Store, relation: int, unit: str) -> None:
    """The unit's relation-created has run: now it and the units there learn of each other."""
    store.do("INSERT OR IGNORE INTO member VALUES (?, ?)", relation, unit)
    address = store.unit(unit)["address"]
    for key, value in zip(SUBNET_KEYS, (f"{address}/32", address, address), strict=True):
        store.do("INSERT OR IGNORE INTO databag VALUES (?, ?, ?, ?)", relation, unit, key, value)
    for remote in remote_members(store, relation, unit):
        _introduce(store, relation, unit, remote)
        _introduce(store, relation, remote, unit)
    remote = remote_app(store, relation, app_of(unit))
    if store.databag(relation, remote):
        notify(store, unit, "relation-changed", relation=relation, remote_app=remote)
    if store.value("SELECT life FROM relation WHERE id = ?", relation) == "dying":
        _leave(store, relation, unit)


def _introduce(store: Store, relation: int, unit: str, remote: str) -> None:
    about = {"relation": relation, "remote_app": app_of(remote), "remote_unit": remote}
    notify(store, unit, "relation-joined", **about)
    notify(store, unit, "relation-changed", **about)


def databag_changed(store: Store, relation: int, entity: str) -> None:
    """Tell all who can see it that a unit's or an application's databag has changed."""
    by_unit = "/" in entity
    app = app_of(entity)
    remote = remote_app(store, relation, app)
    about = {"relation": relation, "remote_app": app, "remote_unit": entity if by_unit else ""}
    leader = store.application(app)["leader"]
    for unit in store.column("SELECT unit FROM member WHERE relation = ? ORDER BY unit", relation):
        # A peer relation: everybody but the author.
        author = unit in (entity, leader) if remote == app and not by_unit else unit == entity
        if (
            app_of(unit) == remote
            and not author
            and (not by_unit or _knows(store, relation, unit, entity))
        ):
            notify(store, unit, "relation-changed", **about)


def _knows(store: Store, relation: int, unit: str, remote: str) -> bool:
    sql = "SELECT 1 FROM seen WHERE relation = ? AND unit = ? AND remote = ?"
    return bool(store.value(sql, relation, unit, remote))


def _depart(store: Store, relation: int, unit: str, remote: str, departing: str) -> None:
    """Tell a unit that a remote one leaves; what it has not heard of yet it never will."""
    pending = "unit = ? AND relation = ? AND remote_unit = ? AND state = 'pending'"
    told = store.value(
        f"SELECT 1 FROM event WHERE kind = 'relation-departed' AND {pending}",
        unit,
        relation,
        remote,
    )
    store.do(
        f"DELETE FROM event WHERE kind IN ('relation-joined', 'relation-changed') AND {pending}",
        unit,
        relation,
        remote,
    )
    if not told and _knows(store, relation, unit, remote):
        about = {"relation": relation, "remote_app": app_of(remote), "remote_unit": remote}
        enqueue(store, unit, "relation-departed", departing=departing, **about)


def _leave(store: Store, relation: int, unit: str, departing: str = "") -> None:
    """Queue a unit's farewell to a relation: every -departed, then -broken."""
    sql = "SELECT remote FROM seen WHERE relation = ? AND unit = ? ORDER BY remote"
    for remote in store.column(sql, relation, unit):
        _depart(store, relation, unit, remote, departing or remote)
    remote = remote_app(store, relation, app_of(unit))
    store.do(
        "DELETE FROM event WHERE unit = ? AND relation = ? AND state = 'pending' "
        "AND kind IN ('relation-joined', 'relation-changed')",
        unit,
        relation,
    )
    enqueue(store, unit, "relation-broken", relation=relation, remote_app=remote)


def end_relation(store: Store, relation: int) -> None:
    """Begin to remove a relation: every unit in it takes its leave."""
    store.do("UPDATE relation SET life = 'dying' WHERE id = ?", relation)
    store.do(
        "DELETE FROM event WHERE relation = ? AND kind = 'relation-created' AND state = 'pending'",
        relation,
    )
    for unit in store.column("SELECT unit FROM member WHERE relation = ? ORDER BY unit", relation):
        if store.unit(unit)["life"] == "alive":
            _leave(store, relation, unit)
    forget_relation(store, relation)


def left(store: Store, relation: int, unit: str) -> None:
    """The unit's relation-broken is committed: only now do the others see it depart."""
    store.do("DELETE FROM member WHERE relation = ? AND unit = ?", relation, unit)
    store.do("DELETE FROM seen WHERE relation = ? AND unit = ?", relation, unit)
    for remote in remote_members(store, relation, unit):
        _depart(store, relation, remote, unit, departing=unit)
    forget_relation(store, relation)


def forget_relation(store: Store, relation: int) -> None:
    """Delete a dying relation that nobody is in any more."""
    life = store.value("SELECT life FROM relation WHERE id = ?", relation)
    busy = store.value("SELECT 1 FROM member WHERE relation = ?", relation) or store.value(
        "SELECT 1 FROM event WHERE relation = ?", relation
    )
    if life != "dying" or busy:
        return
    for table in ("relation_end", "databag", "seen", "secret_grant"):
        store.do(f"DELETE FROM {table} WHERE relation = ?", relation)
    store.do("DELETE FROM relation WHERE id = ?", relation)


def end_unit(store: Store, unit: str) -> None:
    """Begin to remove a unit: relations are broken first, peers too, then stop and remove."""
    store.do("UPDATE unit SET life = 'dying' WHERE name = ?", unit)
    provisioned = not store.value(
        "SELECT 1 FROM event WHERE unit = ? AND kind IN (?, 'install') AND state = 'pending'",
        unit,
        PROVISION,
    )
    farewells = "('relation-departed', 'relation-broken')"
    store.do(
        "DELETE FROM event WHERE unit = ? AND state = 'pending' AND NOT (kind IN "
        f"{farewells} AND relation IN (SELECT id FROM relation WHERE life = 'dying'))",
        unit,
    )
    sql = "SELECT relation FROM member WHERE unit = ? ORDER BY relation"
    for relation in store.column(sql, unit):
        _leave(store, relation, unit, departing=unit)
    if provisioned:
        enqueue(store, unit, "stop")
        enqueue(store, unit, "remove")
    enqueue(store, unit, TEARDOWN)


def elect(store: Store, app: str) -> None:
    """Give the leadership to the lowest unit that stays, where nobody has it."""
    if store.application(app)["leader"]:
        return
    unit = store.value(
        "SELECT name FROM unit WHERE app = ? AND life = 'alive' ORDER BY number LIMIT 1", app
    )
    if unit:
        store.do("UPDATE application SET leader = ? WHERE name = ?", unit, app)
        notify(store, unit, "leader-elected")


def unit_gone(store: Store, unit: str) -> None:
    """The unit's machine is gone: delete what the model knew of it."""
    app = app_of(unit)
    for table in ("member", "seen", "port", "unit_state", "secret_consumer", "event", "action"):
        store.do(f"DELETE FROM {table} WHERE unit = ?", unit)
    _forget_secrets(store, unit)
    store.do("DELETE FROM unit WHERE name = ?", unit)
    store.do("UPDATE application SET leader = '' WHERE name = ? AND leader = ?", app, unit)
    elect(store, app)
    forget_application(store, app)


def forget_application(store: Store, app: str) -> None:
    """Delete a dying application that has no unit any more."""
    units = store.value("SELECT count(*) FROM unit WHERE app = ?", app)
    if units or store.application(app)["life"] != "dying":
        return
    for relation in relations_of(store, app):
        end_relation(store, relation)
    _forget_secrets(store, app)
    for table in ("option", "resource"):
        store.do(f"DELETE FROM {table} WHERE app = ?", app)
    store.do("DELETE FROM application WHERE name = ?", app)


def _forget_secrets(store: Store, owner: str) -> None:
    for secret in store.column("SELECT id FROM secret WHERE owner = ?", owner):
        for table in ("secret_revision", "secret_grant", "secret_consumer"):
            store.do(f"DELETE FROM {table} WHERE secret = ?", secret)
        store.do("DELETE FROM secret WHERE id = ?", secret)


def secret_changed(store: Store, secret: str) -> None:
    """Tell those who read an older revision of a secret."""
    latest = store.value("SELECT max(revision) FROM secret_revision WHERE secret = ?", secret)
    sql = "SELECT unit FROM secret_consumer WHERE secret = ? AND revision < ?"
    for unit in store.column(sql, secret, latest):
        notify(store, unit, "secret-changed", secret=secret)


def secret_obsolete(store: Store, secret: str, revision: int) -> None:
    """Tell the owner of a revision that nobody reads any more."""
    owner = store.value("SELECT owner FROM secret WHERE id = ?", secret)
    sql = "SELECT 1 FROM secret_consumer WHERE secret = ? AND revision = ?"
    if not owner or store.value(sql, secret, revision):
        return
    unit = owner if "/" in owner else store.application(owner)["leader"]
    if unit:
        notify(store, unit, "secret-remove", secret=secret, revision=revision)
