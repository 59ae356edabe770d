# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One file with several in it, whose first tells what the others must be; no more is believed.

It is a tar that is not compressed, so that nothing in it is larger than it looks.
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
    """An archive can't be used. The text names it and says why."""


def write(
    path: pathlib.Path,
    kind: str,
    about: About,
    members: collections.abc.Mapping[str, pathlib.Path | bytes],
) -> str:
    """Write an archive that only its owner can read, or none.

    Args:
        path: where; nothing may be there, and its directory must exist.
        kind: what kind of archive, with its version, such as `backup/1`.
        about: what is to be told of it.
        members: what is in it: bytes, or the file that has them.

    Returns:
        Its SHA-256, in hex.

    Raises:
        FileExistsError: if something has that name.
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
        # Unlike a rename, this takes nobody's place.
        os.link(new, path)
    finally:
        new.unlink(missing_ok=True)
    return digest


def check(path: pathlib.Path, kind: str) -> About:
    """What an archive tells of itself, after all that is in it was found to be what it must be.

    Raises:
        ArchiveError: if it is damaged, foreign, or of another kind.
        OSError: if it can't be read.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            about, listed = _manifest(archive, path, kind)
            for name, expected in listed.items():
                member = archive.next()
                if member is None or member.name != name or not member.isreg():
                    raise ArchiveError(f"{path} has no {name} where it should: it is damaged")
                file = archive.extractfile(member)
                if file is None or list(_hashed(file)) != expected:
                    raise ArchiveError(
                        f"{path} has another {name} than was written: it is damaged"
                    )
            if archive.next() is not None:
                raise ArchiveError(f"{path} has more in it than was written")
    except (tarfile.TarError, EOFError) as error:
        raise ArchiveError(f"{path} is no archive, or a part of one: {error}") from error
    return about


def content(path: pathlib.Path, name: str) -> bytes:
    """A short member of an archive that was checked."""
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
    """What an archive tells of itself, and of its members."""
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
            f"{path} is of the kind {its_kind!r}, and this revision of the charm takes {kind!r}"
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
    """Size in bytes and SHA-256 of what is left of a file."""
    size, digest = 0, hashlib.sha256()
    while chunk := file.read(_CHUNK):
        size += len(chunk)
        digest.update(chunk)
    return size, digest.hexdigest()
