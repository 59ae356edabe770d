# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The hook commands, all but those of relations and secrets.

Argument shapes: ops 3.9 `ops/hookcmds/_*.py`; behaviour: Juju 3.6 hook command reference.
"""

import datetime
import json
import re
from typing import Any

import yaml

from tests.lab.juju import events
from tests.lab.juju.arguments import Arguments, pairs, parse, show
from tests.lab.juju.context import HookContext, ToolError
from tests.lab.network import SUBNET

STATUSES = ("active", "blocked", "maintenance", "waiting")


def now() -> str:
    """The time as Juju writes it."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _descend(value: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def config_get(context: HookContext, arguments: list[str], _: str) -> str:
    """Options: all of them or one."""
    given = parse(arguments, switches="all a")
    config = context.config()
    return show(given, config.get(given.rest[0]) if given.rest else config)


def is_leader(context: HookContext, arguments: list[str], _: str) -> str:
    """Whether this unit leads."""
    given = parse(arguments)
    return show(given, context.is_leader) if given.get("format") else f"{context.is_leader}\n"


def juju_log(context: HookContext, arguments: list[str], _: str) -> str:
    """A line for the unit's log; written at once."""
    given = parse(arguments, valued="l:log-level", switches="debug")
    context.log(given.get("log-level", "INFO").upper(), " ".join(given.rest))
    return ""


def status_set(context: HookContext, arguments: list[str], _: str) -> str:
    """The unit's or (leader only) the application's status; written at once."""
    given = parse(arguments, switches="application")
    status = given.first("status")
    if status not in STATUSES:
        raise ToolError(f'invalid status "{status}", expected one of {", ".join(STATUSES)}')
    message = " ".join(given.rest[1:])
    if given.flag("application"):
        context.need_leader("setting application status")
        sql = "UPDATE application SET status = ?, message = ? WHERE name = ?"
        context.store.do(sql, status, message, context.app)
    else:
        sql = "UPDATE unit SET status = ?, message = ?, since = ? WHERE name = ?"
        context.store.do(sql, status, message, now(), context.unit)
    return ""


def status_get(context: HookContext, arguments: list[str], _: str) -> str:
    """The unit's or (leader only) the application's status."""
    given = parse(arguments, switches="include-data application")
    if given.flag("application"):
        context.need_leader("reading application status")
        sql = "SELECT * FROM unit WHERE app = ?"
        units = {row["name"]: _status(row) for row in context.store.rows(sql, context.app)}
        app = context.store.application(context.app)
        return show(given, {"application-status": {**_status(app), "units": units}})
    unit = _status(context.store.unit(context.unit))
    return show(given, unit if given.flag("include-data") else unit["status"])


def _status(row: Any) -> dict[str, Any]:
    return {"status": row["status"], "message": row["message"], "status-data": {}}


def application_version_set(context: HookContext, arguments: list[str], _: str) -> str:
    """The workload's version, for the status table; written at once."""
    version = parse(arguments).first("version")
    sql = "UPDATE application SET version = ? WHERE name = ?"
    context.store.do(sql, version, context.app)
    return ""


def _port(given: Arguments) -> str:
    text = given.first("port")
    found = re.fullmatch(r"(\d+)(?:-(\d+))?(?:/(tcp|udp))?", text.lower())
    if text.lower() == "icmp":
        return "icmp"
    numbers = [int(n) for n in found.groups()[:2] if n] if found else []
    if not found or not all(1 <= n <= 65535 for n in numbers) or numbers != sorted(numbers):
        raise ToolError(f'invalid port "{text}"')
    return f"{'-'.join(map(str, numbers))}/{found[3] or 'tcp'}"


def open_port(context: HookContext, arguments: list[str], _: str) -> str:
    """Open a port when the hook is done."""
    context.ports.add(_port(parse(arguments, valued="endpoints")))
    return ""


def close_port(context: HookContext, arguments: list[str], _: str) -> str:
    """Close a port when the hook is done."""
    context.ports.discard(_port(parse(arguments, valued="endpoints")))
    return ""


def opened_ports(context: HookContext, arguments: list[str], _: str) -> str:
    """The unit's open ports."""
    return show(parse(arguments, switches="endpoints"), sorted(context.ports))


def resource_get(context: HookContext, arguments: list[str], _: str) -> str:
    """A resource's path in the machine."""
    name = parse(arguments).first("resource")
    sql = "SELECT path FROM resource WHERE app = ? AND name = ?"
    path = context.store.value(sql, context.app, name)
    if not path:
        raise ToolError(f'could not download resource: resource "{context.app}/{name}" not found')
    return f"{path}\n"


def network_get(context: HookContext, arguments: list[str], _: str) -> str:
    """Addresses of a binding: every endpoint is on the machine's one network."""
    given = parse(arguments, valued="r:relation", switches="ingress-address bind-address")
    binding = given.first("binding")
    if binding not in (*context.store.meta(context.app)["endpoints"], "juju-info"):
        raise ToolError(f'no network config found for binding "{binding}"')
    address = context.store.unit(context.unit)["address"]
    if given.flag("ingress-address") or given.flag("bind-address"):
        return f"{address}\n"
    bound = {"hostname": "", "value": address, "address": address, "cidr": str(SUBNET)}
    interface = {"mac-address": "", "interface-name": "host0", "addresses": [bound]}
    answer = {
        "bind-addresses": [interface],
        "egress-subnets": [f"{address}/32"],
        "ingress-addresses": [address],
    }
    return show(given, answer)


def goal_state(context: HookContext, arguments: list[str], _: str) -> str:
    """The units and relations that the model is to have."""
    store = context.store

    def goals(app: str) -> dict[str, Any]:
        rows = store.rows("SELECT * FROM unit WHERE app = ? AND name != ?", app, context.unit)
        life = {"alive": "active", "dying": "dying"}
        return {r["name"]: {"status": life[r["life"]], "since": r["since"] or now()} for r in rows}

    relations: dict[str, dict[str, Any]] = {}
    for relation in events.relations_of(store, context.app):
        end = events.own_end(store, relation, context.app)
        remote = events.remote_app(store, relation, context.app)
        if end and end["role"] != "peers":
            goal = relations.setdefault(end["endpoint"], {})
            goal.update({remote: {"status": "joined", "since": now()}, **goals(remote)})
    return show(parse(arguments), {"units": goals(context.app), "relations": relations})


def juju_reboot(context: HookContext, arguments: list[str], _: str) -> str:
    """Reboot the machine: after the hook, or now (the hook is then killed and run again)."""
    if context.event["kind"] == "action":
        raise ToolError("juju-reboot is not supported when running an action.")
    context.reboot = "now" if parse(arguments, switches="now").flag("now") else "later"
    return ""


def state_get(context: HookContext, arguments: list[str], _: str) -> str:
    """Stored state: all of it, or one key."""
    given = parse(arguments, switches="strict")
    if not given.rest:
        return show(given, context.state)
    return show(given, context.state.get(given.rest[0]))


def state_set(context: HookContext, arguments: list[str], stdin: str) -> str:
    """Store state when the hook is done."""
    given = parse(arguments, valued="file")
    context.state.update(file_pairs(given, stdin))
    return ""


def state_delete(context: HookContext, arguments: list[str], _: str) -> str:
    """Forget a key of the stored state when the hook is done."""
    context.state.pop(parse(arguments).first("key"), None)
    return ""


def file_pairs(given: Arguments, stdin: str) -> dict[str, str]:
    """What `--file -` and `key=value` arguments say together.

    Raises:
        ToolError: the file is no mapping of strings.
    """
    values: dict[str, str] = {}
    if given.get("file"):
        loaded = yaml.safe_load(stdin) or {}
        if not isinstance(loaded, dict):
            raise ToolError("cannot parse the file: want a mapping of strings")
        values = {str(k): "" if v is None else str(v) for k, v in loaded.items()}
    return {**values, **pairs(given.rest)}


def _need_action(context: HookContext) -> None:
    if context.event["kind"] != "action":
        raise ToolError("not running an action")


def action_get(context: HookContext, arguments: list[str], _: str) -> str:
    """The action's parameters: all, or one by a dotted path."""
    _need_action(context)
    given = parse(arguments)
    sql = "SELECT params FROM action WHERE id = ?"
    params = json.loads(context.store.value(sql, context.event["action"]))
    return show(given, _descend(params, given.rest[0]) if given.rest else params)


def action_set(context: HookContext, arguments: list[str], _: str) -> str:
    """Results of the action; dotted keys nest."""
    _need_action(context)
    for path, value in pairs(parse(arguments).rest).items():
        *parents, last = path.split(".")
        for part in path.split("."):
            if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", part):
                raise ToolError(
                    f'key "{path}" must start and end with lowercase alphanumeric, ...'
                )
        node = context.action_results
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return ""


def action_fail(context: HookContext, arguments: list[str], _: str) -> str:
    """Mark the action as failed, with a message."""
    _need_action(context)
    context.action_failure = (
        " ".join(parse(arguments).rest) or "action failed without reason given"
    )
    return ""


def action_log(context: HookContext, arguments: list[str], _: str) -> str:
    """A line for whoever waits for the action; written at once."""
    _need_action(context)
    context.action_log(" ".join(parse(arguments).rest))
    return ""


def storage_list(context: HookContext, arguments: list[str], _: str) -> str:
    """No storage here."""
    return show(parse(arguments), [])


def unsupported(context: HookContext, arguments: list[str], _: str) -> str:
    """What the lab's cloud does not have."""
    raise ToolError("not supported by this cloud")
