# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Measure the rate of matrix products in each format: mode `rates`."""

import torch

import matrices
from devices import Device, best_seconds

# No larger size is tried if one product would take longer, in seconds.
_LONGEST = 0.5


def run(device: Device) -> dict[str, object]:
    """Return the answer: the best TFLOPS of each format, and the size that reached it."""
    found = {one.name: measure(one, device) for one in matrices.formats(device)}
    return {**device.about, "formats": found}


def measure(kind: matrices.Format, device: Device) -> dict[str, float]:
    """Return the best rate in one format, over square matrices of several sizes.

    The numbers are normally distributed. Zeros would switch fewer transistors, stay below the
    power limit, and give a rate that no job reaches.
    """
    matrices.use(kind)
    best = {"tflops": 0.0, "size": 0}
    for size in (4096, 8192, 16384) if device.is_cuda else (128, 256):
        if 3 * size * size * kind.dtype.itemsize > device.free_bytes // 2:
            break
        seconds = _product(kind, device, size)
        # A product of square matrices has n multiplications and n additions for each value.
        tflops = 2 * size**3 / seconds / 1e12
        if tflops > best["tflops"]:
            best = {"tflops": tflops, "size": size}
        if seconds * 8 > _LONGEST:
            break
    return best


def _product(kind: matrices.Format, device: Device, size: int) -> float:
    """Return the time of one product, in seconds."""
    shape = (size, size)
    left, right = (torch.randn(shape, device=device.torch).to(kind.dtype) for _ in "ab")
    out = torch.empty_like(left)
    return best_seconds(device, lambda: torch.mm(left, right, out=out))
