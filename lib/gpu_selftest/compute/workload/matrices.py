# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check matrix products in each number format: mode `results`.

Two products in each format. One has integers so small that every partial sum is exact in every
format and order: one wrong bit anywhere is a fault. The other has normally distributed numbers,
which use all bits, and is compared with float64 on the CPU, within the rounding error for sums of
k products (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.5)

    |computed - exact| <= (2 u_in + k u_sum) |A| |B| + u_out |C|

with the unit roundoffs of the inputs' conversion, of the sum and of the result. Tensor cores
truncate instead of rounding, which doubles u_sum (Fasi, Higham, Mikaitis, Pranesh, "Numerical
behavior of NVIDIA tensor cores", PeerJ Computer Science 2021). Each product is made twice and must
be equal to the bit.
"""

import collections.abc
import dataclasses

import torch

from devices import Device

Multiply = collections.abc.Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# The integers are -1, 0 and 1, and at most this many of a sum's products are not 0: as many as the
# bits of the narrowest format, bfloat16, allow.
_EXACT = 256


@dataclasses.dataclass(frozen=True)
class Format:
    """How numbers are stored, multiplied and added.

    Attributes:
        name: as in the names of checks.
        dtype: as stored.
        u_in: unit roundoff of converting the inputs first; 0 if they are used as stored.
        u_sum: of each addition.
        u_out: of storing the result.
        capability: the lowest compute capability whose hardware has the format.
    """

    name: str
    dtype: torch.dtype
    u_in: float
    u_sum: float
    u_out: float
    capability: tuple[int, int] = (0, 0)


FORMATS = (
    Format("fp64", torch.float64, 0.0, 2.0**-52, 2.0**-53),
    Format("fp32", torch.float32, 0.0, 2.0**-23, 2.0**-24),
    Format("tf32", torch.float32, 2.0**-10, 2.0**-23, 2.0**-24, (8, 0)),
    Format("fp16", torch.float16, 0.0, 2.0**-23, 2.0**-11),
    Format("bf16", torch.bfloat16, 0.0, 2.0**-23, 2.0**-8, (8, 0)),
)


def formats(device: Device) -> list[Format]:
    """Return the formats that a device has."""
    return [one for one in FORMATS if not device.is_cuda or one.capability <= device.capability]


def use(kind: Format) -> None:
    """Make float32 products use this format, or be exact."""
    torch.set_float32_matmul_precision("high" if kind.name == "tf32" else "highest")


def run(device: Device) -> dict[str, object]:
    """Return the answer of mode `results`."""
    # Sums of several parts must not be made in the narrow format.
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    size = 2048 if device.is_cuda else 192
    found = {one.name: examine(one, device, size) for one in formats(device)}
    return {**device.about, "size": size, "formats": found}


def examine(
    kind: Format, device: Device, size: int, multiply: Multiply = torch.matmul
) -> dict[str, object]:
    """Make both products of square matrices twice and count their wrong values."""
    use(kind)
    chance = torch.Generator().manual_seed(size)
    left, right = _integers(kind, size, chance)
    got, unequal = _twice(left, right, device, multiply)
    inexact = got.double() != left.double() @ right.double()
    left, right = _normal(kind, size, chance)
    got, also_unequal = _twice(left, right, device, multiply)
    reference = left.double() @ right.double()
    bound = _bound(kind, size, reference, left.double().abs() @ right.double().abs())
    error = (got.double() - reference).abs()
    # NaN is not within any bound.
    wrong = ~(error <= bound)
    return {
        "values": 2 * size * size,
        "inexact": int(inexact.sum()),
        "wrong": int(wrong.sum()),
        "largest": float(torch.nan_to_num(error / bound, nan=1e9, posinf=1e9).max()),
        "unequal": unequal + also_unequal,
    }


def _integers(
    kind: Format, size: int, chance: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    left = torch.randint(-1, 2, (size, size), generator=chance)
    right = torch.randint(-1, 2, (size, size), generator=chance)
    if size > _EXACT:
        # Each column keeps other rows, so that all of both matrices is used.
        place = (torch.arange(size)[:, None] + torch.arange(size)[None, :]) % size
        right = torch.where(place < _EXACT, right, 0)
    return left.to(kind.dtype), right.to(kind.dtype)


def _normal(kind: Format, size: int, chance: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (size, size)
    left, right = (torch.randn(shape, generator=chance, dtype=torch.float64) for _ in "ab")
    return left.to(kind.dtype), right.to(kind.dtype)


def _twice(
    left: torch.Tensor, right: torch.Tensor, device: Device, multiply: Multiply
) -> tuple[torch.Tensor, int]:
    """Return the device's product, and in how many values a second one differs from it."""
    ours, theirs = left.to(device.torch), right.to(device.torch)
    first = multiply(ours, theirs).cpu()
    second = multiply(ours, theirs).cpu()
    # By their bits: NaN equals nothing, not even itself.
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[first.element_size()]
    return first, int((first.view(bits) != second.view(bits)).sum())


def _bound(
    kind: Format, size: int, reference: torch.Tensor, magnitude: torch.Tensor
) -> torch.Tensor:
    """Return how far a right result may be from the reference, which float64 rounds too."""
    relative = 2 * kind.u_in + kind.u_in**2 + size * (kind.u_sum + 2.0**-53)
    # The result is rounded after all other errors.
    return relative * magnitude * (1 + kind.u_out) + kind.u_out * reference.abs()
