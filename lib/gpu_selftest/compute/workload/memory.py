# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check that a GPU's memory keeps what is written to it: mode `memory`.

Every word gets its own number, so that a wrong address shows as well as a wrong bit. Then it gets
the inverse, so that each bit was 0 and 1. All memory is held at once: nothing is tested twice.
"""

import torch

from devices import Device

_PART = 0.9
_CHUNK = 1 << 30
_BLOCK = (64 << 20) // 8  # words that are compared at once
_SCRATCH = 512 << 20


def run(device: Device) -> dict[str, object]:
    """Return the answer: bytes tested, wrong words, and the place of the first one."""
    chunks = allocate(device)
    for chunk, first in _numbered(chunks):
        torch.arange(first, first + chunk.numel(), out=chunk)
    found = verify(chunks, inverse=False)
    for chunk in chunks:
        chunk.bitwise_not_()
    again = verify(chunks, inverse=True)
    places = [place for _, place in (found, again) if place is not None]
    return {
        **device.about,
        "bytes": sum(chunk.numel() for chunk in chunks) * 8,
        "total": device.total_bytes,
        "wrong": found[0] + again[0],
        "first": min(places, default=None),
    }


def allocate(device: Device) -> list[torch.Tensor]:
    """Allocate most of the free memory, in pieces."""
    wanted = int(device.free_bytes * _PART)
    if device.is_cuda:
        wanted = min(wanted, device.free_bytes - _SCRATCH)
    chunk = min(_CHUNK, max(wanted // 2, 8))
    chunks: list[torch.Tensor] = []
    while wanted >= chunk:
        try:
            chunks.append(torch.empty(chunk // 8, dtype=torch.int64, device=device.torch))
        except torch.OutOfMemoryError:
            break  # fragmented: the answer says how much was tested
        wanted -= chunk
    return chunks


def verify(chunks: list[torch.Tensor], *, inverse: bool) -> tuple[int, int | None]:
    """Return how many words are not as written, and the byte offset of the first."""
    wrong, place = 0, None
    for chunk, first in _numbered(chunks):
        for start in range(0, chunk.numel(), _BLOCK):
            block = chunk[start : start + _BLOCK]
            expected = torch.arange(
                first + start, first + start + block.numel(), device=chunk.device
            )
            differs = block != (expected.bitwise_not_() if inverse else expected)
            count = int(differs.sum())
            if count and place is None:
                place = (first + start + int(differs.nonzero()[0, 0])) * 8
            wrong += count
    return wrong, place


def _numbered(chunks: list[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """Return each piece with the number of its first word."""
    found: list[tuple[torch.Tensor, int]] = []
    first = 0
    for chunk in chunks:
        found.append((chunk, first))
        first += chunk.numel()
    return found
