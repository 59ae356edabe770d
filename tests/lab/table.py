# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The status table, laid out as `juju status` lays it out."""

from tests.lab.juju.agent import JUJU_VERSION
from tests.lab.juju.store import Row, Store

# Which unit's status an application shows; juju core/status/status.go.
SEVERITY = ("error", "blocked", "maintenance", "waiting", "active", "terminated", "unknown")


def columns(rows: list[list[str]]) -> str:
    """Rows of cells as aligned text."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def workload(unit: Row) -> tuple[str, str]:
    """A unit's workload status and message; a failed hook goes before what the charm said."""
    if unit["agent"] == "error":
        return "error", unit["agent_message"]
    return unit["status"], unit["message"]


def _application(store: Store, app: Row) -> list[str]:
    units = store.rows("SELECT * FROM unit WHERE app = ?", app["name"])
    states = [workload(unit) for unit in units]
    status, message = min(states, key=lambda state: SEVERITY.index(state[0]), default=("", ""))
    alive = sum(unit["life"] == "alive" for unit in units)
    scale = str(alive) if alive == len(units) else f"{alive}/{len(units)}"
    charm = "(played)" if app["played"] else store.meta(app["name"])["name"]
    return [app["name"], app["version"], status, scale, charm, str(app["revision"]), message]


def _unit(store: Store, unit: Row) -> list[str]:
    status, message = workload(unit)
    leader = store.application(unit["app"])["leader"] == unit["name"]
    agent = "executing" if unit["agent"] == "executing" else unit["agent"]
    if unit["agent"] == "error":
        agent = "idle"
    ports = store.column("SELECT port FROM port WHERE unit = ? ORDER BY port", unit["name"])
    if unit["agent"] == "executing":
        message = f"({unit['agent_message']}) {message}"
    return [
        unit["name"] + ("*" if leader else ""),
        status,
        agent,
        unit["machine_id"],
        unit["address"],
        ",".join(ports),
        message,
    ]


def _integrations(store: Store) -> list[list[str]]:
    found: list[list[str]] = []
    for relation in store.rows("SELECT * FROM relation ORDER BY id"):
        ends = store.rows(
            "SELECT * FROM relation_end WHERE relation = ? ORDER BY role", relation["id"]
        )
        names = [f"{end['app']}:{end['endpoint']}" for end in ends]
        kind = "peer" if len(ends) == 1 else "regular"
        message = "" if relation["life"] == "alive" else "removing"
        found.append([names[0], names[-1], relation["interface"], kind, message])
    return found


def table(store: Store) -> str:
    """The whole model."""
    apps = store.rows("SELECT * FROM application ORDER BY name")
    units = store.rows("SELECT * FROM unit ORDER BY app, number")
    parts = [
        columns(
            [["Model", "Controller", "Cloud", "Version"], ["lab", "lab", "lab", JUJU_VERSION]]
        ),
        columns(
            [["App", "Version", "Status", "Scale", "Charm", "Rev", "Message"]]
            + [_application(store, app) for app in apps]
        ),
        columns(
            [["Unit", "Workload", "Agent", "Machine", "Public address", "Ports", "Message"]]
            + [_unit(store, unit) for unit in units]
        ),
        columns(
            [["Integration provider", "Requirer", "Interface", "Type", "Message"]]
            + _integrations(store)
        ),
    ]
    return "\n\n".join(parts)
