# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Implement `lab fetch concourse`: download the pinned release once, about 1 GB, and verify it."""

import hashlib
import pathlib
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import BinaryIO

from tests.lab.errors import LabError

# The sha256 and size: concourse-bosh-release v8.3.0, config/blobs.yml.
VERSION = "8.3.0"
URL = (
    f"https://github.com/concourse/concourse/releases/download/v{VERSION}/"
    f"concourse-{VERSION}-linux-amd64.tgz"
)
SHA256 = "320b0cde214893378213d1f2f38eb515c55d0d8128185b076fd7ce555bf09e2c"
SIZE = 934187372
CACHED = pathlib.Path(f"/var/cache/gpu-ci-lab/concourse-{VERSION}-linux-amd64.tgz")
CHUNK = 1 << 20


def fetch(say: Callable[[str], None]) -> pathlib.Path:
    """Download the release, or resume an interrupted download.

    Raises:
        LabError: the server does not send it, or sends another file.
    """
    if CACHED.is_file():
        say(f"{CACHED} exists already")
        return CACHED
    CACHED.parent.mkdir(parents=True, exist_ok=True)
    part = CACHED.with_suffix(".part")
    if not part.exists() or part.stat().st_size < SIZE:
        _download(part, say)
    say("verifying its checksum")
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else None
        digest = found.hexdigest() if found else _digest(file)
    if digest != SHA256:
        part.unlink()
        raise LabError(f"{URL} has sha256 {digest}, not {SHA256}: it was deleted")
    part.rename(CACHED)
    say(f"{CACHED} is ready: `lab up` uses it from now on")
    return CACHED


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _download(part: pathlib.Path, say: Callable[[str], None]) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(URL, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            # 206: the server resumes where we stopped; else it starts again.
            resumed = answer.status == 206
            have = have if resumed else 0
            say(f"downloading {URL}" + (f" from {have >> 20} MiB on" if resumed else ""))
            with open(part, "ab" if resumed else "wb") as file:
                have = _copy(answer, file, have, say)
            if have < SIZE:
                raise OSError(f"the connection ended after {have} of {SIZE} bytes")
    except (OSError, urllib.error.URLError) as error:
        raise LabError(
            f"cannot download {URL}: {error}; run it again to resume, or set "
            "GPUCI_CONCOURSE_TARBALL to a copy"
        ) from error


def _copy(source: BinaryIO, file: BinaryIO, have: int, say: Callable[[str], None]) -> int:
    shown = -1
    while chunk := source.read(CHUNK):
        file.write(chunk)
        have += len(chunk)
        percent = have * 100 // SIZE
        if percent // 5 != shown:
            shown = percent // 5
            say(f"{have >> 20} of {SIZE >> 20} MiB ({percent} %)")
    return have
