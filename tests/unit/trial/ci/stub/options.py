# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Its option and its port."""

import dataclasses
import typing

from options import readers
from options.declaration import CiOptions, Group, Option
from options.part import Part

PORT: typing.Final = 4321


@dataclasses.dataclass(frozen=True)
class StubOptions:
    """Its options after validation.

    Attributes:
        queue: whose jobs it takes.
    """

    queue: str


_DECLARED: typing.Final = (
    Option(
        "stub-queue",
        default="main",
        text="Queue of the stub's CI whose jobs this unit takes.",
        group=Group.EVERYDAY,
        part=Part.WORKER,
        field="queue",
        read=lambda raw: readers.pattern(raw, "stub-queue", "[a-z]+", "is not a queue: use main"),
    ),
)

OPTIONS: typing.Final = CiOptions(
    name="stub",
    text="a worker of the stub",
    modes=("worker",),
    declared=_DECLARED,
    make=lambda read: StubOptions(**read(_DECLARED)),
    ports=lambda _raw: (PORT,),
)


def chosen(options: object) -> StubOptions:
    """Return its options of a unit that has it."""
    return typing.cast(StubOptions, options)
