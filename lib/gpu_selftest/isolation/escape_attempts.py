# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Data of the checks of isolation, and of containers that try to get more than their lease."""

import dataclasses
import typing

from gpu_agent import paths as wrapper
from gpu_runtime.policy import TaskFolders
from gpu_selftest.check import Check, Level
from gpu_selftest.isolation.containers import Step
from gpu_selftest.isolation.rootfs import Mount
from gpu_selftest.quick import runtime_checks as wrapper_checks

_REINSTALL: typing.Final = (
    "reinstall the GPU runtime and its configuration, on all units: "
    "`juju config APP enable-gpu=false`, then `juju config APP enable-gpu=true`"
)
_STORE: typing.Final = (
    f"`sudo rm {wrapper.STORE}/leases.json`, which is rebuilt from what runs; then {_REINSTALL}"
)

LEASE: typing.Final = Check(
    "lease",
    Level.ISOLATION,
    "a task sees the GPU of its lease and no other",
    remedy=f"compare with the grants of the GPU runtime (`sudo tail {wrapper.LOG}`); {_REINSTALL}",
    each_gpu=True,
)
NO_LEASE: typing.Final = Check(
    "no-lease",
    Level.ISOLATION,
    "steps that are no tasks, and a task with GPU_COUNT=0, see no GPU, whatever their image "
    "requests",
    remedy=_REINSTALL,
)
DEVICE_CGROUP: typing.Final = Check(
    "device-cgroup",
    Level.ISOLATION,
    "the kernel refuses a container all GPU devices that it was not given: by device rules, or by "
    "its user namespace in a container like LXD's",
    remedy="check that this kernel has device control groups (`grep -e CONFIG_CGROUP_BPF= -e "
    "CONFIG_CGROUP_DEVICE= /boot/config-$(uname -r)`); if it has, replace the runc "
    "that starts tasks (`grep runc /etc/gpu-ci/selftest.json`)",
)
# runc sets no device rules in a user namespace: they would need rights on the host (runc 1.3
# libcontainer/cgroups/devices/v2.go). Devices without a node are blocked by the user namespace.
UNNEST: typing.Final = (
    "on the host, stop LXD from making nodes for the container: `lxc config unset <instance> "
    "security.syscalls.intercept.mknod`, `lxc restart <instance>`; then juju run APP/leader "
    "gpu-selftest"
)
DISJOINT: typing.Final = Check(
    "disjoint", Level.ISOLATION, "two tasks at once get different GPUs", remedy=_STORE
)
RECLAIM: typing.Final = Check(
    "reclaim",
    Level.ISOLATION,
    "the GPU of a killed task is handed out again, and no process of that task still uses it",
    remedy=_STORE,
    unit="s",
    source="gpu_runtime.holder_usage: to find and kill what is left takes less than a second",
)
EXEC_ENVIRONMENT: typing.Final = Check(
    "exec-environment",
    Level.ISOLATION,
    "the variables of a step and of a hijacked session name the GPU of the lease",
    remedy=_REINSTALL,
)


@dataclasses.dataclass(frozen=True)
class Door:
    """A way in which an image or a pipeline may try to get more than its lease.

    Attributes:
        check: the check that tests it.
        step: a container that tries it.
        refusable: whether the GPU runtime may also refuse such a container.
    """

    check: Check
    step: Step
    refusable: bool = False


def _door(name: str, proves: str, remedy: str = _REINSTALL) -> Check:
    return Check(name, Level.ISOLATION, proves, remedy=remedy)


_ENVIRONMENT: typing.Final = _door(
    "environment", "variables that are set twice or malformed give no more than the lease"
)
_ALL: typing.Final = "runtime.nvidia.com/gpu=all"
DOORS: typing.Final = (
    Door(
        _door("image-all", "an image with NVIDIA_VISIBLE_DEVICES=all gets only its lease"),
        Step(image_env=("NVIDIA_VISIBLE_DEVICES=all",), params=("GPU_COUNT=1",)),
    ),
    Door(
        _door("cuda-version-only", "an image with only CUDA_VERSION gets only its lease"),
        Step(image_env=("CUDA_VERSION=12.4.1",), params=("GPU_COUNT=1",)),
    ),
    Door(
        _door(
            "annotation",
            "annotations that request devices give no more than the lease",
            f"annotation-prefixes must be [] in {wrapper_checks.CONFIG}: {_REINSTALL}",
        ),
        # An image names its user, which a CI system may make an annotation. It counts if
        # annotation-prefixes is [""], which `nvidia-ctk config --set` makes of an empty value.
        Step(params=("GPU_COUNT=1",), annotations={"cdi.k8s.io/gpu-ci": _ALL, "user": _ALL}),
    ),
    Door(
        _door(
            "volume-mount",
            "mounts that request devices give no more than the lease",
            "accept-nvidia-visible-devices-as-volume-mounts must be false in "
            f"{wrapper_checks.CONFIG}: {_REINSTALL}",
        ),
        Step(
            params=("GPU_COUNT=1",),
            mounts=(Mount("/dev/null", "/var/run/nvidia-container-devices/all", ("bind",)),),
        ),
    ),
    Door(
        _ENVIRONMENT,
        Step(
            image_env=(
                *("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all", "GPU_COUNT=all"),
                *("NVIDIA_VISIBLE_DEVICES", "=all", "AMD_VISIBLE_DEVICES=all"),
                *("DOCKER_RESOURCE_GPU=all", "NVIDIA_GDS=enabled", "CUDA_VERSION=12.4.1"),
            ),
            params=("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0,1", "GPU_COUNT=1"),
        ),
        refusable=True,
    ),
    Door(
        _ENVIRONMENT,
        Step(image_env=("ATC_EXTERNAL_URL=http://image", "GPU_COUNT=all")),
        refusable=True,
    ),
)

NVIDIA_ONLY: typing.Final = frozenset(door.check for door in DOORS) - {_ENVIRONMENT}

# A task without unusual requests.
PLAIN: typing.Final = Step(params=("GPU_COUNT=1",))
_GREEDY: typing.Final = ("NVIDIA_VISIBLE_DEVICES=all", "CUDA_VERSION=12.4.1")
# A task whose image has wrong variables about its GPUs: none of them may reach its processes.
UNTRUE: typing.Final = Step(
    image_env=(
        *("NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=-1", "GPU_COUNT=8"),
        "GPU_CI_DEVICES=[]",
    ),
    params=("NVIDIA_VISIBLE_DEVICES=all", "GPU_COUNT=1"),
)


def without(tasks: TaskFolders) -> dict[str, Step]:
    """Return containers that must see no GPU, by their names in the report."""
    names = [folder[len(tasks.parent) : -1] for folder in tasks.others] or ["other"]
    others = {name: Step(name, image_env=_GREEDY) for name in names}
    return {**others, "task": Step(image_env=_GREEDY, params=("GPU_COUNT=0",))}


CHECKS: typing.Final = (
    *(LEASE, NO_LEASE),
    *dict.fromkeys(door.check for door in DOORS),
    *(EXEC_ENVIRONMENT, DISJOINT, RECLAIM, DEVICE_CGROUP),
)
