# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A container's variables: who wrote which, and what they become when GPUs were granted. Pure.

Concourse's web writes the image's variables first, then ATC_EXTERNAL_URL, then the task's params,
then the worker's proxies (Concourse 8.2.5 atc/worker/gardenruntime/worker.go:214,244-259 and
atc/exec/task_step.go:439-441). So a variable before ATC_EXTERNAL_URL is the image's and one after
it the author's; without it all are the image's.
"""

from __future__ import annotations

from gpuci.refuse import Refused

WRITERS_BORDER = "ATC_EXTERNAL_URL"

# An author may narrow a grant by these; from an image they would turn a GPU job into a CPU run.
NARROWING = frozenset(
    {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}
)

# Requests beside NVIDIA_VISIBLE_DEVICES that nvidia-container-toolkit 1.17 to 1.20 takes from a
# container's variables (internal/config/image/cuda_image.go): each would widen a grant.
DOORS = frozenset(
    {
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_GDS",
        "NVIDIA_MOFED",
        "NVIDIA_GDRCOPY",
        "NVIDIA_NVSWITCH",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_MIG_MONITOR_DEVICES",
    }
)
DOOR_PREFIX = "DOCKER_RESOURCE_"  # what swarm-resource commonly names

# With runc before 1.3 createContainer hooks run with the container's variables (runc
# libcontainer/init_linux.go), so these would load a pipeline's code into NVIDIA's hooks. At create
# they reach nothing but Concourse's gdn-init: the step gets its own at exec.
LOADER = frozenset({"LD_PRELOAD", "LD_AUDIT"})


def rewrite(
    entries: list[str], ours: dict[str, str], unwanted: frozenset[str] = frozenset()
) -> list[str]:
    """The variables `entries` (`NAME=value` each) with exactly one entry of each one in `ours`.

    Dropped: every other entry of a name in `ours`, the DOORS, the image's NARROWING ones, names in
    `unwanted`, and entries that name no variable, at which the NVIDIA runtime fails.

    Raises:
        Refused: WRITERS_BORDER is there twice, so nobody can tell who wrote what.
    """
    names = [entry.partition("=")[0] if "=" in entry else "" for entry in entries]
    if names.count(WRITERS_BORDER) > 1:
        raise Refused(
            f"{WRITERS_BORDER} is set more than once, so this task cannot be given a GPU; "
            "it is Concourse's own: remove it from the image's variables and the task's params"
        )
    authors = names.index(WRITERS_BORDER) if WRITERS_BORDER in names else len(names)
    dropped = DOORS | unwanted | ours.keys()
    kept = [
        entry
        for place, (name, entry) in enumerate(zip(names, entries, strict=True))
        if name
        and name not in dropped
        and not name.startswith(DOOR_PREFIX)
        and (name not in NARROWING or place > authors)
    ]
    return kept + [f"{name}={value}" for name, value in ours.items()]
