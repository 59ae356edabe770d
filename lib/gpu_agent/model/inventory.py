# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The GPUs of this machine: frozen types, and pure functions on them."""

import dataclasses
import enum
import re
import typing


class State(enum.Enum):
    """Why this machine has no usable GPU; READY if it has.

    NOUVEAU and states with NVML in their name are for NVIDIA only, NO_KFD for AMD. If an Inventory
    is HUNG, missing values such as the driver's version are unknown.
    """

    READY = "ready"
    NO_GPU = "no GPU"
    VFIO = "bound to vfio-pci"
    NOUVEAU = "nouveau loaded"
    NO_DRIVER = "no driver"
    NOT_PASSED = "in a container without the device"
    NO_LIBRARY = "no NVML library"
    MISMATCH = "driver and library differ"
    NVML_ERROR = "NVML failed"
    HUNG = "the driver does not answer"
    NO_KFD = "not in KFD"


@dataclasses.dataclass(frozen=True)
class MigDevice:
    """One slice of a GPU whose MIG mode is on. `uuid` begins with `MIG-`."""

    uuid: str
    profile: str


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU as its driver reports it; a partition of an AMD GPU is a GPU of its own.

    Attributes:
        index: NVML's index, or the place in the order of PCI addresses, at the time of
            detection; it changes when another GPU is lost.
        uuid: what tasks are given to name it, and what stays with the card where it has such a
            thing. NVIDIA: `GPU-` and 32 hex digits with dashes. AMD: `GPU-` and the 16 hex
            digits of KFD's unique_id. Without one, and for Intel: `PCI-` and the PCI address; for
            a partition of an AMD GPU that has no id of its own, `:` and the partition follow.
        vendor: the name of its vendor, as in tags and options.
        model: the product's name, such as `NVIDIA A100-SXM4-80GB` or `AMD Instinct MI300X`.
        memory_mib: total memory in MiB as the driver reports it, a little under the size as sold;
            0 where it reports none, as for GPUs that share the machine's memory.
        pci_address: domain, bus, device, function in lower case, such as `0000:01:00.0`.
        minor: the minor number N of `/dev/nvidiaN`; -1 for the others, which have no such thing.
        arch: CUDA's compute capability, such as `8.0`; empty for the others, or if unknown.
        brand: NVIDIA's brand as NVIDIA_REQUIRE_* names it, such as `tesla`; empty the same.
        mig_enabled: whether MIG mode is on: then the card itself can't be handed out.
        mig: its MIG devices; empty unless MIG mode is on.
        nodes: absolute paths of the device nodes that a container needs, by names that survive a
            reboot where there are such; empty for NVIDIA, whose runtime knows them.
    """

    index: int
    uuid: str
    vendor: str
    model: str
    memory_mib: int
    pci_address: str
    minor: int
    mig_enabled: bool = False
    mig: tuple[MigDevice, ...] = ()
    nodes: tuple[str, ...] = ()
    arch: str = ""
    brand: str = ""

    @property
    def devices(self) -> tuple[str, ...]:
        """The UUIDs that tasks are given for it: its own, or those of its MIG devices."""
        if self.mig_enabled:
            return tuple(device.uuid for device in self.mig)
        return (self.uuid,)


@dataclasses.dataclass(frozen=True)
class Inventory:
    """All GPUs of one vendor in this machine, or the state that keeps them from use.

    Attributes:
        state: READY when `gpus` can be used.
        gpus: what can be used, in the order of their indexes; empty in every other state.
        driver: version of the loaded kernel driver, such as `580.95.05`; empty if there is none
            or, as for the drivers that come with the kernel, it has no version of its own.
        cuda: highest CUDA version of that driver, such as `13.0`; empty if unknown.
        lost: PCI addresses of GPUs that the driver has but that can't be used: they do not
            answer NVML, are not in KFD, or have no device node.
        detail: what exactly was seen, for the operator: PCI addresses, NVML's own words.
        vendor: the name of the vendor whose GPUs were looked for; if any would do, of the one that
            was found.
    """

    state: State
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    lost: tuple[str, ...] = ()
    detail: str = ""
    vendor: str = dataclasses.field(kw_only=True)


# Sizes that GPUs are sold with, in GiB; NVML reports up to a tenth less.
_SOLD_GIB: typing.Final = (
    2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 288,
)  # fmt: skip


def devices(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """The ids that tasks are given for these GPUs: UUIDs, where MIG mode is on of MIG devices."""
    return tuple(dict.fromkeys(device for gpu in gpus for device in gpu.devices))


def memory_gib(gpu: Gpu) -> int:
    """The least memory that a task gets of a GPU, as sold, in GiB; 0 if unknown.

    For MIG devices it is in the profile's name: `1g.10gb`, `1g.10gb+me`.
    """
    if gpu.mig_enabled:
        told = [re.search(r"(?<![0-9])([0-9]{1,4})gb", device.profile) for device in gpu.mig]
        return min((int(match.group(1)) if match else 0 for match in told), default=0)
    gib = gpu.memory_mib / 1024
    return next((size for size in _SOLD_GIB if gib <= size <= gib * 1.1), round(gib))
