# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make a release whose tasks have control groups as in an unprivileged LXD container on v1.

A whole machine of that kind would need ID-mapped mounts for its root. The worker of this one is
root of the machine, and device rules keep its tasks from other GPUs.
"""

import io
import pathlib
import tarfile

from tests.lab import cgroups
from tests.lab.errors import WrongUse

HELP = (
    "what runc executes in a container joins its group in v2's hierarchy alone, as in an "
    "unprivileged LXD container on a host with cgroup v1"
)
RUNC = "concourse/bin/runc"
_STAND_IN = pathlib.Path(__file__).with_name("runc-in-v2-alone")


def obstacle() -> str:
    """Return why that is not possible here; or empty."""
    return "" if (cgroups.ROOT / "unified").is_dir() else "needs cgroup v1 with v2 beside it"


def release(real: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    """Write a release with the stand-in in the place of its runc, and return its path.

    The charm takes it as its resource, so that all that finds or checks runc finds this one.

    Raises:
        WrongUse: there can be none here, or the tarball has no runc.
    """
    if why := obstacle():
        raise WrongUse(f"--nested: {why}")
    found = False
    # Compressed as little as can be: the real one unpacks to gigabytes.
    with (
        tarfile.open(real, "r|gz") as source,
        tarfile.open(path, "w:gz", compresslevel=1) as target,
    ):
        for member in source:
            content = source.extractfile(member) if member.isfile() else None
            if member.name.removeprefix("./") == RUNC:
                found = True
                text = _STAND_IN.read_bytes()
                front = tarfile.TarInfo(member.name)
                front.size, front.mode, front.mtime = len(text), 0o755, member.mtime
                target.addfile(front, io.BytesIO(text))
                member.name += ".real"
            target.addfile(member, content)
    if not found:
        raise WrongUse(f"--nested: {real} has no {RUNC}")
    return path
