# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Concourse itself: releases side by side under /opt/concourse, `current` points at one.

A release's folder gets its name only when it is complete and its own binary has told its version,
so that a hook killed at any point leaves nothing that the next one would take for a release.
Whether it is of use here is seen once web and worker were started from it: see
`ci.concourse.upgrade.trial`.
"""

import collections.abc
import dataclasses
import json
import pathlib
import re
import shutil
import time
import typing

from ci.concourse.plan import messages
from ci.concourse.plan.model import ReleasePlan
from ci.concourse.upstream import RELEASES, tarball, works_with
from gpu_agent.model import versions
from machine import download, files, process
from machine.errors import PartError
from plan.messages import Line

ROOT: typing.Final = pathlib.Path("/opt/concourse")
CURRENT: typing.Final = ROOT / "current"

_UNPACK: typing.Final = ROOT / ".unpack"
_DOWNLOADS: typing.Final = ROOT / ".download"
_NOTE: typing.Final = ".release.json"
# In its folder, once web and worker have answered on this release.
_PROVEN: typing.Final = ".proven"
# In its folder: in which boot `current` was pointed to it, and when, in seconds of
# CLOCK_MONOTONIC, by which systemd tells the start of a service.
_SWITCHED: typing.Final = ".switched.json"
_BOOT: typing.Final = pathlib.Path("/proc/sys/kernel/random/boot_id")
_FAILED: typing.Final = ".failed.json"
_SYNC: typing.Final = "/usr/bin/sync"
_NEEDED: typing.Final = ("bin/concourse", "bin/containerd", "bin/runc")

# An unpacked release takes about 1.5 times its tarball; binaries shrink to less than half in it,
# the resource types, which are most of it, are packed themselves.
_UNPACKED: typing.Final = 2.5
# Bytes that are left of a disk which is full: no whole file of tar's, with a file system's own.
_FULL: typing.Final = 4 << 20


class ReleaseError(PartError):
    """Concourse can't be installed. The text says why, and the next step."""


class _NoReleaseError(ReleaseError):
    """A tarball is not a Concourse release for this machine. The text says why."""


@dataclasses.dataclass(frozen=True)
class Release:
    """A release on this machine, by the version that its own binary reports.

    Attributes:
        waits: why it is used instead of the wanted one; None if it is the wanted one.
        failed: why the upgrade to the wanted one was rolled back; or empty.
    """

    version: str
    path: pathlib.Path
    waits: Line | None = None
    failed: str = ""


class _Note(typing.TypedDict):
    """What is written beside a release: where it came from.

    Attributes:
        source: size in bytes and time of change in nanoseconds of the charm resource, so that it
            need not be hashed again; [0, 0] for a download.
        files: SHA-256 of the programs that are started first, to know them again by.
    """

    version: str
    sha256: str
    source: list[int]
    files: dict[str, str]


class _Failed(typing.TypedDict):
    """A release that was left again, since web or worker did not answer on it.

    Attributes:
        release: name of its folder.
        before: name of the folder of the one that runs instead.
        charm: tells this revision of the charm from the next.
    """

    release: str
    before: str
    why: str
    charm: int


def installed() -> Release | None:
    """The release that `current` points at; None if there is none."""
    return _release(CURRENT.resolve()) if (CURRENT / _NOTE).exists() else None


def ensure(
    plan: ReleasePlan,
    progress: collections.abc.Callable[[str], None],
    is_time: collections.abc.Callable[[str], bool] = lambda _: True,
    *,
    base_url: str = RELEASES,
) -> Release:
    """Make the release of the plan `current`, keep the previous one, and return the current one.

    The new release does not become `current` while this worker's webs schedule only on the old
    one, or if it has failed with this revision of the charm. A release from the resource stays in
    use if the resource is empty now.

    Args:
        plan: if it has a tarball, nothing is downloaded.
        progress: reports steps that take long.
        is_time: whether this version may replace another one now.
        base_url: where releases are, each in a folder `v<version>`, unless the plan names it.

    Raises:
        ReleaseError: if the tarball is not a release, or cannot be unpacked.
        machine.download.DownloadError: if it can't be downloaded.
    """
    now, failed = installed(), _failed()
    if now and _has_lost_its_resource(now, plan):
        waits = messages.line("release-resource-empty", version=now.version, attach=plan.attach)
        return dataclasses.replace(now, waits=waits)
    wanted = _release(_have(plan, progress, plan.mirror or base_url))
    if failed and failed["release"] == wanted.path.name:
        wanted = dataclasses.replace(_release(ROOT / failed["before"]), failed=failed["why"])
    else:
        files.ensure_absent(ROOT / _FAILED)
    switches = now is not None and now.path != wanted.path
    if now and switches and (waits := _waits(wanted, now, plan.webs)):
        return dataclasses.replace(now, waits=waits)
    if now and switches and not is_time(wanted.version):
        return now
    if (now is None or now.path != wanted.path) and not _is_sound(wanted.path):
        files.ensure_absent(wanted.path)
        wanted = _release(_have(plan, progress, plan.mirror or base_url))
    _switch(wanted.path)
    files.ensure_absent(_DOWNLOADS)
    return wanted


def is_from(tarball: pathlib.Path) -> bool:
    """Whether an installed release was unpacked from this very file."""
    try:
        found = tarball.stat()
    except FileNotFoundError:
        return False
    return _find([found.st_size, found.st_mtime_ns], "") is not None


def is_proven(path: pathlib.Path) -> bool:
    """Whether web and worker have answered on a release."""
    return (path / _PROVEN).exists()


def prove(path: pathlib.Path) -> None:
    """Note that web and worker have answered on a release."""
    files.ensure_file(path / _PROVEN, "")


def is_older_than_switch(started: float) -> bool:
    """Whether what was started then, in seconds of CLOCK_MONOTONIC, runs an earlier release.

    What runs in another boot than that of the switch was started after it.
    """
    # A charm before this one noted none.
    boot, switched = json.loads(files.read_text(CURRENT / _SWITCHED) or '["", 0]')
    return boot == _BOOT.read_text() and started < switched


def before() -> Release | None:
    """The release beside `current` that has proven itself here; None if there is none."""
    now = CURRENT.resolve()
    others = [path for path in _all() if path != now and is_proven(path)]
    return _release(others[-1]) if others else None


def give_up(path: pathlib.Path, instead: Release, why: str) -> None:
    """Have `ensure` take another release instead of this one.

    Until one of another name is asked for, or the charm is refreshed.
    """
    note = _Failed(release=path.name, before=instead.path.name, why=why, charm=_charm())
    files.ensure_file(ROOT / _FAILED, json.dumps(note))


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


def _have(
    plan: ReleasePlan, progress: collections.abc.Callable[[str], None], base_url: str
) -> pathlib.Path:
    """Have the release of the plan unpacked, used or not."""
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
        try:
            found = _unpack(tarball, sha256, source, "" if plan.tarball else plan.version)
        except _NoReleaseError as error:
            if not plan.tarball:
                raise
            text = f"The resource concourse is not a release ({error}): {plan.attach}"
            raise ReleaseError(text) from error
    return found


def _has_lost_its_resource(now: Release, plan: ReleasePlan) -> bool:
    """Whether the release that runs came as the resource, which is empty, and is as good.

    Juju empties it where an `attach-resource` fails, or an application is deployed once more.
    """
    if plan.tarball or plan.is_named or _find([0, 0], plan.sha256.lower()):
        return False
    note: _Note = json.loads((now.path / _NOTE).read_text(encoding="utf-8"))
    is_same = versions.numbers(now.version)[:3] == versions.numbers(plan.version)
    return is_same and note["source"] != [0, 0]


def _waits(wanted: Release, now: Release, webs: tuple[str, ...]) -> Line | None:
    """Return why the wanted release must wait: its webs would not schedule on it. Else None."""
    left = [web for web in webs if not works_with(wanted.version, web)]
    if not left or not all(works_with(now.version, web) for web in webs):
        return None
    return messages.line("release-waits-for-web", wanted=wanted.version, web=left[0])


def _failed() -> _Failed | None:
    """What was given up, as long as that counts."""
    text = files.read_text(ROOT / _FAILED)
    if text is None:
        return None
    found: _Failed = json.loads(text)
    there = (ROOT / found["before"] / _NOTE).exists()
    return found if there and found["charm"] == _charm() else None


def _charm() -> int:
    # Juju writes each file of the charm again on a refresh.
    return pathlib.Path(__file__).stat().st_ctime_ns


def _all() -> list[pathlib.Path]:
    """The folders of complete releases."""
    return [path.parent for path in sorted(ROOT.glob(f"[0-9]*/{_NOTE}"))]


def _find(source: list[int], sha256: str) -> pathlib.Path | None:
    """A complete release with this checksum or, without one, from this source."""
    for path in _all():
        note: _Note = json.loads((path / _NOTE).read_text(encoding="utf-8"))
        if note["sha256"] == sha256 or (not sha256 and note["source"] == source):
            return path
    return None


def _is_sound(path: pathlib.Path) -> bool:
    """Whether a release that was unpacked before still is what it was, and runs here."""
    note: _Note = json.loads((path / _NOTE).read_text(encoding="utf-8"))
    try:
        # Earlier revisions of the charm noted none.
        same = note.get("files") in (None, _digests(path))
        return same and _version(path, path.name) == note["version"]
    except (ReleaseError, FileNotFoundError):
        return False


def _digests(path: pathlib.Path) -> dict[str, str]:
    return {name: download.sha256_of(path / name) for name in _NEEDED}


def _download(
    plan: ReleasePlan, progress: collections.abc.Callable[[str], None], base_url: str
) -> pathlib.Path:
    path = tarball(plan.version, plan.architecture)
    name = path.rpartition("/")[2]
    folder = _DOWNLOADS / plan.sha256[:8].lower()
    files.ensure_directory(folder)
    for other in set(_DOWNLOADS.iterdir()) - {folder}:
        files.ensure_absent(other)
    progress(f"Downloading {name}")
    url = f"{base_url}/{path}"
    bounds = download.Bounds(room=_UNPACKED)
    remedy = f"Check concourse-version and concourse-mirror, or {plan.attach}"
    try:
        download.fetch(url, folder / name, plan.sha256, progress, bounds, remedy)
    except download.UnreachableError as error:
        raise download.UnreachableError(f"{error}, or {plan.attach}") from error
    return folder / name


def _unpack(tarball: pathlib.Path, sha256: str, source: list[int], expected: str) -> pathlib.Path:
    """Unpack a release under its own name.

    Args:
        tarball: whose checksum is known to be right.
        sha256: that checksum.
        source: see _Note.
        expected: the version that it has to tell; empty: any.
    """
    try:
        _extract(tarball)
        version = _version(_UNPACK, tarball.name)
        if expected and versions.numbers(version)[:3] != versions.numbers(expected):
            raise ReleaseError(
                f"{tarball.name} is Concourse {version} and not {expected}: correct the version "
                "or the checksum in concourse-version"
            )
        path = ROOT / f"{version}-{sha256[:8]}"
        note = _Note(version=version, sha256=sha256, source=source, files=_digests(_UNPACK))
        files.ensure_file(_UNPACK / _NOTE, json.dumps(note))
        # Else a machine that loses its power soon may find a complete folder of empty files.
        process.run([_SYNC, "--file-system", str(_UNPACK)], timeout=600)
    except (ReleaseError, process.CommandError, OSError):
        files.ensure_absent(_UNPACK)  # on a full disk it would be in everybody's way
        raise
    files.ensure_absent(path)
    files.move(_UNPACK, path)
    return path


def _extract(tarball: pathlib.Path) -> None:
    files.ensure_absent(_UNPACK)
    files.ensure_directory(_UNPACK)
    _check_room(int(tarball.stat().st_size * _UNPACKED))
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
        if shutil.disk_usage(ROOT).free < _FULL:
            raise ReleaseError(
                f"{tarball.name} can't be unpacked: the disk of {ROOT} is full: make room there"
            ) from error
        said = error.stderr.strip().partition("\n")[0] or error
        raise _NoReleaseError(f"{tarball.name} can't be unpacked: {said}") from error


def _check_room(needed: int) -> None:
    """Make room on the disk, or say that there is none."""
    if needed > shutil.disk_usage(ROOT).free:
        way_back = before()
        _clear(CURRENT.resolve(), way_back and way_back.path, _UNPACK)
    free = shutil.disk_usage(ROOT).free
    if needed > free:
        raise ReleaseError(
            f"Concourse needs about {_gib(needed)} GiB in {ROOT}, but {_gib(free)} GiB are free: "
            "make room there"
        )


def _version(folder: pathlib.Path, name: str) -> str:
    """Return the version that a release reports; `name` is its name for the operator."""
    for needed in _NEEDED:
        if not (folder / needed).is_file():
            raise _NoReleaseError(
                f"{name} is no Concourse release for Linux: it has no concourse/{needed}. Give "
                "concourse-<version>-linux-<architecture>.tgz of github.com/concourse/concourse"
            )
    try:
        said = process.run([str(folder / "bin/concourse"), "--version"], timeout=60)
    except process.CommandError as error:
        raise _NoReleaseError(
            f"{name} does not run on this machine, maybe it is for another architecture: {error}"
        ) from error
    version = said.stdout.strip()
    if not re.fullmatch(r"[0-9][0-9A-Za-z.+-]*", version):
        raise _NoReleaseError(f"{name}: concourse --version tells no version: {version!r}")
    return version


def _write_note(path: pathlib.Path, source: list[int]) -> None:
    note: _Note = json.loads((path / _NOTE).read_text(encoding="utf-8"))
    note["source"] = source
    files.ensure_file(path / _NOTE, json.dumps(note))


def _switch(path: pathlib.Path) -> None:
    previous = CURRENT.resolve() if CURRENT.is_symlink() else None
    if previous == path:
        return
    way_back = before()
    if way_back and way_back.path != path and not (previous and is_proven(previous)):
        previous = way_back.path
    # Before the switch: a hook killed in between repeats it.
    _clear(path, previous)
    files.ensure_file(path / _SWITCHED, json.dumps([_BOOT.read_text(), time.monotonic()]))
    files.ensure_symlink(CURRENT, path.name)
    _clear(previous)


def _clear(*kept: pathlib.Path | None) -> None:
    """Remove all but these, the release that is `current`, and what is being downloaded."""
    for other in ROOT.iterdir():
        if other not in (*kept, CURRENT, CURRENT.resolve(), _DOWNLOADS, ROOT / _FAILED):
            files.ensure_absent(other)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f}"
