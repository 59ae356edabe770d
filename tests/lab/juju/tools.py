# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The hook commands, all but those of relations and secrets.

Argument shapes: ops 3.9 `ops/hookcmds/_*.py`; behaviour and texts: Juju 4.0.15,
internal/worker/uniter/runner/jujuc and core/network/portrange.go.
"""

import datetime
import json
import re
from typing import Any

import yaml

from tests.lab.juju import events
from tests.lab.juju.addresses import network_info
from tests.lab.juju.arguments import Arguments, pairs, parse, show
from tests.lab.juju.context import ArgumentError, HookContext, ToolError
from tests.lab.juju.params import with_defaults

NO_REASON = "action failed without reason given, check action for errors"
STATUSES = ("maintenance", "blocked", "waiting", "active")


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
    given = parse(arguments, switches="all a", most=1)
    config = context.config()
    return show(given, config.get(given.rest[0]) if given.rest else config)


def is_leader(context: HookContext, arguments: list[str], _: str) -> str:
    """Whether this unit leads."""
    return show(parse(arguments, most=0), context.is_leader)


def juju_log(context: HookContext, arguments: list[str], _: str) -> str:
    """A line for the unit's log; written at once."""
    given = parse(arguments, valued="l:log-level", switches="debug")
    context.log(given.get("log-level", "INFO").upper(), " ".join(given.rest))
    return ""


def status_set(context: HookContext, arguments: list[str], _: str) -> str:
    """The unit's or (leader only) the application's status; written at once."""
    given = parse(arguments, switches="application", most=2)
    status = given.first("invalid args, require <status> [message]")
    if status not in STATUSES:
        raise ArgumentError(f'invalid status "{status}", expected one of [{" ".join(STATUSES)}]')
    message = "".join(given.rest[1:])
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
    version = parse(arguments, most=1).first("no version specified")
    sql = "UPDATE application SET version = ? WHERE name = ?"
    context.store.do(sql, version, context.app)
    return ""


def _port(given: Arguments) -> str:
    text = given.first("no port or range specified").lower()
    if text == "icmp":
        return "icmp"
    ports, _, protocol = text.partition("/")
    for part in ports.split("-"):
        if not part.isdecimal():
            why = f'strconv.Atoi: parsing "{part}": invalid syntax'
            raise ArgumentError(f'invalid port "{part}": {why}')
    first, last = int(ports.split("-")[0]), int(ports.split("-")[-1])
    if protocol not in ("", "tcp", "udp"):
        raise ArgumentError(f'invalid protocol "{protocol}", expected "tcp", "udp", or "icmp"')
    if first > last:
        raise ArgumentError(f"invalid port range {first}-{last}/{protocol or 'tcp'}")
    if last > 65535:
        bounds = "port range bounds must be between 0 and 65535"
        raise ArgumentError(f"{bounds}, got {first}-{last}")
    numbers = f"{first}" if first == last else f"{first}-{last}"
    return f"{numbers}/{protocol or 'tcp'}"


def open_port(context: HookContext, arguments: list[str], _: str) -> str:
    """Open a port when the hook is done."""
    context.ports.add(_port(parse(arguments, valued="endpoints", most=1)))
    return ""


def close_port(context: HookContext, arguments: list[str], _: str) -> str:
    """Close a port when the hook is done."""
    context.ports.discard(_port(parse(arguments, valued="endpoints", most=1)))
    return ""


def opened_ports(context: HookContext, arguments: list[str], _: str) -> str:
    """The unit's open ports."""
    return show(parse(arguments, switches="endpoints", most=0), sorted(context.ports))


def resource_get(context: HookContext, arguments: list[str], _: str) -> str:
    """A resource's path in the machine."""
    name = parse(arguments, most=1).first("missing required resource name")
    sql = "SELECT path FROM resource WHERE app = ? AND name = ?"
    path = context.store.value(sql, context.app, name)
    if not path:
        raise ToolError(f'could not download resource: resource "{context.app}/{name}" not found')
    return str(path)


def network_get(context: HookContext, arguments: list[str], _: str) -> str:
    """Addresses of a binding: every endpoint is in the machine's one space."""
    given = parse(arguments, valued="r:relation", switches="ingress-address bind-address", most=1)
    binding = given.first("no arguments specified")
    if binding not in (*context.store.meta(context.app)["endpoints"], "juju-info"):
        raise ToolError(f'no network config found for binding "{binding}"')
    answer = network_info(context.store, context.unit)
    if given.flag("ingress-address") or given.flag("bind-address"):
        return f"{answer['ingress-addresses'][0]}\n"
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
    given = parse(arguments, switches="now", most=0)
    context.reboot = "now" if given.flag("now") else "later"
    return ""


def state_get(context: HookContext, arguments: list[str], _: str) -> str:
    """Stored state: all of it, or one key."""
    given = parse(arguments, switches="strict", most=1)
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
    context.state.pop(parse(arguments).first("no key specified"), None)
    return ""


def file_pairs(given: Arguments, stdin: str) -> dict[str, str]:
    """What `--file -` and `key=value` arguments say together.

    Raises:
        ToolError: the file is not a mapping of strings.
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
    given = parse(arguments, most=1)
    sql = "SELECT name, params FROM action WHERE id = ?"
    action = context.store.rows(sql, context.event["action"])[0]
    spec = context.store.meta(context.app)["actions"][action["name"]]
    values = with_defaults(spec, json.loads(action["params"]))
    return show(given, _descend(values, given.rest[0]) if given.rest else values)


def action_set(context: HookContext, arguments: list[str], _: str) -> str:
    """Results of the action; dotted keys nest."""
    _need_action(context)
    for path, value in pairs(parse(arguments).rest).items():
        *parents, last = path.split(".")
        for part in path.split("."):
            if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", part):
                raise ArgumentError(
                    f'key "{part}" must start and end with lowercase alphanumeric, and contain '
                    "only lowercase alphanumeric and hyphens"
                )
        node = context.action_results
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return ""


def action_fail(context: HookContext, arguments: list[str], _: str) -> str:
    """Mark the action as failed, with a message."""
    _need_action(context)
    given = parse(arguments, most=1)
    context.action_failure = "".join(given.rest) or NO_REASON
    return ""


def action_log(context: HookContext, arguments: list[str], _: str) -> str:
    """Print a line for the action's caller at once."""
    _need_action(context)
    given = parse(arguments)
    given.first("no message specified")
    context.action_log(" ".join(given.rest))
    return ""


def storage_list(context: HookContext, arguments: list[str], _: str) -> str:
    """No storage here."""
    return show(parse(arguments), [])


def unsupported(context: HookContext, arguments: list[str], _: str) -> str:
    """What the lab's cloud does not have."""
    raise ToolError("not supported by this cloud")
