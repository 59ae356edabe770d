# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How many multiplications and additions a second matrix products reach: mode `rates`."""

import torch

import matrices
from devices import Device, best_seconds

# A larger one is not tried where one product would take longer, in seconds.
_LONGEST = 0.5


def run(device: Device) -> dict[str, object]:
    """The answer of mode `rates`: the best TFLOPS of each format, and the size that reached it."""
    found = {one.name: measure(one, device) for one in matrices.formats(device)}
    return {**device.about, "formats": found}


def measure(kind: matrices.Format, device: Device) -> dict[str, float]:
    """The best rate in one format, over square matrices of several sizes.

    Normally distributed numbers: zeros would switch fewer transistors, stay below the power limit
    and give a rate that no job reaches.
    """
    matrices.use(kind)
    best = {"tflops": 0.0, "size": 0}
    for size in (4096, 8192, 16384) if device.is_cuda else (128, 256):
        if 3 * size * size * kind.dtype.itemsize > device.free_bytes // 2:
            break
        seconds = _product(kind, device, size)
        # A product of square matrices takes n multiplications and additions for each value.
        tflops = 2 * size**3 / seconds / 1e12
        if tflops > best["tflops"]:
            best = {"tflops": tflops, "size": size}
        if seconds * 8 > _LONGEST:
            break
    return best


def _product(kind: matrices.Format, device: Device, size: int) -> float:
    """How long one product takes, in seconds."""
    shape = (size, size)
    left, right = (torch.randn(shape, device=device.torch).to(kind.dtype) for _ in "ab")
    out = torch.empty_like(left)
    return best_seconds(device, lambda: torch.mm(left, right, out=out))
