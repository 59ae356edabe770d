# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Unpack the charm resource selftest-wheels: an archive of Python wheels from another machine."""

import collections.abc
import pathlib
import tarfile
import typing
import zipfile
import zlib

from gpu_agent import paths as wrapper
from gpu_selftest.check import Progress
from machine import files, process

_TIMEOUT: typing.Final = 1800.0
# A kit's wheels take 3 GiB; an archive that claims far more is not an archive of wheels.
_MOST_BYTES: typing.Final = 16 << 30
_MOST_MEMBERS: typing.Final = 1000


class ArchiveError(Exception):
    """The archive can't be used. The text names it and says what is wrong with it."""


def unpack(archive: pathlib.Path, folder: pathlib.Path, progress: Progress) -> list[pathlib.Path]:
    """Unpack a zip, or a tar in any compression that tarfile and GNU tar know.

    Args:
        archive: the file.
        folder: the target folder.
        progress: called with a text at the start; gigabytes take a while.

    Returns:
        The folders that contain wheels.

    Raises:
        ArchiveError: the file is not such an archive, is cut off, or contains other things than
            wheels in its folders.
        machine.process.CommandError: it can't be unpacked.
    """
    progress(f"Unpacking {archive.name}")
    try:
        # zipfile.is_zipfile looks at the end, where a tar may have its last wheel, which is a zip.
        with archive.open("rb") as file:
            zipped = file.read(2) == b"PK"
        members = list(_in_zip(archive) if zipped else _in_tar(archive))
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise ArchiveError(f"selftest-wheels is not a complete tar or zip: {error}") from error
    _check(members)
    files.ensure_directory(folder)
    if zipped:
        argv = [wrapper.PYTHON, "-m", "zipfile", "--extract", str(archive), str(folder)]
    else:
        argv = [
            "/usr/bin/tar", "--extract", "--no-same-owner", "--no-same-permissions",
            f"--directory={folder}", f"--file={archive}",
        ]  # fmt: skip
    process.run(argv, timeout=_TIMEOUT)
    return sorted({path.parent for path in folder.rglob("*.whl")})


class _Member(typing.NamedTuple):
    name: str
    size: int
    is_plain: bool


def _in_tar(archive: pathlib.Path) -> collections.abc.Iterator[_Member]:
    with tarfile.open(archive) as opened:
        for member in opened:
            if not member.isdir():
                yield _Member(member.name, member.size, member.isreg())


def _in_zip(archive: pathlib.Path) -> collections.abc.Iterator[_Member]:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            if not member.is_dir():
                # The upper half is the file's mode, which shows links (S_IFLNK).
                link = member.external_attr >> 28 == 0o12
                yield _Member(member.filename, member.file_size, not link)


def _check(members: list[_Member]) -> None:
    for member in members:
        path = pathlib.PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise ArchiveError(f"selftest-wheels contains {member.name!r}, which leads out of it")
        if not member.is_plain or path.suffix != ".whl":
            raise ArchiveError(f"selftest-wheels contains {member.name!r}, which is not a wheel")
    if not members:
        raise ArchiveError("selftest-wheels contains no wheel")
    size = sum(member.size for member in members)
    if size > _MOST_BYTES or len(members) > _MOST_MEMBERS:
        raise ArchiveError(
            f"selftest-wheels is too large: {len(members)} files with {size >> 30} GiB; at most "
            f"{_MOST_MEMBERS} files with {_MOST_BYTES >> 30} GiB are accepted"
        )
