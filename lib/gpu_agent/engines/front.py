# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The runtime `gpu-ci` itself: its front, and the NVIDIA runtime's configuration for it."""

from pathlib import Path

from gpu_agent import paths as wrapper
from gpu_agent.runtime import nvidia_config as nvidia
from machine import files, templates

HOME = wrapper.ENGINES
FRONT = HOME / "gpu-ci"
CONFIG = wrapper.ENGINES_CONFIG

# The machine's own, which its engines know; without one, as where podman has crun, Concourse's.
_RUNC = (Path("/usr/bin/runc"), Path("/usr/sbin/runc"), Path(wrapper.RUNC))


def apply(*, nvidia_runtime: bool) -> bool:
    """Have the runtime, beside a wrapper that is there; True if anything was changed.

    Args:
        nvidia_runtime: whether NVIDIA's runtime brings the GPUs in.

    Raises:
        gpu_agent.runtime.nvidia_config.ConfigError: the packaged configuration of that can't be
            read.
    """
    if nvidia_runtime:
        files.ensure_directory(CONFIG)
        changed = nvidia.configure(CONFIG, str(runc()))
    else:
        changed = files.ensure_absent(CONFIG)
    files.ensure_directory(HOME)
    content = templates.render(
        wrapper.TEMPLATES,
        "gpu-ci",
        runc=runc(),
        python=wrapper.PYTHON,
        lib=wrapper.BACK_END,
        store=wrapper.STORE,
        policy=wrapper.POLICY,
        home=HOME,
        log=wrapper.LOG,
        config_home=CONFIG,
    )
    return files.ensure_file(FRONT, content, mode=0o755) or changed


def runc() -> Path:
    """The runtime that ours goes on as."""
    return next((path for path in _RUNC if path.exists()), _RUNC[-1])


def remove() -> bool:
    """Take the runtime away, which no engine may know any more; True if it was there."""
    changed = files.ensure_absent(HOME) | files.ensure_absent(CONFIG)
    files.remove_if_empty(wrapper.HOME)
    return changed
