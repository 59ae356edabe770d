# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The records of GPUs that are in use outside CI, or unusable in their present state.

A hook writes all of them at once, from what it saw at its beginning. The GPU health service writes
here too: gpu_agent.availability.residual_memory.
"""

import collections.abc
import json
import pathlib

from gpu_agent import paths
from gpu_runtime import unavailable
from gpu_runtime.unavailable import Unavailable
from machine import files, locks

Gpus = collections.abc.Iterable[tuple[str, Unavailable]]
"""UUIDs, each with the cause."""


def read() -> dict[str, Unavailable]:
    """The UUIDs of the GPUs that are in use outside CI, each with the cause; not unusable ones.

    Raises:
        OSError: the folder can't be read.
    """
    # The self-test may have the unusable ones, so they are left out.
    return unavailable.read_folder(str(paths.EXTERNAL), testing=True)


def ensure(gpus: Gpus) -> bool:
    """Record these GPUs and no others. Return True if that changed anything.

    Args:
        gpus: if a GPU is among them twice, the later cause counts.
    """
    return _ensure(gpus, paths.EXTERNAL)


def close(gpus: Gpus) -> bool:
    """Record that no request gets these GPUs, also after a reboot. Return True if that is new."""
    return _ensure(gpus, paths.CLOSED)


def _ensure(gpus: Gpus, folder: pathlib.Path) -> bool:
    wanted = {f"{uuid}.json": cause.as_record() for uuid, cause in gpus}
    changed = files.ensure_directory(folder) if wanted else False
    if not folder.is_dir():
        return changed
    with locks.alone_in(folder):
        for path in folder.glob("*.json"):
            if path.name not in wanted:
                changed |= files.ensure_absent(path)
        for name, record in wanted.items():
            changed |= files.ensure_file(folder / name, json.dumps(record) + "\n")
    return changed
