# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Install a copy of this charm, named by its content, for programs that outlive a hook.

A refresh replaces the charm's own folder, and a program that runs from it would mix modules of two
versions. A copy never changes: a refresh makes another copy and switches `current`. A program is
started from the folder itself, since another version may have its modules elsewhere, and holds a
shared lock on that folder's stamp while it runs.
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
from machine.errors import PartError

HOME: typing.Final = pathlib.Path("/opt/gpu-ci/app")
CURRENT: typing.Final = "current"
# In each copy: a description of the complete copy. Only root may open it, since a lock on it keeps
# the folder.
STAMP: typing.Final = "stamp"

_CHARM: typing.Final = pathlib.Path(__file__).resolve().parents[2]
_PARTS: typing.Final = ("lib", "src", "templates", "venv")
_COMPILED: typing.Final = "__pycache__"
_NEW: typing.Final = ".new"
_OLD: typing.Final = ".old"
_NOTE: typing.Final = "installed.json"
_SYNC: typing.Final = "/usr/bin/sync"
# In seconds; on an idle machine each takes one. Other programs may write to the disk meanwhile.
_COMPILE: typing.Final = 300
_WRITE: typing.Final = 600


class AppError(PartError):
    """The copy can't be made; the previous one stays. The text says why and what to do."""


class _Note(typing.TypedDict):
    """The last installation.

    Attributes:
        source: digest of the metadata of the charm's files, so that they need not be read.
        version: name of the folder that `current` leads to.
        previous: name of the folder before it; empty if there was none.
    """

    source: str
    version: str
    previous: str


def ensure(
    charm: pathlib.Path = _CHARM,
    home: pathlib.Path = HOME,
    before: collections.abc.Callable[[pathlib.Path], bool] = lambda _: False,
) -> bool:
    """Install this charm's code and packages, compiled, as `current`; keep the previous copy.

    If this is killed at any point, the old or the new copy remains, and this can be called again.
    If nothing has changed, only the notes are read.

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
        # Before the switch, so that the current copy stays if this is killed.
        files.ensure_file(home / _NOTE, json.dumps(note))
    changed |= before(home / note["version"])
    changed |= files.ensure_symlink(home / CURRENT, note["version"])
    return _remove_others(home, note) or changed


def remove(home: pathlib.Path = HOME) -> bool:
    """Remove all copies, even one in use by a program. Return True if any was there."""
    return files.ensure_absent(home)


def _make(charm: pathlib.Path, target: pathlib.Path) -> None:
    """Make a copy; it gets its name once it is complete and on the disk.

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
            f"Cannot copy the programs to {target.parent}: {error}. Make room there; the "
            "previous copy stays in use"
        ) from error
    files.ensure_absent(old)
    if target.exists():  # it was changed
        files.move(target, old)
    files.move(new, target)
    files.ensure_absent(old)


def _copy(charm: pathlib.Path, new: pathlib.Path) -> None:
    """Copy the files that programs need, owned by root, and compile them."""
    for name in _names(charm, compiled=False):
        files.ensure_directory((new / name).parent)
        shutil.copyfile(charm / name, new / name)
        (new / name).chmod(0o644)
    command = [sys.executable, "-I", "-m", "compileall", "-q"]
    # Nothing else writes here, so programs need not compare modules with their sources.
    command += ["--invalidation-mode", "unchecked-hash", str(new)]
    process.run(command, timeout=_COMPILE)


def _remove_others(home: pathlib.Path, note: _Note) -> bool:
    """Remove old copies that no program runs from. Return True if there was any."""
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
    """Whether a copy is unchanged."""
    try:
        return (folder / STAMP).read_bytes() == _look(folder, compiled=True).encode()
    except (FileNotFoundError, NotADirectoryError):
        return False


def _look(folder: pathlib.Path, *, compiled: bool = False) -> str:
    """A digest of the files' metadata; each write to a file changes its ctime."""

    def look(name: str) -> bytes:
        found = os.lstat(f"{folder}/{name}")  # a Path of each would double the time
        shape = found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        return f"{name}\0{shape}\0".encode(errors="surrogateescape")

    return _digest(map(look, _names(folder, compiled=compiled)))


def _content_hash(charm: pathlib.Path) -> str:
    """16 hex digits for the copied files and the interpreter that they are compiled for."""

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
