# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which GPUs tasks may get, what stands against it, and the tags that say so. Pure."""

import collections.abc
import dataclasses
import re
import typing

from found import Found, RememberedIds, Toolkit
from gpu.inventory import Gpu, State

# First version in which no CVE of the container toolkit is known: CVE-2026-24260 (CVSS 8.5)
# affects all up to 1.19.0 (NVIDIA product-security bulletin 5850).
MINIMUM_TOOLKIT: typing.Final = (1, 19, 1)

# Sizes that GPUs are sold with, in GiB; NVML reports up to a tenth less.
_SOLD_GIB: typing.Final = (
    2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 288,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Choice:
    """The GPUs that gpu-device-ids allows, under the indexes that the operator knows them by.

    Attributes:
        gpus: the allowed GPUs that are here.
        indexes: what each of them is called: its index when the option was set.
        missing: the same for allowed GPUs that are not here.
        lost: PCI addresses of GPUs that do not answer; only where all GPUs are allowed.
        remember: what the chosen ids mean from now on.
        problem: why none can be chosen, with the remedy; or empty.
    """

    gpus: tuple[Gpu, ...] = ()
    indexes: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    lost: tuple[str, ...] = ()
    remember: RememberedIds = dataclasses.field(default_factory=RememberedIds)
    problem: str = ""


def choose(found: Found) -> Choice:
    """The allowed GPUs. An index keeps meaning the card that it meant when it was set."""
    inventory, chosen = found.inventory, found.options.gpu_device_ids
    if inventory is None or inventory.state is not State.READY:
        return Choice(remember=found.remembered)
    if not chosen:
        indexes = tuple(gpu.index for gpu in inventory.gpus)
        return Choice(inventory.gpus, indexes, lost=inventory.lost)
    known = found.remembered if found.remembered.chosen == chosen else RememberedIds()
    if not known.uuids:
        meanings = list(_meanings(chosen, inventory.gpus))
        known = RememberedIds(
            chosen,
            uuids=tuple((item, gpu.uuid) for item, gpu in meanings),
            indexes=tuple(gpu.index for _, gpu in meanings),
        )
        unknown = [item for item in chosen if item not in dict(known.uuids)]
        if unknown:
            have = ", ".join(str(gpu.index) for gpu in inventory.gpus)
            return Choice(
                remember=found.remembered,
                problem=f"gpu-device-ids '{','.join(chosen)}': no GPU has the id "
                f"{', '.join(unknown)}. This machine has {have}",
            )
    present = {gpu.uuid: gpu for gpu in inventory.gpus}
    # One card may have been named twice, by its index and by its UUID.
    meant = sorted({(i, uuid) for i, (_, uuid) in zip(known.indexes, known.uuids, strict=True)})
    here = [(index, uuid) for index, uuid in meant if uuid in present]
    if not here:
        return Choice(
            remember=known,
            problem=f"All GPUs of gpu-device-ids '{','.join(chosen)}' are gone: bring them back "
            "(dmesg, lspci) or choose others; if cards were swapped, set it to all and then back",
        )
    return Choice(
        gpus=tuple(present[uuid] for _, uuid in here),
        indexes=tuple(index for index, _ in here),
        missing=tuple(index for index, uuid in meant if uuid not in present),
        remember=known,
    )


def _meanings(
    chosen: tuple[str, ...], gpus: tuple[Gpu, ...]
) -> collections.abc.Iterator[tuple[str, Gpu]]:
    for item in chosen:
        for gpu in gpus:
            if item in (str(gpu.index), gpu.uuid, gpu.pci_address):
                yield item, gpu


def note(choice: Choice) -> str:
    """What status says of the GPUs, such as `2x NVIDIA`; the choice must not be empty."""
    note = f"{len(choice.gpus)}x {choice.gpus[0].vendor.display}"
    if choice.missing:
        note += f", {len(choice.missing)} missing: GPU {', '.join(map(str, choice.missing))}"
    if choice.lost:
        note += f", {len(choice.lost)} lost: {', '.join(choice.lost)}"
    return note


def tags(found: Found, choice: Choice) -> tuple[str, ...]:
    """Tags of a worker with GPUs, in their documented order.

    The model is there only where all GPUs agree on it, the memory is that of the smallest.
    """
    inventory, gpus = found.inventory, choice.gpus
    tags = ["gpu", f"gpu-type={gpus[0].vendor.value}", f"gpu-count={len(gpus)}"]
    if found.options.gpu_device_ids:
        tags.append("gpu-devices=" + ",".join(str(index) for index in choice.indexes))
    model, *others = {_model_tag(gpu.model) for gpu in gpus}
    if model and not others:
        tags.append(f"gpu-model={model}")
    memory_mib = min(gpu.memory_mib for gpu in gpus)
    if memory_mib:
        tags.append(f"gpu-memory={_sold_gib(memory_mib)}GiB")
    if inventory and inventory.cuda:
        tags.append(f"cuda={inventory.cuda}")
    if inventory and inventory.driver:
        tags.append(f"driver={inventory.driver.split('.')[0]}")
    return tuple(dict.fromkeys((*tags, *found.options.tags)))


def _model_tag(model: str) -> str:
    name = re.sub(r"^nvidia\s+", "", model.strip().lower())
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def _sold_gib(memory_mib: int) -> int:
    gib = memory_mib / 1024
    return next((size for size in _SOLD_GIB if gib <= size <= gib * 1.1), round(gib))


def problem_with(found: Found, choice: Choice) -> str:
    """Why no task can get a GPU here although GPUs were asked for, with the remedy; or empty."""
    inventory = found.inventory
    if inventory is None:
        return ""
    if inventory.state is not State.READY:
        return _STATE_REMEDY[inventory.state].format(
            detail=inventory.detail, application=found.application
        )
    if choice.problem:
        return choice.problem
    empty = [str(gpu.index) for gpu in choice.gpus if not gpu.devices]
    if empty:
        return (
            f"GPU {', '.join(empty)} has MIG mode on but no MIG device: make some with "
            "nvidia-smi mig -cgi, or switch MIG mode off"
        )
    return _toolkit_problem(found.machine.toolkit)


def _toolkit_problem(toolkit: Toolkit | None) -> str:
    minimum = ".".join(str(number) for number in MINIMUM_TOOLKIT)
    if toolkit is None:
        return (
            "nvidia-container-runtime is missing: install nvidia-container-toolkit "
            f"{minimum} or newer"
        )
    version = tuple(int(number) for number in re.findall(r"[0-9]+", toolkit.version)[:3])
    if not version:
        return (
            f"{toolkit.path} --version tells no version: install nvidia-container-toolkit "
            f"{minimum} or newer"
        )
    if version < MINIMUM_TOOLKIT:
        return (
            f"nvidia-container-runtime {toolkit.version} has known vulnerabilities "
            f"(CVE-2026-24260): install nvidia-container-toolkit {minimum} or newer"
        )
    return ""


_STATE_REMEDY: typing.Final = {
    State.NO_GPU: (
        "No GPU found on the PCI bus: pass one through (lxc config device add <instance> gpu0 "
        "gpu), or juju config {application} enable-gpu=false"
    ),
    State.VFIO: (
        "GPU {detail} is bound to vfio-pci for a virtual machine: give it back to the nvidia "
        "driver, or juju config {application} enable-gpu=false"
    ),
    State.NOUVEAU: (
        "GPU {detail} is driven by nouveau, which runs no CUDA: install NVIDIA's driver and reboot"
    ),
    State.NO_DRIVER: (
        "GPU {detail} has no driver: install it with ubuntu-drivers install --gpgpu and reboot"
    ),
    State.NOT_PASSED: (
        "GPU {detail} is on the host but not in this container: pass it in (lxc config device add "
        "<instance> gpu0 gpu), or juju config {application} enable-gpu=false"
    ),
    State.NO_LIBRARY: (
        "NVIDIA driver {detail} is loaded but libnvidia-ml.so.1 is missing: install "
        "libnvidia-compute of the same version"
    ),
    State.MISMATCH: (
        "NVIDIA driver and libnvidia-ml.so.1 differ in version ({detail}): reboot, or install "
        "matching versions"
    ),
    State.NVML_ERROR: "NVML failed: {detail}. See dmesg for NVRM and Xid lines, then reboot",
}
