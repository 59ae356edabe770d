# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""JSON files: read whole, and replaced so that every reader sees the old text or the new."""

from __future__ import annotations

import json
import os
import stat

from gpuci.shapes import table


def read_object(path: str) -> dict[str, object]:
    """The JSON object in the file at `path`.

    Raises:
        OSError: the file can't be read.
        ValueError: it holds something else; the text says what.
    """
    with open(path, "rb") as file:
        content = file.read()
    try:
        value: object = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    found = table(value)
    if found is not value:
        raise ValueError("it is not a JSON object")
    return found


def replace(path: str, value: dict[str, object], *, like: str = "") -> None:
    """Put `value` as JSON in the place of the file at `path`, or make that file.

    It gets the mode and owner of the file `like`; without one it is root's own (0600). There is no
    fsync: this guards against being killed, not against power loss, which no container outlives.

    Raises:
        OSError: the file can't be replaced; it is then as it was.
        ValueError: `value` holds a number that JSON does not have.
    """
    content = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    beside = f"{path}.gpu-ci"
    _remove(beside)  # what a call killed half-way left
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(beside, flags, 0o600)
    try:
        try:
            while content:
                content = content[os.write(descriptor, content) :]
            if like:
                found = os.lstat(like)
                os.fchown(descriptor, found.st_uid, found.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
        finally:
            os.close(descriptor)
        os.rename(beside, path)
    except OSError:
        _remove(beside)
        raise


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
