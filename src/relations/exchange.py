# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The data that web and workers of this charm exchange beyond that of the public charm.

It is about key rotation and about how web lists the workers. It lies in unit databags beside that
of relations.tsa, and none of it is secret. The public charm's worker restarts at each change of
its relation, which ends its builds, so it gets none of this.

From each worker unit: `worker-name`; `worker-tags`, a digest, absent while it is
paused or drained; `worker-next-public-key`, a second key that it asks web to take;
`tsa-keys-known`, the host keys that its process trusts (fingerprints after `-`).

From each web unit: `tsa-next-public-key`, the host key that it will show; `worker-keys-taken`,
which second keys it takes (the same form); `workers-seen`, a line `NAME STATE TAGS` for each
worker.
"""

import collections.abc
import dataclasses
import re
import typing

import ops

from options.ssh import public_key
from relations.model import Tsa
from relations.worker_view import STATES, Sight, fingerprint

NAME: typing.Final = "worker-name"
NEXT_KEY: typing.Final = "worker-next-public-key"
NEXT_HOST_KEY: typing.Final = "tsa-next-public-key"
TAKEN: typing.Final = "worker-keys-taken"
_TAGS: typing.Final = "worker-tags"
_KNOWN: typing.Final = "tsa-keys-known"
_SEEN: typing.Final = "workers-seen"

OF_WORKERS: typing.Final = (NAME, _TAGS, NEXT_KEY, _KNOWN)
OF_WEBS: typing.Final = (NEXT_HOST_KEY, TAKEN, _SEEN)

_LONGEST: typing.Final = 65_536
_WORKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_LINE = re.compile(
    rf"(?P<name>{_WORKER.pattern}) (?P<state>{'|'.join(STATES)})(?: (?P<tags>[0-9a-f]{{32}}))?"
)

_Data = collections.abc.Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Kin:
    """A related worker unit of this charm.

    Attributes:
        unit: Juju's name of it here.
        name: its worker's, as web knows it.
        tags: their digest; empty before it has told, and while it is paused or drained.
    """

    unit: str
    name: str
    tags: str


def kin(relation: ops.Relation) -> list[Kin]:
    """The worker units of this charm on the other side; none where that is the public charm."""
    found: list[Kin] = []
    for unit in sorted(relation.units, key=lambda unit: unit.name):
        data = relation.data[unit]
        if _WORKER.fullmatch(name := data.get(NAME, "")):
            tags = data.get(_TAGS, "")
            found.append(Kin(unit.name, name, tags if _DIGEST.fullmatch(tags) else ""))
    return found


def publish_worker(
    data: collections.abc.MutableMapping[str, str],
    name: str,
    tags: str,
    second: str,
    known: tuple[str, ...] | None,
) -> None:
    """Tell webs, or peers, of this unit's worker.

    Args:
        data: this unit's, of one relation.
        name: the worker's.
        tags: their digest; empty: any will do.
        second: the second key that web is to take, one line; empty: none.
        known: the host keys that its process trusts, a line each; None: unchanged.
    """
    _tell(data, NAME, name)
    _tell(data, NEXT_KEY, second)
    _tell(data, _TAGS, tags)
    if known is not None:
        _tell(data, _KNOWN, _fingerprints(known))


def publish_web(
    model: ops.Model,
    relation: ops.Relation,
    authorized: collections.abc.Collection[str],
    next_host_key: str,
) -> None:
    """Tell the workers of a relation which of their keys web takes, and its next host key.

    Args:
        model: this unit's.
        relation: to workers of this charm.
        authorized: the keys that web takes, a line each.
        next_host_key: a line; empty: there is none.
    """
    data = relation.data[model.unit]
    asked = [key for unit in relation.units for key in second_keys(relation.data[unit])]
    _tell(data, TAKEN, _fingerprints(key for key in asked if key in authorized))
    _tell(data, NEXT_HOST_KEY, next_host_key)


def publish_sights(
    model: ops.Model, relation: ops.Relation, sights: collections.abc.Mapping[str, Sight]
) -> None:
    """Tell the workers of a relation how web sees them, by their names."""
    lines = [f"{name} {one.state} {one.tags}".rstrip() for name, one in sorted(sights.items())]
    _tell(relation.data[model.unit], _SEEN, "\n".join(lines))


def second_keys(data: _Data) -> list[str]:
    """The second key that a worker asks web to take, where it asks for one.

    Raises:
        ValueError: it is not a key that can be trusted.
    """
    return [public_key(text)] if (text := data.get(NEXT_KEY, "")) else []


def knows(data: _Data, host_key: str) -> bool:
    """Whether a worker's process trusts this host key."""
    return fingerprint(host_key) in (_read_fingerprints(data, _KNOWN) or ())


def add_webs(said: Tsa, webs: collections.abc.Mapping[str, _Data], worker: str) -> Tsa:
    """Add the data of this exchange to that of webs; unusable data is listed as refused.

    Args:
        said: what they say else.
        webs: the data of those units that can be used, by the unit's name.
        worker: the published name of this unit's worker.
    """
    keys, sights, refused = dict.fromkeys(said.public_keys), list[Sight](), list(said.refused)
    taken: set[str] | None = None
    silent: list[str] = []
    for unit, data in webs.items():
        try:
            if text := data.get(NEXT_HOST_KEY, ""):
                keys[public_key(text)] = None
        except ValueError as error:
            refused.append(f"{NEXT_HOST_KEY} of {unit}: {error}")
        told = _read_fingerprints(data, TAKEN)
        if told is None:
            silent.append(unit)
        taken = {*(told or ())} if taken is None else taken & {*(told or ())}
        try:
            sights += _sights(worker, data)
        except ValueError as error:
            refused.append(f"{_SEEN} of {unit}: {error}")
    return dataclasses.replace(
        said, public_keys=tuple(keys), taken=tuple(sorted(taken or ())), silent=tuple(silent),
        sights=tuple(sights), refused=tuple(refused),
    )  # fmt: skip


def _sights(worker: str, data: _Data) -> list[Sight]:
    """How a web sees a worker; nothing where it does not tell."""
    found: list[Sight] = []
    for line in data.get(_SEEN, "")[:_LONGEST].splitlines():
        match = _LINE.fullmatch(line)
        if not match:
            raise ValueError("is no NAME STATE TAGS")
        if match["name"] == worker:
            found = [Sight(match["state"], match["tags"] or "")]
    return found


def _fingerprints(keys: collections.abc.Iterable[str]) -> str:
    return " ".join(("-", *sorted({fingerprint(key) for key in keys})))


def _read_fingerprints(data: _Data, name: str) -> tuple[str, ...] | None:
    first, *others = data.get(name, "")[:_LONGEST].split(" ")
    return tuple(one for one in others if _DIGEST.fullmatch(one)) if first == "-" else None


def _tell(data: collections.abc.MutableMapping[str, str], key: str, value: str) -> None:
    if value:
        data[key] = value
    elif key in data:
        del data[key]
