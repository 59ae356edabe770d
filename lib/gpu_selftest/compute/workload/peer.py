# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check that GPUs copy to each other correctly, and how fast: mode `peer`."""

import torch

from devices import Device, best_seconds


def run(device: Device) -> dict[str, object]:
    """Return the answer: for each ordered pair GB/s, wrong words, whether the copy is direct."""
    if device.is_cuda:
        all_of_them = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    else:
        all_of_them = [device.torch, device.torch]
    words = (256 << 20 if device.is_cuda else 1 << 20) // 8
    pairs: list[dict[str, object]] = []
    for one, source in enumerate(all_of_them):
        for other, target in enumerate(all_of_them):
            if one != other:
                pairs.append({"from": one, "to": other, **copy(source, target, words)})
    return {**device.about, "pairs": pairs}


def copy(source: torch.device, target: torch.device, words: int) -> dict[str, object]:
    """Copy numbered words and compare them with words numbered on the target."""
    device = Device(source)
    if device.is_cuda:
        torch.cuda.set_device(source)
    numbers = torch.arange(words, device=source)
    arrived = torch.zeros(words, dtype=torch.int64, device=target)
    seconds = best_seconds(device, lambda: arrived.copy_(numbers, non_blocking=True))
    device.wait()
    wrong = int((arrived != torch.arange(words, device=target)).sum())
    direct = device.is_cuda and torch.cuda.can_device_access_peer(source, target)
    return {"gbps": words * 8 / seconds / 1e9, "wrong": wrong, "direct": direct}
