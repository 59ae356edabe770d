# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which engines are to have our runtime, and the error of one that can not: types only."""

import dataclasses


class EngineError(Exception):
    """An engine can't have our runtime; the text says why and what to do."""


@dataclasses.dataclass(frozen=True)
class EnginesPlan:
    """Which engines are to know our runtime, so that their containers can have GPUs.

    Attributes:
        names: `podman`, `docker`.
        default: whether it is the runtime of containers that name none.
        nvidia: whether NVIDIA's runtime brings the GPUs in.
    """

    names: tuple[str, ...]
    default: bool = False
    nvidia: bool = True
