# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Register the runtime with the engines that the operator names, and with no others.

A further engine is its package and a line in ALL.
"""

from typing import Final

from gpu_agent.engines.docker.engine import ENGINE as DOCKER
from gpu_agent.engines.engine import Engine, EnginesPlan
from gpu_agent.engines.front import Front
from gpu_agent.engines.podman.engine import ENGINE as PODMAN
from gpu_agent.model.keep import Keep
from machine import files

ALL: Final[tuple[Engine, ...]] = (
    PODMAN,
    DOCKER,
)


_FRONT: Final = Front()


def ensure(
    plan: EnginesPlan | Keep | None,
    engines: tuple[Engine, ...] = ALL,
    front: Front = _FRONT,
) -> bool:
    """Register the runtime with the planned engines; None: with none of them.

    Raises:
        gpu_agent.engines.engine.EngineError: an engine cannot get it.
        gpu_agent.runtime.nvidia_config.ConfigError: the packaged configuration of NVIDIA's runtime
            can't be read.
        machine.process.CommandError: systemd refuses.
    """
    if isinstance(plan, Keep):
        return False
    if plan is None:
        return remove(engines, front)
    changed = front.apply(nvidia_runtime=plan.nvidia, runc=plan.runc)
    for one in engines:
        if one.name in plan.names:
            changed |= plan.socket_taken and one.leave_socket()
            changed |= one.ensure(default=one.name in plan.default)
        else:
            changed |= one.remove()
    return changed


def remove(engines: tuple[Engine, ...] = ALL, front: Front = _FRONT) -> bool:
    """Remove the runtime from every engine, then delete it; return True if it was there.

    While containers run that it started, a link to runc replaces it: without it they could not be
    stopped. The next call without such containers removes the link.
    """
    changed = False
    for one in engines:
        changed |= one.remove()
    path = front.path
    running = path.exists() and any(one.is_in_use(str(path)) for one in engines)
    if running and not path.is_symlink():
        runc = front.runc()
        files.ensure_absent(front.config)
        files.ensure_symlink(path, runc)
        return True
    return changed if running else front.remove() or changed
