# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs that the wrapper must not hand out for now: a file `<UUID>.json` with the reason each."""

import collections.abc
import json

from gpu_agent import paths as wrapper
from gpu_runtime import policy
from machine import files, locks

Gpus = collections.abc.Iterable[tuple[str, str]]
"""UUIDs, each with the reason."""


def reasons() -> dict[str, str]:
    """The UUIDs of the GPUs that others use, each with the reason; not those that are unusable.

    Raises:
        OSError: the folder can't be read.
    """
    return policy.cordons(str(wrapper.CORDONS), policy.SELF_TEST_CONTAINER)


def ensure(cordoned: Gpus, unusable: Gpus = ()) -> bool:
    """Cordon these GPUs and no others. Return True if that changed anything.

    Args:
        cordoned: those that others use: for nobody.
        unusable: those that are of no use to tasks now: for the self-test alone, which finds out
            whether they are again.
    """
    wanted = {f"{uuid}.json": {"reason": reason} for uuid, reason in cordoned}
    for uuid, reason in unusable:
        wanted[f"{uuid}.json"] = {"reason": reason, "by": "self-test"}
    changed = files.ensure_directory(wrapper.CORDONS) if wanted else False
    if not wrapper.CORDONS.is_dir():
        return changed
    # The watch writes here too: gpu_agent.availability.residual_memory.
    with locks.alone_in(wrapper.CORDONS):
        for path in wrapper.CORDONS.glob("*.json"):
            if path.name not in wanted:
                changed |= files.ensure_absent(path)
        for name, content in wanted.items():
            changed |= files.ensure_file(wrapper.CORDONS / name, json.dumps(content) + "\n")
    return changed
