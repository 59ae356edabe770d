# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Docker as an engine: its daemon.json, and a containerd of its own beside Concourse's."""

import dataclasses
from pathlib import Path
from typing import Final

from gpu_agent.engines.docker.containerd_unit import ContainerdUnit
from gpu_agent.engines.docker.daemon_json import DaemonJson
from gpu_agent.engines.engine import Engine, EngineError
from gpu_runtime import proc
from machine import process

# A shim's options have the runtime that ends its container.
_SHIMS: Final = (
    "run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/*/options.json",
    "run/containerd/io.containerd.runtime.v2.task/moby/*/options.json",
)


@dataclasses.dataclass(frozen=True)
class Docker:
    """What the runtime takes in Docker: its unit, then its file."""

    unit: ContainerdUnit = ContainerdUnit()
    file: DaemonJson = DaemonJson()

    def leave_socket(self) -> bool:
        """Leave containerd's socket to Concourse; return True if anything was changed.

        Raises:
            EngineError: Docker is not installed, or cannot have its own containerd now.
        """
        if not self.file.program("dockerd"):
            # Its package starts a containerd, which would take the socket.
            raise EngineError(
                "Docker is not installed on this machine: install it (sudo systemctl mask "
                "containerd; sudo apt-get install docker.io), or remove docker from "
                "container-engines"
            )
        try:
            return self.unit.ensure()
        except process.CommandError as error:
            raise EngineError(f"Docker cannot be set up: {error}") from error

    def ensure(self, *, default: bool) -> bool:
        """Register the runtime with Docker; return True if anything was changed.

        Args:
            default: whether containers that name no runtime get this one.

        Raises:
            EngineError: Docker cannot get it.
        """
        try:
            return self.file.ensure(default=default)
        except process.CommandError as error:
            raise EngineError(f"Docker cannot be set up: {error}") from error

    def remove(self) -> bool:
        """Remove the runtime from Docker; return True if it was there."""
        # In this order: a Docker that starts in between still finds a containerd.
        return self.file.remove() | self.unit.remove()


def is_in_use(runtime: str) -> bool:
    """Whether a container lives that Docker started with this runtime.

    Raises:
        OSError: it cannot be read.
    """
    shims = (path for pattern in _SHIMS for path in Path("/").glob(pattern))
    return any(runtime in proc.read(str(path)) for path in shims)


_DOCKER: Final = Docker()

ENGINE: Final = Engine(
    "docker",
    _DOCKER.ensure,
    _DOCKER.remove,
    is_in_use,
    _DOCKER.leave_socket,
    about=(
        "With `docker` beside Concourse, the charm also makes Docker use a containerd of its own "
        "and masks containerd.service, because Concourse needs the socket of that service."
    ),
)
