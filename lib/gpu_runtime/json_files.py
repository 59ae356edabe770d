# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read JSON files, and replace them so that each reader sees the old text or the new."""

from __future__ import annotations

import os
import stat

from gpu_runtime.fast_json import dumps, loads
from gpu_runtime.json_shape import table


def read_bytes(path: str) -> bytes:
    """Return the content of the file at `path`.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def read_object(path: str, names: frozenset[str] | None = None) -> dict[str, object]:
    """Return the JSON object in the file at `path`.

    Args:
        path: the file.
        names: the names that a program in Go looks for in it (fast_json.loads).

    Raises:
        OSError: the file can't be read.
        ValueError: it does not hold a JSON object, or can be read in two ways.
    """
    value = loads(read_bytes(path), names)
    found = table(value)
    if found is not value:
        raise ValueError("it is not a JSON object")
    return found


def replace(path: str, value: dict[str, object], *, like: str = "") -> None:
    """Replace or create the file at `path` with `value` as JSON.

    It gets the mode and owner of the file `like`; without one, mode 0600. There is no fsync: this
    protects from being killed, not from power loss, which no container survives.

    Raises:
        OSError: the file can't be replaced; it is then as it was.
        ValueError: `value` holds a number that JSON does not have.
    """
    content = dumps(value).encode()
    beside = f"{path}.gpu-ci"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(beside, flags, 0o600)
    except FileExistsError:  # left by a killed call
        os.unlink(beside)
        descriptor = os.open(beside, flags, 0o600)
    try:
        try:
            while content:
                content = content[os.write(descriptor, content) :]
            if like:
                found = os.stat(like)  # not lstat: a link's own mode is 0777
                os.fchown(descriptor, found.st_uid, found.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
        finally:
            os.close(descriptor)
        os.rename(beside, path)
    except OSError as error:
        error.filename = error.filename or path  # a write does not set it
        remove(beside)
        raise


def remove(path: str) -> None:
    """Remove the file at `path` if it is there.

    Raises:
        OSError: it can't be removed.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
