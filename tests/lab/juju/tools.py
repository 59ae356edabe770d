# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The hook commands, all but those of relations and secrets.

Argument shapes: ops 3.9 `ops/hookcmds/_*.py`; behaviour and texts: Juju 4.0.15,
internal/worker/uniter/runner/jujuc and core/network/portrange.go.
"""

import datetime
import json
import re

from tests.lab.juju.addresses import network_info
from tests.lab.juju.arguments import Arguments, pairs, parse, show
from tests.lab.juju.context import ArgumentError, HookContext, ToolError
from tests.lab.juju.params import with_defaults

NO_REASON = "action failed without reason given, check action for errors"
STATUSES = ("maintenance", "blocked", "waiting", "active")


def now() -> str:
    """The time as Juju writes it."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def config_get(context: HookContext, arguments: list[str], _: str) -> str:
    """Options: all of them or one."""
    given = parse(arguments, switches="all a")
    config = context.config()
    return show(given, config.get(given.rest[0]) if given.rest else config)


def is_leader(context: HookContext, arguments: list[str], _: str) -> str:
    """Whether this unit leads."""
    return show(parse(arguments), context.is_leader)


def juju_log(context: HookContext, arguments: list[str], _: str) -> str:
    """A line for the unit's log; written at once."""
    given = parse(arguments, valued="l:log-level", switches="debug")
    context.log((given.get("log-level") or "INFO").upper(), " ".join(given.rest))
    return ""


def status_set(context: HookContext, arguments: list[str], _: str) -> str:
    """The unit's status; written at once."""
    given = parse(arguments, switches="application")
    status = given.first("invalid args, require <status> [message]")
    if status not in STATUSES:
        raise ArgumentError(f'invalid status "{status}", expected one of [{" ".join(STATUSES)}]')
    sql = "UPDATE unit SET status = ?, message = ?, since = ? WHERE name = ?"
    context.store.do(sql, status, "".join(given.rest[1:]), now(), context.unit)
    return ""


def application_version_set(context: HookContext, arguments: list[str], _: str) -> str:
    """The workload's version, for the status table; written at once."""
    version = parse(arguments).first("no version specified")
    sql = "UPDATE application SET version = ? WHERE name = ?"
    context.store.do(sql, version, context.app)
    return ""


def _port(given: Arguments) -> str:
    number, _, protocol = given.first("no port or range specified").partition("/")
    return f"{int(number)}/{protocol or 'tcp'}"


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
    name = parse(arguments).first("missing required resource name")
    sql = "SELECT path FROM resource WHERE app = ? AND name = ?"
    path = context.store.value(sql, context.app, name)
    if not path:
        raise ToolError(f'could not download resource: resource "{context.app}/{name}" not found')
    return str(path)


def network_get(context: HookContext, arguments: list[str], _: str) -> str:
    """Addresses of a binding: every endpoint is in the machine's one space."""
    given = parse(arguments, valued="r:relation")
    binding = given.first("no arguments specified")
    if binding not in (*context.store.meta(context.app)["endpoints"], "juju-info"):
        raise ToolError(f'no network config found for binding "{binding}"')
    return show(given, network_info(context.store, context.unit))


def juju_reboot(context: HookContext, arguments: list[str], _: str) -> str:
    """Reboot the machine after the hook."""
    if context.event["kind"] == "action":
        raise ToolError("juju-reboot is not supported when running an action.")
    parse(arguments)
    context.reboot = True
    return ""


def _need_action(context: HookContext) -> None:
    if context.event["kind"] != "action":
        raise ToolError("not running an action")


def action_get(context: HookContext, arguments: list[str], _: str) -> str:
    """The action's parameters."""
    _need_action(context)
    given = parse(arguments)
    sql = "SELECT name, params FROM action WHERE id = ?"
    action = context.store.rows(sql, context.event["action"])[0]
    spec = context.store.meta(context.app)["actions"][action["name"]]
    values = with_defaults(spec, json.loads(action["params"]))
    return show(given, values)


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
    given = parse(arguments)
    context.action_failure = "".join(given.rest) or NO_REASON
    return ""


def action_log(context: HookContext, arguments: list[str], _: str) -> str:
    """Print a line for the action's caller at once."""
    _need_action(context)
    given = parse(arguments)
    given.first("no message specified")
    context.action_log(" ".join(given.rest))
    return ""
