# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A container's variables: who wrote each, and their values with a grant. Pure.

Concourse's web writes the image's variables first, then ATC_EXTERNAL_URL, then the task's params,
then the worker's proxies (Concourse 8.2.5 atc/worker/gardenruntime/worker.go:214,244-259 and
atc/exec/task_step.go:439-441). So a variable before ATC_EXTERNAL_URL is the image's, and one after
it is the author's. Without it all are the image's.
"""

from __future__ import annotations

from gpu_runtime.refusal import Refused

WRITERS_BORDER = "ATC_EXTERNAL_URL"
COUNT = "GPU_COUNT"

# An author may narrow a grant with these. In an image they would turn a GPU task into a CPU run.
# CUDA's, ROCm's three (HIP heeds CUDA's too) and Level Zero's, all lists of indexes or ids.
NARROWING = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
    }
)
# Their values for "none": CUDA stops at the first entry that is not a device.
_NO_DEVICE = frozenset({"", "-1", "NoDevFiles"})

# Requests beside NVIDIA_VISIBLE_DEVICES that nvidia-container-toolkit 1.17 to 1.20 takes from a
# container's variables (internal/config/image/cuda_image.go), and the one of AMD's runtime (ROCm
# container-toolkit 1.3 internal/oci/oci.go): each would widen a grant.
DOORS = frozenset(
    {
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_GDS",
        "NVIDIA_MOFED",
        "NVIDIA_GDRCOPY",
        "NVIDIA_NVSWITCH",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_MIG_MONITOR_DEVICES",
        "AMD_VISIBLE_DEVICES",
    }
)
DOOR_PREFIX = "DOCKER_RESOURCE_"  # what swarm-resource commonly names

# With runc before 1.3 createContainer hooks run with the container's variables (runc
# libcontainer/init_linux.go), so these would load a pipeline's code into NVIDIA's hooks, or make
# their loader write files. At create they reach Concourse's gdn-init only: the step gets its
# own at exec.
LOADER = ("LD_", "GLIBC_TUNABLES", "GCONV_PATH")


# An image's requirements on driver and GPU; image_requirements.py reads them. Tegra's
# variables list mounts (nvidia-container-toolkit 1.20 internal/config/image/cuda_image.go).
_REQUIRE, _REQUIRE_TEGRA = "NVIDIA_REQUIRE_", "NVIDIA_REQUIRE_JETPACK"
_REQUIRE_NOTHING = "NVIDIA_DISABLE_REQUIRE"
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})  # Go's strconv.ParseBool


class Requirement:
    """A requirement on driver and GPU.

    Attributes:
        name: the variable that has it.
        text: its value; for CUDA_VERSION the condition that it means.
        authors: whether the pipeline's author, or the person who started the container, wrote it.
    """

    __slots__ = ("authors", "name", "text")

    def __init__(self, name: str, text: str, *, authors: bool) -> None:
        self.name = name
        self.text = text
        self.authors = authors


class Variables:
    """A container's variables in their order, each with its writer.

    Attributes:
        entries: name, whole entry (`NAME=value`), and whether the pipeline's author wrote it.
        noun: `task` or `container`, for messages.
    """

    __slots__ = ("entries", "noun")

    def __init__(self, entries: list[str]) -> None:
        """Find the writer of each entry; drop entries without a name.

        Raises:
            Refused: WRITERS_BORDER is set twice, so the writers are ambiguous.
        """
        named = [(entry.partition("=")[0], entry) for entry in entries if "=" in entry]
        borders = [place for place, (name, _) in enumerate(named) if name == WRITERS_BORDER]
        if len(borders) > 1:
            raise Refused(
                "reserved-variable",
                f"{WRITERS_BORDER} is reserved by the CI system and set more than once. Remove it "
                "from the task's params and from the image's variables",
            )
        border = borders[0] if borders else len(named)
        self.noun = "task"
        self.entries = [
            (name, entry, place > border) for place, (name, entry) in enumerate(named) if name
        ]

    @classmethod
    def apart(cls, entries: list[str], image: list[str]) -> Variables:
        """Make those of an engine's container: each that is not the `image`'s is a person's."""
        found = cls([])
        found.noun = "container"
        named = [(entry.partition("=")[0], entry) for entry in entries if "=" in entry]
        found.entries = [(name, entry, entry not in image) for name, entry in named if name]
        return found

    def asked(self) -> str | None:
        """Return the author's GPU_COUNT as it was written; None if there is none."""
        found = [entry for name, entry, authors in self.entries if authors and name == COUNT]
        return found[-1].partition("=")[2] if found else None

    def check_narrowing(self, count: int, ids: list[str]) -> None:
        """Check that no variable of the author names a device outside the lease.

        Args:
            count: the number of devices of the lease.
            ids: their ids; empty while they are not known yet, when every id passes.

        Raises:
            Refused: a variable names another device.
        """
        for name, entry, authors in self.entries:
            if not authors or name not in NARROWING:
                continue
            value = entry.partition("=")[2]
            for item in (part.strip() for part in value.split(",")):
                if not _is_within(item, count, ids):
                    raise Refused(
                        "gpu-index-invalid",
                        f"{name}={value[:64]}: '{item[:64]}' does not exist, because this "
                        f"{self.noun} has {count} GPU{'' if count == 1 else 's'}, numbered from "
                        f"0. To get more, set {COUNT}",
                    )

    def required(self) -> list[Requirement]:
        """Return the requirements on driver and GPU; the last value of a name counts.

        CUDA_VERSION of an image without NVIDIA_REQUIRE_CUDA is the CUDA version that it was made
        for. Such an image runs on each driver of that major version (CUDA Compatibility, "Minor
        Version Compatibility", from CUDA 11 on). CUDA_VERSION as a param is not a requirement.
        """
        last = {name: (entry.partition("=")[2], authors) for name, entry, authors in self.entries}
        if last.get(_REQUIRE_NOTHING, ("", False))[0] in _TRUE:
            return []
        found = [
            Requirement(name, value, authors=authors)
            for name, (value, authors) in last.items()
            if name.startswith(_REQUIRE) and not name.startswith(_REQUIRE_TEGRA)
        ]
        version, authors = last.get("CUDA_VERSION", ("", True))
        if not authors and not last.get(f"{_REQUIRE}CUDA", ("", False))[0]:
            major, minor, *_ = (*version.removeprefix("v").split(".", 2), "0")
            if all(part.isdecimal() and part.isascii() for part in (major, minor)):
                least = f"{major}.0" if len(major) > 1 and major > "10" else f"{major}.{minor}"
                found.append(Requirement("CUDA_VERSION", f"cuda>={least}", authors=False))
        return found

    def with_(self, ours: dict[str, str], unwanted: tuple[str, ...] = ()) -> list[str]:
        """Return the entries with exactly one of each variable in `ours`.

        Dropped: every other entry of a name in `ours`, the DOORS, the image's NARROWING ones, and
        names that begin with one of `unwanted`.
        """
        dropped = DOORS | ours.keys()
        kept = [
            entry
            for name, entry, authors in self.entries
            if name not in dropped
            and not name.startswith((DOOR_PREFIX, *unwanted))
            and (authors or name not in NARROWING)
        ]
        return kept + [f"{name}={value}" for name, value in ours.items()]


def _is_within(item: str, count: int, ids: list[str]) -> bool:
    if item in _NO_DEVICE:
        return True
    number = item.partition(".")[0]  # Level Zero writes a tile as 0.1
    if number.isdecimal() and number.isascii():
        return len(number) < 10 and int(number) < count
    # CUDA takes the beginning of a UUID for the whole.
    return not ids or any(name.lower().startswith(item.lower()) for name in ids)
