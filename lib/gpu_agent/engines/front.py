# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Install the shell script of the runtime `gpu-ci`, and NVIDIA's configuration for it."""

import re

from gpu_agent import paths as wrapper
from gpu_agent.runtime import nvidia_config as nvidia
from gpu_agent.runtime import runc as runcs
from machine import files, templates

HOME = wrapper.ENGINES
FRONT = HOME / "gpu-ci"
CONFIG = wrapper.ENGINES_CONFIG


def apply(*, nvidia_runtime: bool, runc: str = "") -> bool:
    """Install the runtime, beside the GPU runtime for tasks; return True if anything was changed.

    Args:
        nvidia_runtime: whether NVIDIA's runtime adds the GPUs.
        runc: that of the CI system, for a machine without its own; empty: there is none.

    Raises:
        gpu_agent.runtime.nvidia_config.ConfigError: the packaged configuration of that can't be
            read.
    """
    runc = runcs.for_engines(runc)
    if nvidia_runtime:
        files.ensure_directory(CONFIG)
        changed = nvidia.configure(CONFIG, runc)
    else:
        changed = files.ensure_absent(CONFIG)
    files.ensure_directory(HOME)
    content = templates.render(
        wrapper.TEMPLATES,
        "gpu-ci",
        runc=runc,
        python=wrapper.PYTHON,
        lib=wrapper.BACK_END,
        store=wrapper.STORE,
        policy=wrapper.POLICY,
        home=HOME,
        log=wrapper.LOG,
        config_home=CONFIG,
    )
    return files.ensure_file(FRONT, content, mode=0o755) or changed


def runc() -> str:
    """Return the path of the runtime that the installed one becomes."""
    found = re.search("^runc='(.*)'$", files.read_text(FRONT) or "", re.MULTILINE)
    return found.group(1) if found else runcs.for_engines("")


def remove() -> bool:
    """Remove the runtime, which no engine may use any more; return True if it was there."""
    changed = files.ensure_absent(HOME) | files.ensure_absent(CONFIG)
    files.remove_if_empty(wrapper.HOME)
    return changed
