# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Choose the runc that makes containers."""

import typing
from pathlib import Path

# Where packages have it: containerd.io of Docker's, and runc of Debian's and Ubuntu's.
_OWN: typing.Final = (Path("/usr/bin/runc"), Path("/usr/sbin/runc"))


def for_tasks(chosen: str, root: Path = Path("/")) -> str:
    """Return the path of the runc for CI tasks, whether or not it is there.

    Args:
        chosen: that of the CI system; empty: the machine's own.
        root: where the machine's files are.
    """
    return chosen or str(_own(root) or _OWN[0])


def for_engines(fallback: str, root: Path = Path("/")) -> str:
    """Return the path of the runc for podman and Docker: the machine's own, which they use.

    Args:
        fallback: that of the CI system, for a machine without runc, as one with crun; or empty.
        root: where the machine's files are.
    """
    return str(_own(root) or fallback or _OWN[0])


def _own(root: Path) -> Path | None:
    return next((path for path in _OWN if (root / str(path).lstrip("/")).exists()), None)
