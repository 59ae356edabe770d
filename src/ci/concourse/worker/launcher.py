# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Install the script through which the worker starts containerd, so that its runc is our front."""

import typing

from ci.concourse import release, service
from gpu_agent import paths
from machine import files, templates

PATH: typing.Final = paths.BIN / "containerd-launcher"


def ensure() -> bool:
    """Install it where the GPU runtime is installed; return True if anything was changed.

    Call this after the runtime is installed, and before a worker starts through it.
    """
    if not paths.FRONT.exists():
        return False
    script = templates.render(
        service.TEMPLATES, PATH.name, bin=paths.BIN, containerd=release.CURRENT / "bin/containerd"
    )
    return files.ensure_file(PATH, script, mode=0o755)


def remove() -> bool:
    """Remove it; return True if it was there."""
    return files.ensure_absent(PATH)
