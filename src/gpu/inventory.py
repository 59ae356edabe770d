# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What was found on this machine, frozen: the words that every other room uses for GPUs."""

import dataclasses
import enum


class Vendor(enum.Enum):
    """Makers of GPUs, by the name that tags and options use."""

    NVIDIA = "nvidia"

    @property
    def display(self) -> str:
        """The name as an operator writes it in a sentence."""
        return {"nvidia": "NVIDIA"}[self.value]


class State(enum.Enum):
    """What stands between this machine and a usable GPU; READY when nothing does."""

    READY = "ready"
    NO_GPU = "no GPU"
    VFIO = "bound to vfio-pci"
    NOUVEAU = "nouveau loaded"
    NO_DRIVER = "no driver"
    NOT_PASSED = "in a container without the device"
    NO_LIBRARY = "no NVML library"
    MISMATCH = "driver and library differ"
    NVML_ERROR = "NVML failed"


@dataclasses.dataclass(frozen=True)
class MigDevice:
    """One slice of a GPU whose MIG mode is on. `uuid` begins with `MIG-`."""

    uuid: str
    profile: str


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU as NVML reports it.

    Attributes:
        index: NVML's index at the time of detection; it changes when another GPU is lost.
        uuid: `GPU-` and 32 hex digits with dashes; stays with the card.
        vendor: the maker.
        model: NVML's product name, such as `NVIDIA A100-SXM4-80GB`.
        memory_mib: total memory in MiB as NVML reports it, a little under the size as sold; 0
            where it reports none, as for GPUs that share the machine's memory.
        pci_address: domain, bus, device, function in lower case, such as `0000:01:00.0`.
        minor: the minor number N of `/dev/nvidiaN`.
        mig_enabled: whether MIG mode is on: then the card itself can't be handed out.
        mig: its MIG devices; empty unless MIG mode is on.
    """

    index: int
    uuid: str
    vendor: Vendor
    model: str
    memory_mib: int
    pci_address: str
    minor: int
    mig_enabled: bool = False
    mig: tuple[MigDevice, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The UUIDs that tasks are given for it: its own, or those of its MIG devices."""
        if self.mig_enabled:
            return tuple(device.uuid for device in self.mig)
        return (self.uuid,)


@dataclasses.dataclass(frozen=True)
class Inventory:
    """All GPUs of this machine, in NVML's order, or the state that keeps them from use.

    Attributes:
        state: READY when `gpus` can be used.
        gpus: what NVML lists; empty in every other state.
        driver: version of the loaded kernel driver, such as `580.95.05`; empty if none.
        cuda: highest CUDA version of that driver, such as `13.0`; empty if unknown.
        lost: PCI addresses of GPUs that the driver has but that do not answer NVML.
        detail: what exactly was seen, for the operator: PCI addresses, NVML's own words.
    """

    state: State
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    lost: tuple[str, ...] = ()
    detail: str = ""
