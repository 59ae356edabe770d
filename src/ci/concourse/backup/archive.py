# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""An archive whose first member lists the names, sizes and hashes of the others.

A reader accepts only the listed members. The archive is an uncompressed tar, so no member is
larger than it appears.
"""

import collections.abc
import hashlib
import io
import json
import os
import pathlib
import re
import tarfile
import typing

_MANIFEST: typing.Final = "manifest.json"
_MOST: typing.Final = 1 << 20  # bytes of the manifest, or of a member that is read at once
_CHUNK: typing.Final = 1 << 20
_NAME: typing.Final = re.compile(r"[a-z][a-z0-9.-]{0,60}")

About: typing.TypeAlias = dict[str, str]


class ArchiveError(Exception):
    """An archive cannot be used. The text names the archive and says why."""


def write(
    path: pathlib.Path,
    kind: str,
    about: About,
    members: collections.abc.Mapping[str, pathlib.Path | bytes],
) -> str:
    """Write an archive that only its owner can read, or none.

    Args:
        path: the new file; its directory must exist.
        kind: the kind of archive and its version, such as `backup/1`.
        about: a description, as names and texts.
        members: the content by name: bytes, or the path of a file.

    Returns:
        The archive's SHA-256, in hex.

    Raises:
        FileExistsError: `path` exists.
    """
    listed = {name: list(_measured(content)) for name, content in members.items()}
    manifest = json.dumps({"kind": kind, "about": about, "files": listed}, indent=1).encode()
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    try:
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w+b") as file:
            os.fchmod(descriptor, 0o600)
            with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
                for name, content in {_MANIFEST: manifest, **members}.items():
                    _add(archive, name, content)
            file.flush()
            os.fsync(descriptor)
            file.seek(0)
            _, digest = _hashed(file)
        # Unlike a rename, a link replaces no file.
        os.link(new, path)
    finally:
        new.unlink(missing_ok=True)
    return digest


def check(path: pathlib.Path, kind: str) -> About:
    """Check all members of an archive, and return its description.

    Raises:
        ArchiveError: the archive is damaged, of another kind, or of another program.
        OSError: the archive cannot be read.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            about, listed = _manifest(archive, path, kind)
            for name, expected in listed.items():
                member = archive.next()
                if member is None or member.name != name or not member.isreg():
                    raise ArchiveError(f"{path} is damaged: {name} is missing or out of order")
                file = archive.extractfile(member)
                if file is None or list(_hashed(file)) != expected:
                    raise ArchiveError(f"{path} is damaged: {name} was changed")
            if archive.next() is not None:
                raise ArchiveError(f"{path} is damaged: it has more members than were written")
    except (tarfile.TarError, EOFError) as error:
        raise ArchiveError(f"{path} is not an archive, or is incomplete: {error}") from error
    return about


def content(path: pathlib.Path, name: str) -> bytes:
    """Read a short member of an archive that was checked."""
    with tarfile.open(path, "r:") as archive:
        file = archive.extractfile(name)
        return file.read(_MOST) if file else b""


def extract(path: pathlib.Path, name: str, destination: pathlib.Path) -> None:
    """Write a member of an archive that was checked into a file that only its owner can read."""
    destination.unlink(missing_ok=True)
    descriptor = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as target, tarfile.open(path, "r:") as archive:
        file = archive.extractfile(name)
        while file and (chunk := file.read(_CHUNK)):
            target.write(chunk)


def _manifest(
    archive: tarfile.TarFile, path: pathlib.Path, kind: str
) -> tuple[About, dict[str, list[int | str]]]:
    """Read an archive's description, and the list of its members."""
    first = archive.next()
    if first is None or first.name != _MANIFEST or not first.isreg() or first.size > _MOST:
        raise ArchiveError(f"{path} is not one of this charm's archives")
    file = archive.extractfile(first)
    try:
        told = json.loads(file.read() if file else b"")
        its_kind, about, listed = told["kind"], dict(told["about"]), dict(told["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{path} is not one of this charm's archives: {error!r}") from error
    if its_kind != kind:
        raise ArchiveError(
            f"{path} is of the kind {its_kind!r}; this revision of the charm accepts {kind!r}"
        )
    texts = all(isinstance(text, str) for text in (*about, *about.values()))
    if not texts or not all(_NAME.fullmatch(name) for name in listed):
        raise ArchiveError(f"{path} is not one of this charm's archives")
    return about, listed


def _add(archive: tarfile.TarFile, name: str, content: pathlib.Path | bytes) -> None:
    member = tarfile.TarInfo(name)
    member.mode = 0o600
    if isinstance(content, bytes):
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
        return
    with content.open("rb") as file:
        member.size = os.fstat(file.fileno()).st_size
        archive.addfile(member, file)


def _measured(content: pathlib.Path | bytes) -> tuple[int, str]:
    if isinstance(content, bytes):
        return len(content), hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return _hashed(file)


def _hashed(file: typing.IO[bytes]) -> tuple[int, str]:
    """Return the size in bytes, and the SHA-256, of the rest of a file."""
    size, digest = 0, hashlib.sha256()
    while chunk := file.read(_CHUNK):
        size += len(chunk)
        digest.update(chunk)
    return size, digest.hexdigest()
