# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Install the shell script of the runtime `gpu-ci`, and NVIDIA's configuration for it."""

import dataclasses
import re
from pathlib import Path
from typing import Final

from gpu_agent import paths as wrapper
from gpu_agent.runtime import nvidia_config as nvidia
from gpu_agent.runtime import runc as runcs
from machine import files, templates

PATH: Final = wrapper.ENGINES / "gpu-ci"
"""The runtime, as engines name it in their configuration."""


@dataclasses.dataclass(frozen=True)
class Front:
    """The installed script.

    Attributes:
        path: its file, in a folder of its own.
        config: the folder of NVIDIA's configuration for it.
    """

    path: Path = PATH
    config: Path = wrapper.ENGINES_CONFIG

    def apply(self, *, nvidia_runtime: bool, runc: str = "") -> bool:
        """Install the runtime beside the GPU runtime for tasks; return True if anything changed.

        Args:
            nvidia_runtime: whether NVIDIA's runtime adds the GPUs.
            runc: that of the CI system, for a machine without its own; empty: there is none.

        Raises:
            gpu_agent.runtime.nvidia_config.ConfigError: the packaged configuration of that can't
                be read.
        """
        runc = runcs.for_engines(runc)
        if nvidia_runtime:
            files.ensure_directory(self.config)
            changed = nvidia.configure(self.config, runc)
        else:
            changed = files.ensure_absent(self.config)
        files.ensure_directory(self.path.parent)
        content = templates.render(
            wrapper.TEMPLATES,
            "gpu-ci",
            runc=runc,
            python=wrapper.PYTHON,
            lib=wrapper.BACK_END,
            store=wrapper.STORE,
            policy=wrapper.POLICY,
            home=self.path.parent,
            log=wrapper.LOG,
            config_home=self.config,
        )
        return files.ensure_file(self.path, content, mode=0o755) or changed

    def runc(self) -> str:
        """Return the path of the runtime that the installed one becomes."""
        found = re.search("^runc='(.*)'$", files.read_text(self.path) or "", re.MULTILINE)
        return found.group(1) if found else runcs.for_engines("")

    def remove(self) -> bool:
        """Remove the runtime, which no engine may use any more; return True if it was there."""
        changed = files.ensure_absent(self.path.parent) | files.ensure_absent(self.config)
        files.remove_if_empty(wrapper.HOME)
        return changed
