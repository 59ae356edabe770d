# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The hook commands of relations: who may read and write which databag."""

import yaml

from tests.lab.juju import events
from tests.lab.juju.arguments import pairs, parse, show
from tests.lab.juju.context import ArgumentError, HookContext, ToolError


def relation_id(context: HookContext, text: str) -> int:
    """A relation from `7`, `worker-tsa:7`, or, when empty, the hook's own.

    Raises:
        ArgumentError: it is none of the application's.
    """
    if not text:
        if context.event["relation"] is None:
            raise ArgumentError("no relation id specified")
        return int(context.event["relation"])
    endpoint, _, number = text.rpartition(":")
    if not number.isdigit():
        raise ArgumentError(f'invalid value "{text}" for option -r: invalid relation id')
    end = events.own_end(context.store, int(number), context.app)
    if not end or (endpoint and end["endpoint"] != endpoint):
        raise ArgumentError(f'invalid value "{text}" for option -r: relation not found')
    return int(number)


def relation_ids(context: HookContext, arguments: list[str], _: str) -> str:
    """The ids of an endpoint's relations."""
    given = parse(arguments)
    sql = "SELECT relation FROM relation_end WHERE app = ? AND endpoint = ? ORDER BY relation"
    name = given.first("no endpoint name specified")
    return show(given, [f"{name}:{r}" for r in context.store.column(sql, context.app, name)])


def relation_list(context: HookContext, arguments: list[str], _: str) -> str:
    """Return the remote units that this unit knows, or the remote application."""
    given = parse(arguments, valued="r:relation", switches="app")
    relation = relation_id(context, given.get("relation"))
    if given.flag("app"):
        return show(given, events.remote_app(context.store, relation, context.app))
    sql = "SELECT remote FROM seen WHERE relation = ? AND unit = ? ORDER BY remote"
    units = context.store.column(sql, relation, context.unit)
    if context.event["kind"] == "relation-departed" and context.event["relation"] == relation:
        units = [unit for unit in units if unit != context.event["remote_unit"]]
    return show(given, units)


def relation_get(context: HookContext, arguments: list[str], _: str) -> str:
    """A databag, or one key of it."""
    given = parse(arguments, valued="r:relation", switches="app")
    relation = relation_id(context, given.get("relation"))
    key, entity = [*given.rest, "", ""][:2]
    remote = events.remote_app(context.store, relation, context.app)
    if not entity:
        entity = remote if given.flag("app") else context.event["remote_unit"]
    if not entity:
        raise ArgumentError("no unit or application specified")
    if given.flag("app"):
        entity = events.app_of(entity)
    if events.app_of(entity) not in (context.app, remote):
        raise ToolError("permission denied")
    if entity == context.app and entity != remote:
        context.need_leader("reading the application's own databag")
    own = events.app_of(entity) == context.app
    if "/" in entity and own and entity != context.unit and remote != context.app:
        raise ToolError("permission denied")
    bag = context.bag(relation, entity)
    return show(given, bag.get(key) if key not in ("", "-") else bag)


def relation_set(context: HookContext, arguments: list[str], stdin: str) -> str:
    """Change the unit's own databag or (leader only) the application's, when the hook is done."""
    given = parse(arguments, valued="r:relation file", switches="app")
    relation = relation_id(context, given.get("relation"))
    if given.flag("app") and not context.is_leader:
        raise ToolError("cannot write relation settings")
    changes = pairs(given.rest)
    if given.get("file"):
        changes |= {key: value or "" for key, value in (yaml.safe_load(stdin) or {}).items()}
    context.write_bag(relation, context.app if given.flag("app") else context.unit, changes)
    return ""
