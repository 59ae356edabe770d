# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The device under test, and the timing of work on it."""

import collections.abc
import dataclasses
import os
import re
import time

import torch


class UnsupportedError(Exception):
    """This build of PyTorch has no code for this GPU, which proves no fault of the GPU."""


@dataclasses.dataclass(frozen=True)
class Device:
    """The device under test.

    Attributes:
        torch: PyTorch's name of it.
        capability: compute capability; (0, 0) for the CPU.
    """

    torch: torch.device
    capability: tuple[int, int] = (0, 0)

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.torch.type == "cuda"

    @property
    def free_bytes(self) -> int:
        """Free memory. For the CPU a small amount, so that a test is quick."""
        if not self.is_cuda:
            return 64 << 20
        # Memory that PyTorch keeps for its next tensors would count as used.
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.torch)[0]

    @property
    def total_bytes(self) -> int:
        """All its memory."""
        return torch.cuda.mem_get_info(self.torch)[1] if self.is_cuda else 64 << 20

    @property
    def about(self) -> dict[str, str]:
        """The tested device and the version of PyTorch, for the answer."""
        name = torch.cuda.get_device_name(self.torch) if self.is_cuda else "CPU"
        return {"device": name, "torch": torch.__version__}

    def wait(self) -> None:
        """Wait until all submitted work is done."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch)


def find(kind: str) -> Device:
    """Return the first device of this kind that this process may use.

    Raises:
        UnsupportedError: this PyTorch has no code for it.
        RuntimeError: there is none, or it does not start.
    """
    if kind == "cpu":
        # Virtual machines may report matrix units of the processor that they don't have.
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
        return Device(torch.device("cpu"))
    # The same product twice is equal to the bit only with a workspace of a fixed size:
    # https://docs.nvidia.com/cuda/cublas/#results-reproducibility
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.init()
    found = torch.device("cuda", 0)
    capability = torch.cuda.get_device_capability(found)
    if not any(_runs(code, capability) for code in torch.cuda.get_arch_list()):
        raise UnsupportedError(
            f"PyTorch {torch.__version__} has no code for compute capability "
            f"{capability[0]}.{capability[1]}"
        )
    return Device(found, capability)


def _runs(code: str, capability: tuple[int, int]) -> bool:
    """Return whether compiled code runs, such as sm_86 or compute_120.

    Machine code runs on its major version from its minor version on, PTX on all later GPUs:
    CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", code)
    if not match:
        return False
    built = (int(match[2]), int(match[3]))
    if match[4] == "a":
        return built == capability
    if match[1] == "compute" and not match[4]:
        return built <= capability
    return built[0] == capability[0] and built <= capability


def best_seconds(device: Device, work: collections.abc.Callable[[], object]) -> float:
    """Return the time of one call in the best of several windows, after a warm-up.

    The best window shows what the GPU can do: every disturbance makes a measurement slower. GPUs
    are timed by their own clock (CUDA events), so that the time to start the work does not count.
    """
    warm_up, window, windows = (0.3, 0.2, 6) if device.is_cuda else (0.02, 0.02, 3)
    calls, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < warm_up or not calls:
        work()
        device.wait()
        calls += 1
    each = max(1, round(window * calls / passed)) if passed else 1
    return min(_seconds(device, work, each) for _ in range(windows)) / each


def _seconds(device: Device, work: collections.abc.Callable[[], object], calls: int) -> float:
    if not device.is_cuda:
        began = time.perf_counter()
        for _ in range(calls):
            work()
        return time.perf_counter() - began
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000
