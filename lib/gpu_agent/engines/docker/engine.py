# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Docker as an engine: its daemon.json, and a containerd of its own."""

from pathlib import Path
from typing import Final

from gpu_agent.engines.docker import containerd_unit, daemon_json
from gpu_agent.engines.engine import Engine, EngineError
from gpu_runtime import proc
from machine import process

# A shim's options have the runtime that ends its container.
_SHIMS: Final = (
    "run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/*/options.json",
    "run/containerd/io.containerd.runtime.v2.task/moby/*/options.json",
)


def ensure(*, default: bool) -> bool:
    """Register the runtime with Docker; return True if anything was changed.

    Args:
        default: whether containers that name no runtime get this one.

    Raises:
        EngineError: Docker cannot get it.
    """
    try:
        # Concourse's containerd needs the socket.
        changed = containerd_unit.ensure()
        return daemon_json.ensure(default=default) or changed
    except process.CommandError as error:
        raise EngineError(f"Docker cannot be set up: {error}") from error


def remove() -> bool:
    """Remove the runtime from Docker; return True if it was there."""
    # In this order: a Docker that starts in between still finds a containerd.
    return daemon_json.remove() | containerd_unit.remove()


def is_in_use(runtime: str) -> bool:
    """Whether a container lives that Docker started with this runtime.

    Raises:
        OSError: it cannot be read.
    """
    shims = (path for pattern in _SHIMS for path in Path("/").glob(pattern))
    return any(runtime in proc.read(str(path)) for path in shims)


ENGINE: Final = Engine(
    "docker",
    ensure,
    remove,
    is_in_use,
    about=(
        "With `docker`, the charm also makes Docker use a containerd of its own and masks "
        "containerd.service, because Concourse needs the socket of that service."
    ),
)
