# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Types: the engines that get the runtime, and the error of an engine that cannot get it."""

import dataclasses


class EngineError(Exception):
    """The runtime cannot be registered with an engine; the text has the reason and the remedy."""


@dataclasses.dataclass(frozen=True)
class EnginesPlan:
    """The engines that get the runtime, so that their containers can have GPUs.

    Attributes:
        names: `podman`, `docker`.
        default: the engines whose containers get our runtime if they name none.
        nvidia: whether NVIDIA's runtime adds the GPUs to containers.
    """

    names: tuple[str, ...]
    default: tuple[str, ...] = ()
    nvidia: bool = True
