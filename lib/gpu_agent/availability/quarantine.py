# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs that are out of use until a self-test passes or the operator says so: a file each.

`<GPU's id>.json` has the attributes of found.Quarantine but the id. The wrapper reads these files
at each decision, and a reboot keeps them, so that it brings no broken GPU back.
"""

import collections.abc
import contextlib
import dataclasses
import datetime
import json
import pathlib
import re
import typing

from gpu_agent import paths
from gpu_agent.model.quarantine import Quarantine
from machine import files, locks

SELF_TEST: typing.Final = "self-test"
WATCH: typing.Final = "watch"
OPERATOR: typing.Final = "operator"

# AMD's ids may be `PCI-0000:03:00.0`.
_ID: typing.Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:.-]*")
_LEVELS: typing.Final = ("quick", "isolation", "compute", "burn-in")


def read() -> tuple[Quarantine, ...]:
    """All that are out of use, in the order of their ids.

    One whose file is damaged is among them: whoever wrote it wanted the GPU out. Since nobody
    knows what has to pass for it to return, that is left to the operator.

    Raises:
        OSError: the folder or a file can't be read.
    """
    entries = map(_entry, sorted(paths.QUARANTINE.glob("*.json")))
    return tuple(entry for entry in entries if entry)


def put(uuid: str, reason: str, check: str, level: str, remedy: str, by: str = SELF_TEST) -> bool:
    """Take a GPU that failed a check out of use. Return True if that changed anything.

    What an operator took out stays as it is, as does what only he may bring back. What a self-test
    took out the watch takes over where more has to pass for it to return. The level never falls.

    Args:
        uuid: the GPU's id.
        reason: why, one line; what stands before `:` is short.
        check: the id of the check that failed, of the watch the name of the fault.
        level: the level that must pass for it to return; of the watch, empty: only the operator
            brings it back.
        remedy: what the operator does about it.
        by: SELF_TEST or WATCH.

    Raises:
        ValueError: `uuid` can't be a GPU's, or there is no such level.
        OSError: it can't be written; what was there is there still.
    """
    with _alone(uuid):
        earlier = find(uuid)
        if earlier and not _gives_way(earlier, level, by):
            return False
        most = max(level, earlier.level if earlier else level, key=_rank)
        return _write(Quarantine(uuid, reason, check, most, _since(earlier), remedy, by))


def cordon(uuid: str, reason: str) -> bool:
    """Take a GPU out of use for the operator, in place of what a self-test says of it.

    Returns:
        Whether that changed anything.

    Raises:
        ValueError: `uuid` can't be a GPU's.
    """
    with _alone(uuid):
        return _write(Quarantine(uuid, reason, since=_since(find(uuid)), by=OPERATOR))


def lift(uuid: str) -> bool:
    """Bring a GPU back. Return True if it was out of use.

    Raises:
        ValueError: `uuid` can't be a GPU's.
    """
    return files.ensure_absent(_path(uuid))


def lift_seen(uuid: str, fault: str) -> bool:
    """Bring a GPU back that is out of use for nothing but what the watch saw.

    Args:
        uuid: the GPU's id.
        fault: the name of the watch's fault; a record of another stays.

    Returns:
        Whether that changed anything.

    Raises:
        ValueError: `uuid` can't be a GPU's.
        OSError: the record can't be read, or taken away.
    """
    with _alone(uuid):
        earlier = find(uuid)
        is_it = earlier is not None and (earlier.by, earlier.check) == (WATCH, fault)
        return is_it and lift(uuid)


def find(uuid: str) -> Quarantine | None:
    """What keeps a GPU out of use; None if nothing does."""
    return next((entry for entry in read() if entry.uuid == uuid), None)


@contextlib.contextmanager
def _alone(uuid: str) -> collections.abc.Generator[None]:
    """Nobody else decides on a record meanwhile: watch, self-test, hook and action do."""
    _path(uuid)
    files.ensure_directory(paths.QUARANTINE)
    with locks.alone_in(paths.QUARANTINE):
        yield


def _gives_way(earlier: Quarantine, level: str, by: str) -> bool:
    """Whether a record gives way to one of a self-test or of the watch."""
    if earlier.by == OPERATOR or (not earlier.level and (level or by != earlier.by)):
        return False
    # A self-test has looked at all; the watch at less, so it leaves what needs no less of a test.
    more = _rank(level) - _rank(earlier.level)
    return by == SELF_TEST or more > 0 or (more == 0 and earlier.by == WATCH)


def _rank(level: str) -> int:
    """How much has to pass for a GPU to return; the operator's word is more than any test."""
    return _LEVELS.index(level) if level else len(_LEVELS)


def _write(entry: Quarantine) -> bool:
    content = dataclasses.asdict(entry)
    path = _path(content.pop("uuid"))
    return files.ensure_file(path, json.dumps(content) + "\n")


def _path(uuid: str) -> pathlib.Path:
    if not _ID.fullmatch(uuid):
        raise ValueError(f"{uuid!r} is no GPU's id")
    return paths.QUARANTINE / f"{uuid}.json"


def _since(earlier: Quarantine | None) -> str:
    if earlier and earlier.since:
        return earlier.since
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _entry(path: pathlib.Path) -> Quarantine | None:
    """What a file says; None if it is gone, as where a self-test ends it just now."""
    try:
        found: dict[str, typing.Any] = json.loads(path.read_bytes())
        entry = Quarantine(path.stem, **found)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):  # a list has no names, a name is not known
        entry = None
    if entry is None or not _is_sound(entry):
        return Quarantine(path.stem, f"out of use: {path} is damaged", by=OPERATOR)
    return entry


def _is_sound(entry: Quarantine) -> bool:
    texts: list[object] = [*dataclasses.astuple(entry)]
    if not all(isinstance(text, str) and text.isprintable() for text in texts) or not entry.reason:
        return False
    if entry.by == WATCH and not entry.level:
        return True
    return entry.by == OPERATOR or (entry.by in (SELF_TEST, WATCH) and entry.level in _LEVELS)
