# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The hook commands of secrets: who owns one may change it, who was granted one may read it."""

import json
import re
import secrets as random
import string

from tests.lab.juju import events
from tests.lab.juju.arguments import Arguments, pairs, parse, show
from tests.lab.juju.context import ArgumentError, HookContext, SecretDraft, ToolError
from tests.lab.juju.relation_tools import relation_id
from tests.lab.juju.store import Store

# Those of an xid, which is base32hex.
ALPHABET = string.digits + string.ascii_lowercase[:22]
SETTINGS = "label description expire rotate owner"
KEY = re.compile(r"[a-z]([a-z0-9-]{1,}[a-z0-9])")


def new_id() -> str:
    """A secret's id, of the length that Juju's have."""
    return "".join(random.choice(ALPHABET) for _ in range(20))


def plain_id(text: str) -> str:
    """The id in `secret:ID`, `secret://MODEL/ID` or `ID`."""
    return text.removeprefix("secret:").rpartition("/")[2]


def _parsed_id(text: str) -> str:
    secret = plain_id(text)
    if len(secret) != 20 or not set(secret) <= set(ALPHABET):
        raise ArgumentError(f'secret URI "{text}" not valid')
    return secret


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


def may_read(store: Store, secret: str, unit: str) -> bool:
    """Whether the unit owns the secret (or its application does), or was granted it."""
    owner = store.value("SELECT owner FROM secret WHERE id = ?", secret)
    app = events.app_of(unit)
    if owner in (unit, app):
        return True
    sql = (
        "SELECT 1 FROM secret_grant g WHERE secret = ? AND entity IN (?, ?) AND "
        "(relation IS NULL OR EXISTS (SELECT 1 FROM relation WHERE id = g.relation))"
    )
    return bool(store.value(sql, secret, unit, app))


def _owner(context: HookContext, secret: str) -> str | None:
    draft = context.drafts.get(secret)
    if draft:
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


def _by_label(context: HookContext, label: str) -> str | None:
    for secret, draft in context.drafts.items():
        if draft.label == label:
            return secret
    own = "SELECT id FROM secret WHERE label = ? AND owner IN (?, ?)"
    read = "SELECT secret FROM secret_consumer WHERE label = ? AND unit = ?"
    return context.store.value(own, label, context.app, context.unit) or context.store.value(
        read, label, context.unit
    )


def _wanted(context: HookContext, given: Arguments) -> str:
    if given.rest:
        return _parsed_id(given.rest[0])
    label = given.get("label")
    if not label:
        raise ArgumentError("require either a secret URI or label")
    secret = _by_label(context, label)
    if not secret:
        raise ToolError(f'consumer label "{label}" not found: secret not found')
    return secret


def _draft(context: HookContext, given: Arguments, secret: str) -> SecretDraft:
    owner = _owner(context, secret)
    if owner is None:
        owner = context.unit if given.get("owner") == "unit" else context.app
        if owner == context.app:
            context.need_leader("adding a secret of the application")
        context.drafts[secret] = SecretDraft(owner, new=True)
    draft = context.drafts.setdefault(secret, SecretDraft(owner))
    for name in ("label", "description", "rotate"):
        if name in given.options:
            setattr(draft, name, given.get(name))
    return draft


def secret_add(context: HookContext, arguments: list[str], _: str) -> str:
    """Make a secret when the hook is done; its id is known at once."""
    given = parse(arguments, valued=SETTINGS)
    content = check_content(pairs(given.rest))
    label = given.get("label")
    sql = "SELECT 1 FROM secret WHERE label = ? AND owner IN (?, ?)"
    if label and context.store.value(sql, label, context.app, context.unit):
        raise ToolError(f'secret with label "{label}" already exists')
    secret = new_id()
    _draft(context, given, secret).content = content
    return f"secret://{context.store.model_uuid}/{secret}\n"


def secret_set(context: HookContext, arguments: list[str], _: str) -> str:
    """Change a secret's settings or content (a new revision) when the hook is done."""
    given = parse(arguments, valued=SETTINGS)
    secret = _managed(context, given.first("missing secret URI"))
    draft = _draft(context, given, secret)
    if given.rest[1:]:
        draft.content = check_content(pairs(given.rest[1:]))
    return ""


def secret_get(context: HookContext, arguments: list[str], _: str) -> str:
    """A secret's content: of the revision that this unit follows, or the latest."""
    given = parse(arguments, valued="label", switches="refresh peek")
    secret = _wanted(context, given)
    draft = context.drafts.get(secret)
    if draft and draft.content and (draft.new or given.flag("refresh") or given.flag("peek")):
        return show(given, draft.content)
    store = context.store
    if _owner(context, secret) is None:
        raise ToolError(f'secret "{secret}" not found')
    if not may_read(store, secret, context.unit):
        raise ToolError("permission denied")
    revision = _follow(context, given, secret)
    sql = "SELECT content FROM secret_revision WHERE secret = ? AND revision = ?"
    content = json.loads(store.value(sql, secret, revision))
    key = given.rest[1] if given.rest[1:] else ""
    return show(given, content.get(key) if key else content)


def _follow(context: HookContext, given: Arguments, secret: str) -> int:
    """The revision to read; remembers it, and the label, for the next time."""
    store = context.store
    latest = store.value("SELECT max(revision) FROM secret_revision WHERE secret = ?", secret)
    sql = "SELECT * FROM secret_consumer WHERE secret = ? AND unit = ?"
    with store.transaction():
        consumer = store.row(sql, secret, context.unit)
        before = consumer["revision"] if consumer else None
        revision = latest if given.flag("refresh") or before is None else before
        label = given.get("label") or (consumer["label"] if consumer else "")
        store.do(
            "INSERT OR REPLACE INTO secret_consumer VALUES (?, ?, ?, ?)",
            secret,
            context.unit,
            label,
            revision,
        )
        if before not in (None, revision):
            events.secret_obsolete(store, secret, before)
    return latest if given.flag("peek") else revision


def secret_info_get(context: HookContext, arguments: list[str], _: str) -> str:
    """What is known of a secret that this unit manages."""
    given = parse(arguments, valued="label")
    secret = _managed(context, _wanted(context, given))
    draft = context.drafts.get(secret)
    row = context.store.row("SELECT * FROM secret WHERE id = ?", secret)
    sql = "SELECT max(revision) FROM secret_revision WHERE secret = ?"
    owner = _owner(context, secret) or ""
    info = {
        "revision": context.store.value(sql, secret) or 1,
        "label": draft.label if draft and draft.label is not None else row["label"] if row else "",
        "owner": "unit" if "/" in owner else "application",
        "rotation": row["rotate"] if row else "never",
    }
    return show(given, {secret: info})


def secret_ids(context: HookContext, arguments: list[str], _: str) -> str:
    """The secrets that this unit manages."""
    owners = [context.unit, *([context.app] if context.is_leader else [])]
    marks = ", ".join("?" * len(owners))
    known = context.store.column(f"SELECT id FROM secret WHERE owner IN ({marks})", *owners)
    new = [secret for secret, draft in context.drafts.items() if draft.new]
    return show(parse(arguments), [*known, *new])


def secret_grant(context: HookContext, arguments: list[str], _: str) -> str:
    """Let the other side of a relation read a secret, as long as the relation lives."""
    given = parse(arguments, valued="r:relation unit")
    secret = _managed(context, given.first("missing secret URI"))
    relation = relation_id(context, given.get("relation"))
    remote = events.remote_app(context.store, relation, context.app)
    entity = given.get("unit") or remote
    if events.app_of(entity) != remote:
        raise ToolError(f'"{entity}" is not on the other side of relation {relation}')
    sql = "INSERT OR REPLACE INTO secret_grant VALUES (?, ?, ?)"
    context.secret_changes.append(lambda: context.store.do(sql, secret, entity, relation) and None)
    return ""


def secret_revoke(context: HookContext, arguments: list[str], _: str) -> str:
    """Take a grant back."""
    given = parse(arguments, valued="r:relation app unit")
    secret = _managed(context, given.first("missing secret URI"))
    entity = given.get("unit") or given.get("app")
    if not entity:
        relation = relation_id(context, given.get("relation"))
        entity = events.remote_app(context.store, relation, context.app)
    sql = "DELETE FROM secret_grant WHERE secret = ? AND entity = ?"
    context.secret_changes.append(lambda: context.store.do(sql, secret, entity) and None)
    return ""


def secret_remove(context: HookContext, arguments: list[str], _: str) -> str:
    """Remove a revision, or the whole secret."""
    given = parse(arguments, valued="revision")
    secret = _managed(context, given.first("missing secret URI"))
    revision = given.get("revision")

    def remove() -> None:
        if revision:
            sql = "DELETE FROM secret_revision WHERE secret = ? AND revision = ?"
            context.store.do(sql, secret, int(revision))
            left = "SELECT 1 FROM secret_revision WHERE secret = ?"
            if context.store.value(left, secret):
                return
        for table in ("secret_revision", "secret_grant", "secret_consumer"):
            context.store.do(f"DELETE FROM {table} WHERE secret = ?", secret)
        context.store.do("DELETE FROM secret WHERE id = ?", secret)

    context.secret_changes.append(remove)
    return ""
