# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the runtime hands out to tasks: GPUs and folders; frozen types only."""

import dataclasses

from gpu_agent.model.inventory import Gpu


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder of the host that every task gets.

    Attributes:
        source: its path on the host.
        target: its path in the container.
        writable: whether tasks may write to it.
    """

    source: str
    target: str
    writable: bool


@dataclasses.dataclass(frozen=True)
class TaskFolders:
    """How the container of a CI task is known: by the folder that it works in.

    Attributes:
        parent: the folder in the container that has the task's own, which is named by eight hex
            digits; with a slash at its end. The default is the self-test's, for a machine without
            a CI system.
        others: names of other folders in there, whose containers are no tasks.
    """

    parent: str = "/run/gpu-ci-task/"
    others: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class GpuPlan:
    """What tasks on this worker may get, and how the runtime knows and makes their containers.

    Attributes:
        gpus: the allowed GPUs in index order, all of one vendor; empty: tasks get none.
        nvidia_runtime: absolute path of nvidia-container-runtime; empty for other vendors' GPUs.
        allocation: `exclusive` or `shared`.
        gpus_per_task: number of GPUs or MIG devices for a task that requests no number.
        wait_timeout: longest wait of a task in seconds, within the CI system's own limit.
        hijack_limit: how long a hijacked session may keep them after the step, in seconds; 0: no
            limit.
        privileged_tasks: `no-gpu` or `gpu`.
        driver: version of NVIDIA's driver, and
        cuda: the highest CUDA version of it; empty for other vendors' GPUs, or if unknown.
        runc: absolute path of the runc that makes tasks' containers; empty: the machine's own.
        tasks: how the container of a task is known.
    """

    gpus: tuple[Gpu, ...]
    nvidia_runtime: str
    allocation: str = "exclusive"
    gpus_per_task: int = 1
    wait_timeout: int = 240
    hijack_limit: int = 1800
    privileged_tasks: str = "no-gpu"
    driver: str = ""
    cuda: str = ""
    runc: str = ""
    tasks: TaskFolders = TaskFolders()
