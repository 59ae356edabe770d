# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which GPUs tasks may get, what stands against it, and the tags that say so. Pure."""

import collections.abc
import dataclasses
import re
import typing

import obstacles
from found import Found, Quarantine, RememberedIds
from gpu.inventory import Gpu, State, Vendor

# The tag of a worker whose GPUs are all in quarantine.
NO_GPU_LEFT: typing.Final = "gpu-quarantined"

# Sizes that GPUs are sold with, in GiB; NVML reports up to a tenth less.
_SOLD_GIB: typing.Final = (
    2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 288,
)  # fmt: skip
# Those that a pipeline would ask for at least.
_LADDER_GIB: typing.Final = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 180, 192, 288)
# The last minor release of each major one, of those that there are in November 2026
# (developer.nvidia.com/cuda-toolkit-archive).
_LAST_CUDA: typing.Final = {12: 9, 13: 4}


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


def pool(found: Found, choice: Choice) -> Choice:
    """The same without the GPUs that are in quarantine: what the worker's tags promise."""
    out = {entry.uuid for entry in found.quarantined}
    left = [
        (index, gpu)
        for index, gpu in zip(choice.indexes, choice.gpus, strict=True)
        if gpu.uuid not in out
    ]
    return dataclasses.replace(
        choice,
        gpus=tuple(gpu for _, gpu in left),
        indexes=tuple(index for index, _ in left),
    )


def note(found: Found, choice: Choice) -> str:
    """What status says of the GPUs, such as `2x NVIDIA`; the choice must not be empty.

    What changes by the minute, after the `:` of a reason, is left out.
    """
    quarantined = _quarantined(found, choice)
    gone = {entry.uuid for entry in found.quarantined}
    reasons = {uuid: reason for uuid, reason in found.cordoned if uuid not in gone}
    out = [
        f"GPU {index} {reasons[gpu.uuid].partition(':')[0]}"
        for index, gpu in zip(choice.indexes, choice.gpus, strict=True)
        if gpu.uuid in reasons
    ]
    count = len(pool(found, choice).gpus) - len(out)
    note = f"{count}x {choice.gpus[0].vendor.display}"
    if quarantined:
        shown = [_quarantine_words(indexes, entry) for indexes, entry in quarantined]
        note += f", {len(choice.gpus) - count - len(out)} quarantined: {', '.join(shown)}"
    if out:
        note += f", {len(out)} cordoned: {', '.join(out)}"
    if choice.missing:
        note += f", {len(choice.missing)} missing: GPU {', '.join(map(str, choice.missing))}"
    if choice.lost:
        note += f", {len(choice.lost)} lost: {', '.join(choice.lost)}"
    return note + _verdict_words(found, {entry.reason for _, entry in quarantined})


def _quarantined(found: Found, choice: Choice) -> list[tuple[list[int], Quarantine]]:
    """The quarantined of the allowed GPUs, by what is said of them."""
    entries = {entry.uuid: entry for entry in found.quarantined}
    alike: dict[tuple[str, str, str], tuple[list[int], Quarantine]] = {}
    for index, gpu in zip(choice.indexes, choice.gpus, strict=True):
        if entry := entries.get(gpu.uuid):
            key = entry.reason.partition(":")[0], _in_brackets(entry.remedy), entry.by
            alike.setdefault(key, ([], entry))[0].append(index)
    return list(alike.values())


def _quarantine_words(indexes: list[int], entry: Quarantine) -> str:
    reason = entry.reason.partition(":")[0]
    return f"GPU {', '.join(map(str, indexes))} {reason}{_in_brackets(entry.remedy)}"


def _verdict_words(found: Found, shown: set[str]) -> str:
    """What there is to say of the verdict besides what quarantine's reasons show."""
    verdict = found.verdict
    if verdict is None:
        return ""
    if verdict.outcome == "failed" and shown and verdict.failure in {*shown, ""}:
        return ""
    what = "self-test of one GPU" if verdict.partial else "self-test"
    words = f", {what} {verdict.outcome}"
    if verdict.failure:
        words += f": {verdict.failure}"
    return words + _in_brackets(verdict.remedy)


def _in_brackets(remedy: str) -> str:
    """The first step of a remedy; the report of the self-test has all of it."""
    step = re.split(r" \(|[;:]|\. ", remedy)[0]
    return f" ({step})" if step else ""


def none_left(found: Found, choice: Choice) -> str:
    """What to do where every allowed GPU is in quarantine; empty where one is not."""
    if not choice.gpus or pool(found, choice).gpus:
        return ""
    quarantined = _quarantined(found, choice)
    shown = [_quarantine_words(indexes, entry) for indexes, entry in quarantined]
    commands = {
        f"juju run {found.unit} gpu-selftest level={entry.level}"
        if entry.by == "self-test"
        else f"juju run {found.unit} gpu-uncordon gpu=gpu-{indexes[0]} reason=..."
        for indexes, entry in quarantined
    }
    return f"All GPUs are quarantined: {', '.join(shown)}. Then {' and '.join(sorted(commands))}"


def tags(found: Found, choice: Choice) -> tuple[str, ...]:
    """Tags of a worker with GPUs, in their documented order: facts, ladders, the operator's own.

    What is counted, and whose memory is told, is what one task is given: a GPU or, where MIG mode
    is on, one of its MIG devices. The model is there only where all GPUs agree on it, the memory
    is that of the smallest. A ladder says "at least", since Concourse compares tags as they are.

    Without any GPU left there is still one: a worker without tags is sent everybody's untagged
    tasks, which would all be refused for want of a GPU.
    """
    inventory, gpus = found.inventory, choice.gpus
    if not gpus:
        return tuple(dict.fromkeys((NO_GPU_LEFT, *found.options.tags)))
    count, memory = len(devices(gpus)), min(memory_gib(gpu) for gpu in gpus)
    tags = ["gpu", f"gpu-type={gpus[0].vendor.value}", f"gpu-count={count}"]
    if found.options.gpu_device_ids:
        tags.append("gpu-devices=" + ",".join(str(index) for index in choice.indexes))
    model, *others = {_model_tag(gpu.model) for gpu in gpus}
    if model and not others:
        tags.append(f"gpu-model={model}")
    if memory:
        tags.append(f"gpu-memory={memory}GiB")
    if inventory and inventory.cuda:
        tags.append(f"cuda={inventory.cuda}")
    if inventory and inventory.driver:
        tags.append(f"driver={inventory.driver.split('.')[0]}")
    tags += [f"gpu-count>={number}" for number in range(1, count + 1)]
    tags += [f"gpu-memory>={size}GiB" for size in _LADDER_GIB if size <= memory]
    tags += [f"cuda>={release}" for release in _cuda_up_to(inventory.cuda if inventory else "")]
    return tuple(dict.fromkeys((*tags, *found.options.tags)))


def devices(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """The ids that tasks are given for these GPUs: UUIDs, where MIG mode is on of MIG devices."""
    return tuple(dict.fromkeys(device for gpu in gpus for device in gpu.devices))


def _model_tag(model: str) -> str:
    name = re.sub(r"\((?:r|tm|c)\)", " ", model.lower())
    name = re.sub(r"^\s*(?:nvidia|amd|intel)\s+", "", name)
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def memory_gib(gpu: Gpu) -> int:
    """What a task has of a GPU at least, as sold, in GiB; 0 if unknown.

    A profile of MIG tells it: `1g.10gb`, `1g.10gb+me`.
    """
    if gpu.mig_enabled:
        told = [re.search(r"(?<![0-9])([0-9]{1,4})gb", device.profile) for device in gpu.mig]
        return min((int(match.group(1)) if match else 0 for match in told), default=0)
    gib = gpu.memory_mib / 1024
    return next((size for size in _SOLD_GIB if gib <= size <= gib * 1.1), round(gib))


def _cuda_up_to(version: str) -> collections.abc.Iterator[str]:
    """CUDA's releases from 12.0 up to the one that the driver can run; none if it is unknown."""
    match = re.fullmatch(r"([0-9]{1,2})\.([0-9]{1,2})", version)
    major, minor = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    for earlier in range(12, major):
        yield from (f"{earlier}.{n}" for n in range(_LAST_CUDA.get(earlier, 0) + 1))
    if major >= 12:
        yield from (f"{major}.{n}" for n in range(minor + 1))


def problem_with(found: Found, choice: Choice) -> str:
    """Why no task can get a GPU here although GPUs were asked for, with the remedy; or empty."""
    inventory = found.inventory
    if inventory is None:
        return ""
    unusable = obstacles.of_state(inventory, found.application, found.options.gpu_vendor)
    if unusable:
        return str(unusable)
    by_runtime = inventory.vendor is Vendor.NVIDIA
    toolkit = obstacles.of_toolkit(found.machine.toolkit) if by_runtime else None
    return (
        choice.problem
        or _unsliced(choice.gpus)
        or _too_few(found, choice.gpus)
        or str(toolkit or "")
    )


def _unsliced(gpus: tuple[Gpu, ...]) -> str:
    empty = [str(gpu.index) for gpu in gpus if not gpu.devices]
    if not empty:
        return ""
    return (
        f"GPU {', '.join(empty)} has MIG mode on but no MIG device: make some with "
        "nvidia-smi mig -cgi, or switch MIG mode off"
    )


def _too_few(found: Found, gpus: tuple[Gpu, ...]) -> str:
    options, have = found.options, len(devices(gpus))
    if options.gpus_per_task <= have:
        return ""
    kinds = sorted({"MIG device" if gpu.mig_enabled else "GPU" for gpu in gpus})
    nouns = " and ".join(kind if have == 1 else f"{kind}s" for kind in kinds)
    more = ", or choose more with gpu-device-ids" if options.gpu_device_ids else ""
    return (
        f"gpus-per-task '{options.gpus_per_task}' is more than the {have} {nouns} that tasks may "
        f"use here: juju config {found.application} gpus-per-task={have}{more}"
    )
