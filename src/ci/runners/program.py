# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The runner's program: versions side by side, each named by its content.

A version is never changed, so a runner keeps its version to its end.
"""

import collections.abc
import errno
import os
import pathlib
import time
import typing

from ci.runners.options import Download
from machine import download, files, process
from machine.errors import PartError

HOME: typing.Final = pathlib.Path("/opt/gpu-ci-runners")
"""A folder for each CI service."""

_CURRENT: typing.Final = "current"
# Gitea's runner is one file. GitHub's is an archive, in which these start and tell the version.
_PROGRAM: typing.Final = "runner"
_SCRIPT, _LISTENER = "run.sh", "bin/Runner.Listener"
_GZIP: typing.Final = b"\x1f\x8b"
_ARRIVES: typing.Final = ".download"
# In bytes; Gitea's runner has 32 MiB, GitHub's 200 MiB and more than twice that unpacked.
_LARGEST: typing.Final = 1 << 30
_ROOM: typing.Final = 3.0
_INSTALL: typing.Final = "/usr/bin/install"
_TAR: typing.Final = "/usr/bin/tar"
_COPY: typing.Final = 300.0  # seconds on a busy disk
_START: typing.Final = 30.0  # seconds for the program's answer
_DAY: typing.Final = 86400.0
# 2019-08-01, before GitHub's first runner: an archive with an earlier time has none.
_FIRST: typing.Final = 1564617600.0


class ProgramError(PartError):
    """The runner's program cannot be installed. The text says why, and the next step."""


def installed(service: str, home: pathlib.Path = HOME) -> str:
    """Return the absolute path of the program that new runners of a service have; or empty."""
    folder = (home / service / _CURRENT).resolve()
    there = (folder / name for name in (_PROGRAM, _SCRIPT))
    return next((str(path) for path in there if path.exists()), "")


def age(
    service: str,
    home: pathlib.Path = HOME,
    now: collections.abc.Callable[[], float] = time.time,
) -> int | None:
    """Return how old the release is from which new runners are, in whole days.

    The archive has the time at which the release was built. If that is impossible, the time counts
    since which new runners have this program.

    Args:
        service: the name of the CI service.
        home: where the versions are.
        now: returns the seconds since 1970.

    Returns:
        None if it is not known: there is no such archive, or a clock is wrong.
    """
    current = home / service / _CURRENT
    try:
        times = (current / _LISTENER).stat().st_mtime, current.lstat().st_mtime
    except OSError:
        return None
    at = now()
    since = next((one for one in times if _FIRST <= one <= at), None)
    return None if since is None else int((at - since) // _DAY)


def is_from(service: str, release: Download, home: pathlib.Path = HOME) -> bool:
    """Whether the program that new runners have is of this download."""
    folder = (home / service / _CURRENT).resolve()
    return bool(release.sha256) and folder.name == _version(release.sha256)


def ensure(
    service: str,
    given: str,
    wanted: Download,
    say: collections.abc.Callable[[str], None],
    home: pathlib.Path = HOME,
) -> bool:
    """Make a program the one that new runners have.

    Args:
        service: the name of the CI service.
        given: path of the resource; empty: there is none.
        wanted: what to download instead; nothing if it has no URL.
        say: reports a step that takes long.
        home: where the versions are.

    Returns:
        Whether anything was changed.

    Raises:
        ProgramError: it does not start on this machine.
        machine.download.DownloadError: it cannot be downloaded.
    """
    if not given and not wanted.url:
        return False
    sha256 = download.sha256_of(pathlib.Path(given)) if given else wanted.sha256
    versions = home / service
    target, changed = versions / _version(sha256), False
    files.ensure_directory(versions)
    # It gets its name once it is complete.
    if not target.exists():
        source = pathlib.Path(given) if given else _fetch(wanted, say, versions)
        _install(source, target)
        changed = True
    files.ensure_absent(versions / _ARRIVES)
    changed |= files.ensure_symlink(versions / _CURRENT, target.name)
    return _remove_others(versions, target) or changed


def remove(service: str, home: pathlib.Path = HOME) -> bool:
    """Remove all versions of a service's program. Return True if any was there."""
    removed = files.ensure_absent(home / service)
    files.remove_if_empty(home)
    return removed


def _version(sha256: str) -> str:
    return sha256[:16]


def _fetch(
    wanted: Download, say: collections.abc.Callable[[str], None], versions: pathlib.Path
) -> pathlib.Path:
    folder = versions / _ARRIVES
    files.ensure_directory(folder)
    arrives = folder / _version(wanted.sha256)
    bounds = download.Bounds(size=_LARGEST, room=_ROOM)
    remedy = "Check the option runner-download"

    def progress(how_far: str) -> None:
        say(f"Downloading the runner's program: {how_far}")

    progress("begins")
    download.fetch(wanted.url, arrives, wanted.sha256, progress, bounds, remedy)
    return arrives


def _install(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy or unpack a program to its place, once it is seen to start here."""
    new = target.with_name(f".{target.name}")
    files.ensure_absent(new)
    files.ensure_directory(new)
    try:
        with source.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
        if packed:
            options = ("--extract", "--gzip", "--no-same-owner", "--no-same-permissions")
            process.run(
                [_TAR, *options, "--directory", str(new), "--file", str(source)], timeout=_COPY
            )
        else:
            process.run([_INSTALL, "--mode=755", str(source), str(new / _PROGRAM)], timeout=_COPY)
        starts = new / (_LISTENER if packed else _PROGRAM)
        process.run([str(starts), "--version"], timeout=_START)
        files.move(new, target)
    except (process.CommandError, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ProgramError(
            f"The runner's program does not start on this machine ({os.uname().machine}): "
            f"{error}. Give the one for it: of Gitea the program itself, not an .xz; of GitHub "
            "its .tar.gz"
        ) from error
    finally:
        files.ensure_absent(new)


def _remove_others(versions: pathlib.Path, kept: pathlib.Path) -> bool:
    """Remove versions that no new runner gets, and that no runner has.

    A running program keeps its file until it ends, even if the file is removed.
    """
    others = [one for one in files.entries(versions) if one.name not in (_CURRENT, kept.name)]
    for one in others:
        files.ensure_absent(one)
    return bool(others)
