# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Records of GPUs that are quarantined or cordoned: a file for each.

`<GPU's id>.json` has the attributes of model.quarantine.Quarantine except the id. The GPU runtime
reads these files at each decision. They outlast a reboot, so that it returns no broken GPU.
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
from gpu_agent.model.quarantine import HEALTH, SELF_TEST, Quarantine
from gpu_runtime.unavailable import DAMAGED_RECORD, OPERATOR
from machine import files, locks

# AMD's ids may be `PCI-0000:03:00.0`.
_ID: typing.Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:.-]*")
_LEVELS: typing.Final = ("quick", "isolation", "compute", "burn-in")


def read() -> tuple[Quarantine, ...]:
    """All records in the order of the GPUs' ids.

    A damaged file counts as a record that only an operator lifts, since the level of the self-test
    that would return the GPU is unknown.

    Raises:
        OSError: the folder or a file can't be read.
    """
    entries = map(_entry, sorted(paths.QUARANTINE.glob("*.json")))
    return tuple(entry for entry in entries if entry)


def put(uuid: str, reason: str, check: str, level: str, remedy: str, by: str = SELF_TEST) -> bool:
    """Quarantine a GPU. Return True if that changed anything.

    An operator's cordon stays, and so does a record that only an operator lifts. The GPU health
    service replaces a self-test's record if the GPU needs a higher level. The level never falls.

    Args:
        uuid: the GPU's id.
        reason: the cause for people, one line; the part before `:` is short.
        check: the cause for programs: the id of the failed check or the name of the fault.
        level: the level of the self-test that returns the GPU; empty, by HEALTH only: an operator
            returns it.
        remedy: what the operator does about it.
        by: SELF_TEST or HEALTH.

    Raises:
        ValueError: `uuid` can't be a GPU's, or the level does not exist.
        OSError: the record can't be written; the previous one stays.
    """
    with _alone(uuid):
        earlier = find(uuid)
        if earlier and not _gives_way(earlier, level, by):
            return False
        most = max(level, earlier.level if earlier else level, key=_rank)
        return _write(Quarantine(uuid, reason, check, most, _since(earlier), remedy, by))


def cordon(uuid: str, reason: str) -> bool:
    """Cordon a GPU for the operator; a cordon replaces a quarantine.

    Returns:
        Whether that changed anything.

    Raises:
        ValueError: `uuid` can't be a GPU's.
    """
    with _alone(uuid):
        return _write(Quarantine(uuid, reason, since=_since(find(uuid)), by=OPERATOR))


def lift(uuid: str) -> bool:
    """Remove a GPU's record. Return True if it had one.

    Raises:
        ValueError: `uuid` can't be a GPU's.
    """
    return files.ensure_absent(_path(uuid))


def lift_seen(uuid: str, fault: str) -> bool:
    """Remove a GPU's record if the GPU health service wrote it for this fault.

    Args:
        uuid: the GPU's id.
        fault: the name of the fault.

    Returns:
        Whether that changed anything.

    Raises:
        ValueError: `uuid` can't be a GPU's.
        OSError: the record can't be read or removed.
    """
    with _alone(uuid):
        earlier = find(uuid)
        is_it = earlier is not None and (earlier.by, earlier.check) == (HEALTH, fault)
        return is_it and lift(uuid)


def find(uuid: str) -> Quarantine | None:
    """The record of a GPU; None if it has none."""
    return next((entry for entry in read() if entry.uuid == uuid), None)


@contextlib.contextmanager
def _alone(uuid: str) -> collections.abc.Generator[None]:
    """Lock the records against the health service, the self-test, hooks and actions."""
    _path(uuid)
    files.ensure_directory(paths.QUARANTINE)
    with locks.alone_in(paths.QUARANTINE):
        yield


def _gives_way(earlier: Quarantine, level: str, by: str) -> bool:
    """Whether a new record of a self-test or of the health service replaces this one."""
    if earlier.by == OPERATOR or (not earlier.level and (level or by != earlier.by)):
        return False
    # A self-test checks more than the health service, which replaces only a lower level.
    more = _rank(level) - _rank(earlier.level)
    return by == SELF_TEST or more > 0 or (more == 0 and earlier.by == HEALTH)


def _rank(level: str) -> int:
    """The rank of a level; a return by the operator only ranks above all tests."""
    return _LEVELS.index(level) if level else len(_LEVELS)


def _write(entry: Quarantine) -> bool:
    content = dataclasses.asdict(entry)
    path = _path(content.pop("uuid"))
    return files.ensure_file(path, json.dumps(content) + "\n")


def _path(uuid: str) -> pathlib.Path:
    if not _ID.fullmatch(uuid):
        raise ValueError(f"{uuid!r} is not the id of a GPU")
    return paths.QUARANTINE / f"{uuid}.json"


def _since(earlier: Quarantine | None) -> str:
    if earlier and earlier.since:
        return earlier.since
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _entry(path: pathlib.Path) -> Quarantine | None:
    """The record in a file; None if the file was removed meanwhile, for example by a self-test."""
    try:
        found: dict[str, typing.Any] = json.loads(path.read_bytes())
        entry = Quarantine(path.stem, **found)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):  # a list has no names, a name is not known
        entry = None
    if entry is None or not _is_sound(entry):
        return Quarantine(path.stem, f"damaged record: {path}", DAMAGED_RECORD, by=OPERATOR)
    return entry


def _is_sound(entry: Quarantine) -> bool:
    texts: list[object] = [*dataclasses.astuple(entry)]
    if not all(isinstance(text, str) and text.isprintable() for text in texts) or not entry.reason:
        return False
    if entry.by == HEALTH and not entry.level:
        return True
    return entry.by == OPERATOR or (entry.by in (SELF_TEST, HEALTH) and entry.level in _LEVELS)
