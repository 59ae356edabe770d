# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm resource selftest-wheels: an archive of Python wheels that somebody made elsewhere."""

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
# A kit's wheels take 3 GiB; an archive that claims far more is no archive of wheels.
_MOST_BYTES: typing.Final = 16 << 30
_MOST_MEMBERS: typing.Final = 1000


class ArchiveError(Exception):
    """The archive can't be used. The text names it and what is wrong with it."""


def unpack(archive: pathlib.Path, folder: pathlib.Path, progress: Progress) -> list[pathlib.Path]:
    """Unpack a tar, in any compression that tarfile and GNU tar know, or a zip of wheels.

    Args:
        archive: the file.
        folder: where it goes.
        progress: told what happens; gigabytes take a while.

    Returns:
        The folders that have wheels in them.

    Raises:
        ArchiveError: if it is no such archive, is cut off, or has anything in it but wheels in
            folders below it.
        machine.process.CommandError: if it can't be unpacked.
    """
    progress(f"Unpacking {archive.name}")
    try:
        # zipfile.is_zipfile looks at the end, where a tar may have the last wheel, which is a zip.
        with archive.open("rb") as file:
            zipped = file.read(2) == b"PK"
        members = list(_in_zip(archive) if zipped else _in_tar(archive))
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise ArchiveError(f"selftest-wheels is no whole tar or zip: {error}") from error
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
                # The upper half is the file's mode, where a link would be one (S_IFLNK).
                link = member.external_attr >> 28 == 0o12
                yield _Member(member.filename, member.file_size, not link)


def _check(members: list[_Member]) -> None:
    for member in members:
        path = pathlib.PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise ArchiveError(f"selftest-wheels has {member.name!r} in it, which leads out of it")
        if not member.is_plain or path.suffix != ".whl":
            raise ArchiveError(f"selftest-wheels has {member.name!r} in it, which is no wheel")
    if not members:
        raise ArchiveError("selftest-wheels has no wheel in it")
    size = sum(member.size for member in members)
    if size > _MOST_BYTES or len(members) > _MOST_MEMBERS:
        raise ArchiveError(
            f"selftest-wheels is too large: {len(members)} files with {size >> 30} GiB, "
            f"and at most {_MOST_MEMBERS} with {_MOST_BYTES >> 30} GiB are taken"
        )
