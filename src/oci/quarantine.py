# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs that are out of use until a self-test passes or the operator says so: a file each.

`<GPU's id>.json` has the attributes of found.Quarantine but the id. The wrapper reads these files
at each decision, and a reboot keeps them, so that it brings no broken GPU back.
"""

import dataclasses
import datetime
import json
import pathlib
import re
import typing

from machine import files
from plan.quarantined import Quarantine

PATH: typing.Final = pathlib.Path("/var/lib/gpu-ci/quarantine")

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
    entries = map(_entry, sorted(PATH.glob("*.json")))
    return tuple(entry for entry in entries if entry)


def put(uuid: str, reason: str, check: str, level: str, remedy: str, by: str = SELF_TEST) -> bool:
    """Take a GPU that failed a check out of use. Return True if that changed anything.

    What an operator took out stays as it is, as does what only he may bring back. What a self-test
    took out the watch takes over where more has to pass for it to return.

    Args:
        uuid: the GPU's id.
        reason: why, one line; what stands before `:` is short.
        check: the id of the check that failed, of the watch the name of the fault.
        level: the level that must pass for it to return; of the watch, empty: only the operator
            brings it back.
        remedy: what the operator does about it.
        by: SELF_TEST or WATCH.

    Raises:
        ValueError: `uuid` can't be a GPU's.
    """
    earlier = find(uuid)
    if earlier and earlier.by != by:
        if not earlier.level:
            return False
        if by == WATCH and level and _LEVELS.index(level) <= _LEVELS.index(earlier.level):
            return False
    return _write(Quarantine(uuid, reason, check, level, _since(earlier), remedy, by))


def cordon(uuid: str, reason: str) -> bool:
    """Take a GPU out of use for the operator, in place of what a self-test says of it.

    Returns:
        Whether that changed anything.

    Raises:
        ValueError: `uuid` can't be a GPU's.
    """
    return _write(Quarantine(uuid, reason, since=_since(find(uuid)), by=OPERATOR))


def lift(uuid: str) -> bool:
    """Bring a GPU back. Return True if it was out of use.

    Raises:
        ValueError: `uuid` can't be a GPU's.
    """
    return files.ensure_absent(_path(uuid))


def find(uuid: str) -> Quarantine | None:
    """What keeps a GPU out of use; None if nothing does."""
    return next((entry for entry in read() if entry.uuid == uuid), None)


def _write(entry: Quarantine) -> bool:
    content = dataclasses.asdict(entry)
    path = _path(content.pop("uuid"))
    files.ensure_directory(PATH)
    return files.ensure_file(path, json.dumps(content) + "\n")


def _path(uuid: str) -> pathlib.Path:
    if not _ID.fullmatch(uuid):
        raise ValueError(f"{uuid!r} is no GPU's id")
    return PATH / f"{uuid}.json"


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
