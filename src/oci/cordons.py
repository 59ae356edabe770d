# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs that the wrapper must not hand out for now: a file `<UUID>.json` with the reason each."""

import collections.abc
import json

from gpuci import policy
from machine import files
from oci import wrapper


def reasons() -> dict[str, str]:
    """The UUIDs of the GPUs that are cordoned now, each with the reason.

    Raises:
        OSError: the folder can't be read.
    """
    return policy.cordons(str(wrapper.CORDONS))


def ensure(cordoned: collections.abc.Iterable[tuple[str, str]]) -> bool:
    """Cordon these GPUs (UUID and reason) and no others. Return True if that changed anything."""
    wanted = {f"{uuid}.json": {"reason": reason} for uuid, reason in cordoned}
    changed = False
    for path in wrapper.CORDONS.glob("*.json"):
        if path.name not in wanted:
            changed |= files.ensure_absent(path)
    if wanted:
        changed |= files.ensure_directory(wrapper.CORDONS)
    for name, content in wanted.items():
        changed |= files.ensure_file(wrapper.CORDONS / name, json.dumps(content) + "\n")
    return changed
