# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keep a GPU busy and check that it goes on giving equal results: mode `load`.

Products of the same two matrices fill most of the memory, one after another, so that multipliers,
memory and power supply are all busy. Each product is then compared with the first. They must be
equal to the bit.
"""

import json
import signal
import time

import torch

import matrices
from devices import Device

_PART = 0.8


class _Stop:
    """Whether the process was asked to end."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:  # noqa: ARG002
        self.asked = True


def run(device: Device, seconds: float) -> dict[str, object]:
    """Work until the time is over or SIGTERM comes, and print the state each second."""
    stop = _Stop()
    # The format with the most transistors at work, as in training.
    best = [one for one in matrices.formats(device) if one.name in ("bf16", "fp16")][-1]
    first, left, right = make(best, device)
    copies = [torch.empty_like(first) for _ in range(count(device, first))]
    began = told = time.monotonic()
    products = mismatches = 0
    while not stop.asked and time.monotonic() - began < seconds:
        for copy in copies:
            torch.mm(left, right, out=copy)
        mismatches += compare(first, copies)
        products += len(copies)
        now = time.monotonic()
        if now - told >= 1.0:
            told = now
            print(json.dumps(_state(products, mismatches, first, now - began)), flush=True)
    passed = time.monotonic() - began
    ended = _state(products, mismatches, first, passed)
    return {**device.about, **ended, "format": best.name, "ended": True}


def make(kind: matrices.Format, device: Device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the first product, which all others must equal, and its two factors."""
    matrices.use(kind)
    size = 8192 if device.is_cuda else 128
    while device.is_cuda and 8 * size * size * kind.dtype.itemsize > device.free_bytes:
        size //= 2
    shape = (size, size)
    left, right = (torch.randn(shape, device=device.torch).to(kind.dtype) for _ in "ab")
    return torch.mm(left, right), left, right


def count(device: Device, first: torch.Tensor) -> int:
    """Return how many products fill the memory, but so few that a round takes about a second."""
    if not device.is_cuda:
        return 4
    return max(1, min(512, int(device.free_bytes * _PART) // first.nbytes))


def compare(first: torch.Tensor, copies: list[torch.Tensor]) -> int:
    """Return how many values differ from the first product's, by their bits."""
    bits = first.view(torch.int16)
    differing = [(copy.view(torch.int16) != bits).sum() for copy in copies]
    return int(torch.stack(differing).sum())


def _state(
    products: int, mismatches: int, first: torch.Tensor, seconds: float
) -> dict[str, float | int]:
    work = 2 * first.shape[0] ** 3 * products
    tflops = work / seconds / 1e12 if seconds else 0.0
    return {"seconds": seconds, "tflops": tflops, "products": products, "mismatches": mismatches}
