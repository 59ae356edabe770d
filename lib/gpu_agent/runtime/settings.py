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
class GpuPlan:
    """What tasks on this worker may get: the allowed GPUs in index order, all of one vendor.

    Attributes:
        nvidia_runtime: absolute path of nvidia-container-runtime; empty for other vendors' GPUs.
        allocation: `exclusive` or `shared`.
        gpus_per_task: number of GPUs or MIG devices for a task that requests no number.
        wait_timeout: longest wait of a task in seconds, within Concourse's own limit.
        hijack_limit: how long a hijacked session may keep them after the step, in seconds; 0: no
            limit.
        privileged_tasks: `no-gpu` or `gpu`.
        driver: version of NVIDIA's driver, and
        cuda: the highest CUDA version of it; empty for other vendors' GPUs, or if unknown.
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
