# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Measure copies within a GPU's memory, and from and to the host's: mode `bandwidth`."""

import torch

from devices import Device, best_seconds


def run(device: Device) -> dict[str, object]:
    """Return the answer, in GB/s (10^9 bytes). Within the GPU, reads and writes both count."""
    size = min(device.free_bytes // 4, 2 << 30 if device.is_cuda else 8 << 20)
    source, target = (torch.empty(size, dtype=torch.uint8, device=device.torch) for _ in "ab")
    source.fill_(1)
    within = 2 * size / best_seconds(device, lambda: target.copy_(source, non_blocking=True))
    part = min(size, 256 << 20)
    # Only memory that the kernel never moves is copied at the link's full rate.
    host = torch.empty(part, dtype=torch.uint8, pin_memory=device.is_cuda).fill_(1)
    near = target[:part]
    there = part / best_seconds(device, lambda: near.copy_(host, non_blocking=True))
    back = part / best_seconds(device, lambda: host.copy_(near, non_blocking=True))
    found = {"within": within / 1e9, "to_device": there / 1e9, "to_host": back / 1e9}
    return {**device.about, **found}
