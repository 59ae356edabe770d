# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which hooks run in which order: each unit's queue, and what puts events into it.

The orders are those of Juju 4.0.15's uniter (internal/worker/uniter: relation/resolver.go,
resolver.go, reboot/resolver.go), as they were also seen. Where that Juju does now this and now
that, here it comes in turn, or what is worse for a charm. All functions want to be called in a
transaction of the store.
"""

from tests.lab.juju.store import Row, Store

# Not hooks, but the agent's own work before install, and after remove.
PROVISION = "provision"
TEARDOWN = "teardown"
AFTER_INSTALL = ("relation-created", "leader-elected", "config-changed", "start")
DETAILS = {
    "relation": None,
    "remote_app": "",
    "remote_unit": "",
    "departing": "",
    "secret": "",
    "revision": 0,
    "action": "",
}
SUBNET_KEYS = ("egress-subnets", "ingress-address", "private-address")


def enqueue(store: Store, unit: str, kind: str, times: int = 1, **details: object) -> None:
    """Append an event to a unit's queue, so that the same one waits there so many times."""
    wanted = {**DETAILS, **details}
    columns = list(wanted)
    same = " AND ".join(f"{column} IS ?" for column in columns)
    waiting = store.value(
        f"SELECT count(*) FROM event WHERE unit = ? AND kind = ? AND state = 'pending' AND {same}",
        unit,
        kind,
        *wanted.values(),
    )
    for _ in range(times - waiting):
        store.do(
            f"INSERT INTO event (unit, kind, {', '.join(columns)}) "
            f"VALUES (?, ?{', ?' * len(columns)})",
            unit,
            kind,
            *wanted.values(),
        )


def notify(store: Store, unit: str, kind: str, times: int = 1, **details: object) -> None:
    """As `enqueue`, but a dying unit hears of nothing new."""
    if store.value("SELECT life FROM unit WHERE name = ?", unit) == "alive":
        enqueue(store, unit, kind, times, **details)


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


def relations_of(store: Store, app: str, peers_last: bool = False) -> list[int]:
    """The application's relations, peers first or last."""
    sql = "SELECT relation FROM relation_end WHERE app = ? ORDER BY (role = 'peers') = ?, relation"
    return store.column(sql, app, peers_last)


def remote_members(store: Store, relation: int, unit: str) -> list[str]:
    """Units that are in the relation and that `unit` relates to."""
    app = app_of(unit)
    remote = remote_app(store, relation, app)
    sql = "SELECT unit FROM member WHERE relation = ? ORDER BY unit"
    return [u for u in store.column(sql, relation) if app_of(u) == remote and u != unit]


def begin_unit(store: Store, unit: str) -> None:
    """The first events of a new unit."""
    enqueue(store, unit, PROVISION)
    enqueue(store, unit, "install")
    _follow_install(store, unit)


def _follow_install(store: Store, unit: str) -> None:
    app = app_of(unit)
    for relation in relations_of(store, app, peers_last=store.unit(unit)["number"] % 2 == 1):
        remote = remote_app(store, relation, app)
        enqueue(store, unit, "relation-created", relation=relation, remote_app=remote)
    if store.application(app)["leader"] == unit:
        enqueue(store, unit, "leader-elected")
    enqueue(store, unit, "config-changed")
    enqueue(store, unit, "start")


def begin_relation(store: Store, relation: int) -> None:
    """Tell the units of both ends of a new relation."""
    waits = "unit = ? AND state = 'pending'"
    for end in ends(store, relation):
        remote = remote_app(store, relation, end["app"])
        for unit in store.column(
            "SELECT name FROM unit WHERE app = ? ORDER BY number", end["app"]
        ):
            notify(store, unit, "relation-created", relation=relation, remote_app=remote)
            if store.value(f"SELECT 1 FROM event WHERE {waits} AND kind = 'install'", unit):
                # It gets this event, too, before config-changed and start.
                store.do(f"DELETE FROM event WHERE {waits} AND kind IN {AFTER_INSTALL}", unit)
                _follow_install(store, unit)


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
    for unit in store.column("SELECT unit FROM member WHERE relation = ? ORDER BY unit", relation):
        # A peer relation: of its own data a unit hears nothing, but the leader hears of what it
        # wrote for the application.
        if (
            app_of(unit) == remote
            and unit != entity
            and (not by_unit or _knows(store, relation, unit, entity))
        ):
            notify(store, unit, "relation-changed", **about)


def _knows(store: Store, relation: int, unit: str, remote: str) -> bool:
    sql = "SELECT 1 FROM seen WHERE relation = ? AND unit = ? AND remote = ?"
    return bool(store.value(sql, relation, unit, remote))


def _depart(store: Store, relation: int, unit: str, remote: str, departing: str) -> None:
    """Queue the departure of a remote unit; events about it that are still queued are dropped."""
    about_it = "unit = ? AND relation = ? AND remote_unit = ?"
    pending = f"{about_it} AND state IN ('pending', 'late')"
    told = store.value(
        f"SELECT 1 FROM event WHERE kind = 'relation-departed' AND {about_it}",
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
    if told or not _knows(store, relation, unit, remote):
        return
    about = {"relation": relation, "remote_app": app_of(remote), "remote_unit": remote}
    enqueue(store, unit, "relation-departed", departing=departing, **about)
    if store.unit(unit)["rebooted"] and len(ends(store, relation)) == 1 and unit != departing:
        # Juju told of it 7 minutes later, or had not after 20: here after an update-status.
        set_late = (
            f"UPDATE event SET state = 'late' WHERE kind = 'relation-departed' AND {pending}"
        )
        store.do(set_late, unit, relation, remote)


def update_status(store: Store, unit: str) -> None:
    """Queue a unit's update-status, and after it what came late."""
    notify(store, unit, "update-status")
    sql = "SELECT * FROM event WHERE unit = ? AND state = 'late' ORDER BY id"
    for event in store.rows(sql, unit):
        store.do("DELETE FROM event WHERE id = ?", event["id"])
        enqueue(store, unit, event["kind"], **{name: event[name] for name in DETAILS})


def _leave(store: Store, relation: int, unit: str, departing: str = "") -> None:
    """Queue a unit's farewell to a relation: every -departed, then -broken, not for peers."""
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
    if len(ends(store, relation)) == 2:
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


def part_from_others(store: Store, app: str) -> None:
    """Have the other side of a dying application's relations take its leave at the same time.

    Juju 4.0.15: a web had broken with a worker whose -departed was still running.
    """
    for relation in relations_of(store, app):
        if len(ends(store, relation)) == 2:
            end_relation(store, relation)


def left(store: Store, relation: int, unit: str) -> None:
    """The unit's relation-broken is committed, or it is gone: now the others see it depart."""
    store.do("DELETE FROM member WHERE relation = ? AND unit = ?", relation, unit)
    store.do("DELETE FROM seen WHERE relation = ? AND unit = ?", relation, unit)
    for remote in remote_members(store, relation, unit):
        _depart(store, relation, remote, unit, departing=unit)
    forget_relation(store, relation)


def forget_relation(store: Store, relation: int) -> None:
    """Delete a dying relation without units."""
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
    """Begin to remove a unit: it leaves its relations, its peers last, then stop and remove."""
    store.do("UPDATE unit SET life = 'dying' WHERE name = ?", unit)
    provisioned = not store.value(
        "SELECT 1 FROM event WHERE unit = ? AND kind IN (?, 'install') AND state = 'pending'",
        unit,
        PROVISION,
    )
    farewells = "('relation-departed', 'relation-broken')"
    store.do(
        "DELETE FROM event WHERE unit = ? AND state IN ('pending', 'late') AND NOT (kind IN "
        f"{farewells} AND relation IN (SELECT id FROM relation WHERE life = 'dying'))",
        unit,
    )
    entered = set(store.column("SELECT relation FROM member WHERE unit = ?", unit))
    for relation in relations_of(store, app_of(unit), peers_last=True):
        if relation in entered:
            _leave(store, relation, unit, departing=unit)
    if provisioned:
        enqueue(store, unit, "stop")
        enqueue(store, unit, "remove")
    enqueue(store, unit, TEARDOWN)


def elect(store: Store, app: str) -> None:
    """Give the leadership to the lowest unit that stays, if no unit has it."""
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
    for table in ("port", "secret_consumer", "event", "action", "address"):
        store.do(f"DELETE FROM {table} WHERE unit = ?", unit)
    for relation in store.column("SELECT relation FROM member WHERE unit = ?", unit):
        left(store, relation, unit)
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
    """Notify the owner of a revision without readers."""
    owner = store.value("SELECT owner FROM secret WHERE id = ?", secret)
    sql = "SELECT 1 FROM secret_consumer WHERE secret = ? AND revision = ?"
    if not owner or store.value(sql, secret, revision):
        return
    unit = owner if "/" in owner else store.application(owner)["leader"]
    if unit:
        notify(store, unit, "secret-remove", secret=secret, revision=revision)
