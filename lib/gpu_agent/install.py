# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The place of programs that outlive a hook: a copy of this charm, named by its content.

A refresh replaces the charm's own folder under whatever runs from it, and such a program would go
on with modules of two versions. A copy never changes: a refresh makes another one and switches
`current`. Who starts a program names the folder itself, since another version may have its modules
elsewhere, and holds a shared lock on that folder's stamp for as long as the program runs.
"""

import collections.abc
import hashlib
import json
import os
import pathlib
import shutil
import sys
import typing

from machine import exhaustion as scarcity
from machine import files, locks, process

HOME: typing.Final = pathlib.Path("/opt/gpu-ci/app")
CURRENT: typing.Final = "current"
# Beside what was copied, and for root alone, since a lock on it keeps the folder: what the copy
# was when it was whole.
STAMP: typing.Final = "stamp"

_CHARM: typing.Final = pathlib.Path(__file__).resolve().parents[2]
_PARTS: typing.Final = ("lib", "src", "templates", "venv")
_COMPILED: typing.Final = "__pycache__"
_NEW: typing.Final = ".new"
_OLD: typing.Final = ".old"
_NOTE: typing.Final = "installed.json"
_SYNC: typing.Final = "/usr/bin/sync"
# In seconds; on an idle machine it is one of each. Before its disk has all, others may write too.
_COMPILE: typing.Final = 300
_WRITE: typing.Final = 600


class AppError(Exception):
    """The copy can't be made, and the one before stays. The text says why, and the next step."""


class _Note(typing.TypedDict):
    """What was installed last.

    Attributes:
        source: what the charm's files looked like from outside, so that they need not be read.
        version: name of the folder that `current` leads to.
        previous: name of the one before it; empty if there was none.
    """

    source: str
    version: str
    previous: str


def ensure(
    charm: pathlib.Path = _CHARM,
    home: pathlib.Path = HOME,
    before: collections.abc.Callable[[pathlib.Path], bool] = lambda _: False,
) -> bool:
    """Have this charm's code and packages, compiled, as `current`, and the one before beside it.

    Killed at any point, it leaves the old one or the new one, and can be called again. Where
    nothing has changed, no file is read but the notes.

    Args:
        charm: the charm's folder.
        home: where the copies are.
        before: given the folder of this charm's copy before `current` leads to it; returns whether
            it has changed anything.

    Returns:
        Whether anything had to be changed.

    Raises:
        AppError: the machine has no room for it.
    """
    files.ensure_directory(home)
    note, source, changed = _read_note(home), _look(charm), False
    if note["source"] != source or not _is_whole(home / note["version"]):
        version = _content_hash(charm)
        if not _is_whole(home / version):
            _make(charm, home / version)
            changed = True
        previous = note["previous"] if note["version"] == version else note["version"]
        note = _Note(source=source, version=version, previous=previous)
        # Before the switch, so that what was current stays, wherever this is killed.
        files.ensure_file(home / _NOTE, json.dumps(note))
    changed |= before(home / note["version"])
    changed |= files.ensure_symlink(home / CURRENT, note["version"])
    return _remove_others(home, note) or changed


def remove(home: pathlib.Path = HOME) -> bool:
    """Remove all copies, also one that a program still runs from. True if any was there."""
    return files.ensure_absent(home)


def _make(charm: pathlib.Path, target: pathlib.Path) -> None:
    """Make a copy that gets its name when it is whole, and on the disk.

    Raises:
        AppError: the machine has no room for it.
    """
    new, old = target.with_name(_NEW), target.with_name(_OLD)
    try:
        files.ensure_absent(new)
        _copy(charm, new)
        files.ensure_file(new / STAMP, _look(new, compiled=True), mode=0o600)
        process.run([_SYNC, "--file-system", str(new)], timeout=_WRITE)
    except (OSError, process.CommandError) as error:
        files.ensure_absent(new)
        if not scarcity.is_told_by(error if isinstance(error, OSError) else error.stderr):
            raise
        raise AppError(
            f"The charm's programs can't be copied to {target.parent}: {error}. Make room there; "
            "until then those that are there stay"
        ) from error
    files.ensure_absent(old)
    if target.exists():  # and is no longer what it was
        files.move(target, old)
    files.move(new, target)
    files.ensure_absent(old)


def _copy(charm: pathlib.Path, new: pathlib.Path) -> None:
    """Copy what programs need, under root's own modes, and compile it."""
    for name in _names(charm, compiled=False):
        files.ensure_directory((new / name).parent)
        shutil.copyfile(charm / name, new / name)
        (new / name).chmod(0o644)
    command = [sys.executable, "-I", "-m", "compileall", "-q"]
    # As they are found: nothing but this writes here, and a program looks at no source again.
    command += ["--invalidation-mode", "unchecked-hash", str(new)]
    process.run(command, timeout=_COMPILE)


def _remove_others(home: pathlib.Path, note: _Note) -> bool:
    """Remove what neither is kept nor has a program that runs from it. True if there was any."""
    kept = (note["version"], note["previous"], CURRENT, _NOTE)
    others = [entry for entry in home.iterdir() if entry.name not in kept]
    unused = [entry for entry in others if not locks.holder(entry / STAMP)]
    for entry in unused:
        files.ensure_absent(entry)
    return bool(unused)


def _read_note(home: pathlib.Path) -> _Note:
    try:
        found = json.loads(files.read_text(home / _NOTE) or "{}")
        return _Note(**{key: str(found[key]) for key in _Note.__annotations__})
    except (ValueError, KeyError, TypeError):
        return _Note(source="", version="", previous="")


def _is_whole(folder: pathlib.Path) -> bool:
    """Whether a copy still is what it was when it was made."""
    try:
        return (folder / STAMP).read_bytes() == _look(folder, compiled=True).encode()
    except (FileNotFoundError, NotADirectoryError):
        return False


def _look(folder: pathlib.Path, *, compiled: bool = False) -> str:
    """What files look like from outside, in short: whatever writes to one changes its ctime."""

    def look(name: str) -> bytes:
        found = os.lstat(f"{folder}/{name}")  # a Path of each would double the time
        shape = found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        return f"{name}\0{shape}\0".encode(errors="surrogateescape")

    return _digest(map(look, _names(folder, compiled=compiled)))


def _content_hash(charm: pathlib.Path) -> str:
    """16 hex digits for what is copied and the interpreter that it is compiled for."""

    def read(name: str) -> bytes:
        content = (charm / name).read_bytes()
        return f"{name}\0{len(content)}\0".encode(errors="surrogateescape") + content

    return _digest(map(read, _names(charm, compiled=False)))[:16]


def _digest(parts: collections.abc.Iterable[bytes]) -> str:
    digest = hashlib.sha256(str(sys.implementation.cache_tag).encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _names(folder: pathlib.Path, *, compiled: bool) -> list[str]:
    """The files of a charm or of a copy, relative to it, in order."""
    found: list[str] = []
    for part in filter(lambda part: (folder / part).is_dir(), _PARTS):
        for path, folders, names in os.walk(folder / part, onerror=_fail):
            if not compiled and _COMPILED in folders:
                folders.remove(_COMPILED)
            within = path[len(f"{folder}/") :]
            found += (f"{within}/{name}" for name in names)
    return sorted(found)


def _fail(error: OSError) -> typing.NoReturn:
    raise error
