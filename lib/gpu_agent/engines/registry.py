# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Register the runtime with the engines that the operator names, and with no others."""

import os
from pathlib import Path
from typing import Final

from gpu_agent.engines import front
from gpu_agent.engines.docker import containerd_unit as docker_unit
from gpu_agent.engines.docker import daemon_json as docker
from gpu_agent.engines.engine import EngineError, EnginesPlan
from gpu_agent.engines.podman import config as podman
from gpu_agent.model.keep import Keep
from gpu_runtime import proc
from machine import files, process

# A shim's options have the runtime that ends its container.
_SHIMS: Final = (
    "run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/*/options.json",
    "run/containerd/io.containerd.runtime.v2.task/moby/*/options.json",
)
# podman's monitor of a container, of any user and with any store: the package's program, which is
# owned by root, with the runtime after this option (conmon(8)).
_MONITORS: Final = "proc/[0-9]*/cmdline"
_MONITOR: Final = "conmon"
_RUNTIME: Final = ("-r", "--runtime")


def ensure(plan: EnginesPlan | Keep | None) -> bool:
    """Register the runtime with the planned engines; None: with none of them.

    Raises:
        EngineError: an engine cannot get it.
        gpu_agent.runtime.nvidia_config.ConfigError: the packaged configuration of NVIDIA's runtime
            can't be read.
        machine.process.CommandError: systemd refuses.
    """
    if isinstance(plan, Keep):
        return False
    if plan is None:
        return remove()
    changed = front.apply(nvidia_runtime=plan.nvidia)
    if "podman" in plan.names:
        changed |= podman.ensure(default="podman" in plan.default)
    else:
        changed |= podman.remove()
    if "docker" not in plan.names:
        return _without_docker() or changed
    try:
        # Concourse's containerd needs the socket.
        changed |= docker_unit.ensure()
        return docker.ensure(default="docker" in plan.default) or changed
    except process.CommandError as error:
        raise EngineError(f"Docker cannot be set up: {error}") from error


def remove() -> bool:
    """Remove the runtime from every engine, then delete it; return True if it was there.

    While containers run that it started, a link to runc replaces it: without it they could not be
    stopped. The next call without such containers removes the link.
    """
    changed = _without_docker() | podman.remove()
    running = front.FRONT.exists() and _is_in_use()
    if running and not front.FRONT.is_symlink():
        runc = front.runc()
        files.ensure_absent(front.CONFIG)
        files.ensure_symlink(front.FRONT, runc)
        return True
    return changed if running else front.remove() or changed


def _without_docker() -> bool:
    # In this order: a Docker that starts in between still finds a containerd.
    return docker.remove() | docker_unit.remove()


def _is_in_use() -> bool:
    """Whether a container lives that the runtime started."""
    ours, top = str(front.FRONT), Path("/")
    shims = (path for pattern in _SHIMS for path in top.glob(pattern))
    return any(ours in proc.read(str(path)) for path in shims) or any(
        _is_monitor(path.parent, ours) for path in top.glob(_MONITORS)
    )


def _is_monitor(process: Path, runtime: str) -> bool:
    """Whether a process is podman's monitor of a container that this machine's runtime started.

    Raises:
        OSError: /proc cannot be read.
    """
    words = proc.read(str(process / "cmdline")).split("\0")
    told = [words[place - 1] for place, word in enumerate(words) if word == runtime and place]
    if not any(word in _RUNTIME for word in told):
        return False
    program = proc.link(str(process / "exe")).removesuffix(" (deleted)")
    found = proc.look(str(process / "exe"))
    if Path(program).name != _MONITOR or found is None or found.st_uid != 0:
        return False
    # In a system container on this machine that path is another runtime.
    own = proc.look(str(Path(runtime).parent))
    its = proc.look(f"{process}/root{Path(runtime).parent}")
    return own is not None and its is not None and os.path.samestat(own, its)
