# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Concourse itself: releases side by side under /opt/concourse, `current` points at one.

A release's folder gets its name only when it is complete, so that a hook killed at any point
leaves nothing that the next one would take for a release.
"""

import collections.abc
import dataclasses
import json
import pathlib
import re
import shutil
import typing

from machine import download, files, process
from plan.parts import ReleasePlan

ROOT: typing.Final = pathlib.Path("/opt/concourse")
CURRENT: typing.Final = ROOT / "current"

_UNPACK: typing.Final = ROOT / ".unpack"
_DOWNLOADS: typing.Final = ROOT / ".download"
_NOTE: typing.Final = ".release.json"
_URL: typing.Final = "https://github.com/concourse/concourse/releases/download"
_NEEDED: typing.Final = ("bin/concourse", "bin/containerd", "bin/runc")

# An unpacked release takes about 1.5 times its tarball; binaries shrink to less than half in it,
# the resource types, which are most of it, are packed themselves.
_UNPACKED: typing.Final = 2.5


class ReleaseError(Exception):
    """Concourse can't be installed. The text says why, and the next step."""


@dataclasses.dataclass(frozen=True)
class Release:
    """A release on this machine, by the version that its own binary tells."""

    version: str
    path: pathlib.Path


class _Note(typing.TypedDict):
    """What is written beside a release: where it came from.

    Attributes:
        source: size in bytes and time of change in nanoseconds of the charm resource, so that it
            need not be hashed again; [0, 0] for a download.
    """

    version: str
    sha256: str
    source: list[int]


def installed() -> Release | None:
    """The release that `current` points at; None if there is none."""
    return _release(CURRENT.resolve()) if (CURRENT / _NOTE).exists() else None


def ensure(
    plan: ReleasePlan, progress: collections.abc.Callable[[str], None], *, base_url: str = _URL
) -> Release:
    """Have the release of the plan as `current`. The one before it is kept.

    Args:
        plan: a tarball at hand goes before a download.
        progress: told what takes long.
        base_url: where releases are, each in a folder `v<version>`.

    Raises:
        ReleaseError: if the tarball is no release, or can't be unpacked.
        machine.download.DownloadError: if it can't be downloaded.
    """
    source, sha256 = _identity(plan)
    found = _find(source, sha256)
    if found is None and plan.tarball:
        progress("Checking the resource concourse")
        sha256 = download.sha256_of(pathlib.Path(plan.tarball))
        found = _find([0, 0], sha256)
        if found is not None:
            _write_note(found, source)
    if found is None:
        tarball = (
            pathlib.Path(plan.tarball) if plan.tarball else _download(plan, progress, base_url)
        )
        progress(f"Unpacking {tarball.name}")
        found = _unpack(tarball, sha256, source)
    _switch(found)
    files.ensure_absent(_DOWNLOADS)
    return _release(found)


def remove() -> bool:
    """Remove all releases. Return True if any was there."""
    return files.ensure_absent(ROOT)


def _release(path: pathlib.Path) -> Release:
    note: _Note = json.loads((path / _NOTE).read_text(encoding="utf-8"))
    return Release(note["version"], path)


def _identity(plan: ReleasePlan) -> tuple[list[int], str]:
    if not plan.tarball:
        return [0, 0], plan.sha256.lower()
    found = pathlib.Path(plan.tarball).stat()
    return [found.st_size, found.st_mtime_ns], ""


def _find(source: list[int], sha256: str) -> pathlib.Path | None:
    """A complete release with this checksum or, without one, from this source."""
    for path in sorted(ROOT.glob(f"[0-9]*/{_NOTE}")):
        note: _Note = json.loads(path.read_text(encoding="utf-8"))
        if note["sha256"] == sha256 or (not sha256 and note["source"] == source):
            return path.parent
    return None


def _download(
    plan: ReleasePlan, progress: collections.abc.Callable[[str], None], base_url: str
) -> pathlib.Path:
    name = f"concourse-{plan.version}-linux-{plan.architecture}.tgz"
    folder = _DOWNLOADS / plan.sha256[:8].lower()
    files.ensure_directory(folder)
    for other in set(_DOWNLOADS.iterdir()) - {folder}:
        files.ensure_absent(other)
    progress(f"Downloading {name}")
    download.fetch(f"{base_url}/v{plan.version}/{name}", folder / name, plan.sha256, progress)
    return folder / name


def _unpack(tarball: pathlib.Path, sha256: str, source: list[int]) -> pathlib.Path:
    files.ensure_absent(_UNPACK)
    files.ensure_directory(_UNPACK)
    needed, free = int(tarball.stat().st_size * _UNPACKED), shutil.disk_usage(ROOT).free
    if needed > free:
        raise ReleaseError(
            f"Concourse needs about {_gib(needed)} GiB in {ROOT}, but {_gib(free)} GiB are free: "
            "make room there"
        )
    try:
        # GNU tar takes no member out of the folder: it strips / and refuses .., and makes links
        # that lead out of it last.
        process.run(
            [
                "/usr/bin/tar", "--extract", "--no-same-owner", "--no-same-permissions",
                "--strip-components=1", f"--directory={_UNPACK}", f"--file={tarball}",
            ],
            timeout=1800,
        )  # fmt: skip
    except process.CommandError as error:
        raise ReleaseError(f"{tarball.name} can't be unpacked: {error}") from error
    version = _version(tarball.name)
    path = ROOT / f"{version}-{sha256[:8]}"
    note = _Note(version=version, sha256=sha256, source=source)
    files.ensure_file(_UNPACK / _NOTE, json.dumps(note))
    files.ensure_absent(path)
    files.move(_UNPACK, path)
    return path


def _version(name: str) -> str:
    for needed in _NEEDED:
        if not (_UNPACK / needed).is_file():
            raise ReleaseError(
                f"{name} is no Concourse release for Linux: it has no concourse/{needed}. Give "
                "concourse-<version>-linux-<architecture>.tgz of github.com/concourse/concourse"
            )
    try:
        said = process.run([str(_UNPACK / "bin/concourse"), "--version"], timeout=60)
    except process.CommandError as error:
        raise ReleaseError(
            f"{name} does not run on this machine, maybe it is for another architecture: {error}"
        ) from error
    version = said.stdout.strip()
    if not re.fullmatch(r"[0-9][0-9A-Za-z.+-]*", version):
        raise ReleaseError(f"{name}: concourse --version tells no version: {version!r}")
    return version


def _write_note(path: pathlib.Path, source: list[int]) -> None:
    note: _Note = json.loads((path / _NOTE).read_text(encoding="utf-8"))
    note["source"] = source
    files.ensure_file(path / _NOTE, json.dumps(note))


def _switch(path: pathlib.Path) -> None:
    previous = CURRENT.resolve() if CURRENT.is_symlink() else None
    if previous == path:
        return
    # Before the switch: a hook killed in between repeats it.
    for other in ROOT.iterdir():
        if other not in (path, previous, CURRENT, _DOWNLOADS):
            files.ensure_absent(other)
    files.ensure_symlink(CURRENT, path.name)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f}"
