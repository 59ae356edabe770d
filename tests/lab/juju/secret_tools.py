# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The hook commands of secrets: who owns one may change it, who was granted one may read it."""

import json
import re
import secrets as random
import string

from tests.lab.juju import events
from tests.lab.juju.arguments import pairs, parse, show
from tests.lab.juju.context import ArgumentError, HookContext, SecretDraft, ToolError
from tests.lab.juju.relation_tools import relation_id
from tests.lab.juju.store import Store

# Those of an xid, which is base32hex.
ALPHABET = string.digits + string.ascii_lowercase[:22]
# Only the label is kept.
SETTINGS = "label description owner"
KEY = re.compile(r"[a-z]([a-z0-9-]{1,}[a-z0-9])")


def new_id() -> str:
    """A secret's id, of the length that Juju's have."""
    return "".join(random.choice(ALPHABET) for _ in range(20))


def plain_id(text: str) -> str:
    """The id in `secret:ID`, `secret://MODEL/ID` or `ID`."""
    return text.removeprefix("secret:").rpartition("/")[2]


def check_content(content: dict[str, str]) -> dict[str, str]:
    """The content, when its keys are such as Juju takes.

    Raises:
        ArgumentError: it is empty, or a key is not of three or more of a-z, 0-9 and dashes.
    """
    if not content:
        raise ArgumentError("missing secret value or filename")
    for key in content:
        if not KEY.fullmatch(key):
            raise ArgumentError(f'key "{key}" not valid')
    return content


def _parsed_id(text: str) -> str:
    secret = plain_id(text)
    if len(secret) != 20 or not set(secret) <= set(ALPHABET):
        raise ArgumentError(f'secret URI "{text}" not valid')
    return secret


def _may_read(store: Store, secret: str, unit: str) -> bool:
    """Whether the unit owns the secret (or its application does), or was granted it."""
    owner = store.value("SELECT owner FROM secret WHERE id = ?", secret)
    app = events.app_of(unit)
    if owner in (unit, app):
        return True
    sql = "SELECT 1 FROM secret_grant WHERE secret = ? AND entity IN (?, ?)"
    return bool(store.value(sql, secret, unit, app))


def _owner(context: HookContext, secret: str) -> str | None:
    if draft := context.drafts.get(secret):
        return draft.owner
    return context.store.value("SELECT owner FROM secret WHERE id = ?", secret)


def _managed(context: HookContext, text: str) -> str:
    """The id of a secret that this unit may change."""
    secret = _parsed_id(text)
    owner = _owner(context, secret)
    if owner is None:
        raise ToolError(f'secret "{secret}" not found')
    if owner == context.app:
        context.need_leader(f'managing secret "{secret}"')
    elif owner != context.unit:
        raise ToolError(f'permission denied: secret "{secret}" belongs to {owner or "the model"}')
    return secret


def secret_add(context: HookContext, arguments: list[str], _: str) -> str:
    """Make a secret when the hook is done; its id is known at once."""
    given = parse(arguments, valued=SETTINGS)
    content = check_content(pairs(given.rest))
    owner = context.unit if given.get("owner") == "unit" else context.app
    if owner == context.app:
        context.need_leader("adding a secret of the application")
    secret = new_id()
    context.drafts[secret] = SecretDraft(owner, content, given.get("label"), new=True)
    return f"secret://{context.store.model_uuid}/{secret}\n"


def secret_set(context: HookContext, arguments: list[str], _: str) -> str:
    """Give a secret a new revision when the hook is done."""
    given = parse(arguments, valued=SETTINGS)
    secret = _managed(context, given.first("missing secret URI"))
    content = check_content(pairs(given.rest[1:]))
    if draft := context.drafts.get(secret):
        draft.content = content
    else:
        context.drafts[secret] = SecretDraft(_owner(context, secret) or "", content)
    return ""


def secret_get(context: HookContext, arguments: list[str], _: str) -> str:
    """A secret's content: of the revision that this unit follows, or the latest."""
    given = parse(arguments, switches="refresh")
    if not given.rest:
        raise ArgumentError("require either a secret URI or label")
    secret, refresh = _parsed_id(given.rest[0]), given.flag("refresh")
    draft = context.drafts.get(secret)
    if draft and (draft.new or refresh):
        return show(given, draft.content)
    store = context.store
    if _owner(context, secret) is None:
        raise ToolError(f'secret "{secret}" not found')
    if not _may_read(store, secret, context.unit):
        raise ToolError("permission denied")
    sql = "SELECT content FROM secret_revision WHERE secret = ? AND revision = ?"
    return show(given, json.loads(store.value(sql, secret, _follow(context, secret, refresh))))


def _follow(context: HookContext, secret: str, refresh: bool) -> int:
    """The revision to read; remembers it for the next time."""
    store, unit = context.store, context.unit
    latest = store.value("SELECT max(revision) FROM secret_revision WHERE secret = ?", secret)
    sql = "SELECT revision FROM secret_consumer WHERE secret = ? AND unit = ?"
    with store.transaction():
        before = store.value(sql, secret, unit)
        revision = latest if refresh or before is None else before
        store.do("INSERT OR REPLACE INTO secret_consumer VALUES (?, ?, ?)", secret, unit, revision)
        if before not in (None, revision):
            events.secret_obsolete(store, secret, before)
    return revision


def secret_grant(context: HookContext, arguments: list[str], _: str) -> str:
    """Let the other side of a relation read a secret, as long as the relation lives."""
    given = parse(arguments, valued="r:relation")
    secret = _managed(context, given.first("missing secret URI"))
    relation = relation_id(context, given.get("relation"))
    remote = events.remote_app(context.store, relation, context.app)
    sql = "INSERT OR REPLACE INTO secret_grant VALUES (?, ?, ?)"
    context.secret_changes.append(lambda: context.store.do(sql, secret, remote, relation) and None)
    return ""


def secret_remove(context: HookContext, arguments: list[str], _: str) -> str:
    """Remove a revision of a secret when the hook is done."""
    given = parse(arguments, valued="revision")
    secret = _managed(context, given.first("missing secret URI"))
    sql = "DELETE FROM secret_revision WHERE secret = ? AND revision = ?"
    revision = int(given.get("revision"))
    context.secret_changes.append(lambda: context.store.do(sql, secret, revision) and None)
    return ""
