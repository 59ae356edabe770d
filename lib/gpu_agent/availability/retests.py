# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Requests of the GPU health service for self-tests of single GPUs, which the charm runs.

`<GPU's id>.json` has the attributes of Ask except the id; the health service writes it, the charm
removes it. `<GPU's id>.tried` has the ids of the runs. Only the charm writes it, and it outlasts
the request, so that repeated requests do not test a GPU all day.
"""

import collections.abc
import dataclasses
import datetime
import json
import logging
import pathlib
import re
import typing

from machine import files

PATH: typing.Final = pathlib.Path("/var/lib/gpu-ci/retests")
LEVELS: typing.Final = ("quick", "isolation", "compute", "burn-in")
"""From the least to the most, as in gpu_selftest.check.Level."""

# As in quarantine.
_ID: typing.Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:.-]*")
# As gpu_selftest.results.new_run makes them.
_RUN: typing.Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}")
_MOST_WORDS: typing.Final = 500
_MOST_RUNS: typing.Final = 20

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Ask:
    """A request for a self-test of one GPU, as soon as the GPU is idle.

    Attributes:
        uuid: the GPU's id.
        level: the level of the self-test.
        why: the reason, one line.
        since: when the test was first requested, ISO 8601 in UTC.
    """

    uuid: str
    level: str
    why: str
    since: str


def ask(uuid: str, level: str, why: str) -> bool:
    """Request a test of a GPU. Return True if no test of that level was requested before.

    Raises:
        ValueError: `uuid` can't be a GPU's, or the level does not exist.
        OSError: the request can't be written.
    """
    path, earlier = _path(uuid), _find(uuid)
    if level not in LEVELS:
        raise ValueError(f"{level!r} is not a level of the self-test")
    if earlier and LEVELS.index(earlier.level) >= LEVELS.index(level):
        return False
    words = "".join(letter if letter.isprintable() else " " for letter in why)[:_MOST_WORDS]
    since = earlier.since if earlier else _now()
    files.ensure_directory(PATH, mode=0o700)
    content = {"level": level, "why": words, "since": since}
    return files.ensure_file(path, json.dumps(content) + "\n", mode=0o600)


def read() -> tuple[Ask, ...]:
    """All requests, the oldest first. Damaged ones are removed and logged.

    Raises:
        OSError: the folder or a file can't be read.
    """
    named = [path.name.removesuffix(".json") for path in PATH.glob("*.json")]
    found = [_find(name) for name in sorted(named) if _ID.fullmatch(name)]
    return tuple(sorted(filter(None, found), key=lambda entry: entry.since))


def forget(uuid: str, level: str = LEVELS[-1]) -> bool:
    """Remove a request up to `level`. Return True if there was one.

    Raises:
        ValueError: `uuid` can't be a GPU's.
        OSError: the request can't be read or removed.
    """
    path, found = _path(uuid), _find(uuid)
    if found is None or LEVELS.index(found.level) > LEVELS.index(level):
        return False
    return files.ensure_absent(path)


def tried(uuid: str, run: str) -> None:
    """Record that a test of a GPU was started.

    Args:
        uuid: the GPU's id.
        run: the test's id.

    Raises:
        ValueError: `uuid` can't be a GPU's.
        OSError: the file can't be written.
    """
    path = _path(uuid, "tried")
    runs = [*tries(uuid), run][-_MOST_RUNS:]
    files.ensure_directory(PATH, mode=0o700)
    files.ensure_file(path, json.dumps(runs) + "\n", mode=0o600)


def tries(uuid: str) -> tuple[str, ...]:
    """The ids of the last tests that were started of a GPU, the newest last.

    Raises:
        ValueError: `uuid` can't be a GPU's.
        OSError: the file can't be read.
    """
    path = _path(uuid, "tried")
    try:
        found: object = json.loads(files.read_text(path) or "[]")
    except ValueError:
        found = None
    runs = typing.cast("list[object]", found if isinstance(found, list) else [None])
    sound = tuple(run for run in runs if isinstance(run, str) and _RUN.fullmatch(run))
    if len(sound) != len(runs):
        _log.warning("%s is damaged and was removed", path)
        files.ensure_absent(path)
        return ()
    return sound


def remove() -> bool:
    """Remove all requests and runs. Return True if anything was there."""
    return files.ensure_absent(PATH)


def _path(uuid: str, kind: str = "json") -> pathlib.Path:
    if not _ID.fullmatch(uuid):
        raise ValueError(f"{uuid!r} is not the id of a GPU")
    return PATH / f"{uuid}.{kind}"


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _find(uuid: str) -> Ask | None:
    """The request for a GPU; None if there is none or its file is damaged."""
    path = _path(uuid)
    try:
        text = files.read_text(path)
        if text is None:
            return None
        found: collections.abc.Mapping[str, typing.Any] = json.loads(text)
        entry = Ask(uuid, **found)
    except (ValueError, TypeError):  # not JSON, a list, an unknown name
        entry = None
    if entry is None or not _is_sound(entry):
        _log.warning("%s is damaged: the test is not run", path)
        files.ensure_absent(path)
        return None
    return entry


def _is_sound(entry: Ask) -> bool:
    texts: list[object] = [*dataclasses.astuple(entry)]
    printable = all(isinstance(text, str) and text.isprintable() for text in texts)
    return printable and entry.level in LEVELS
