# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Chooses the GPUs for tasks, and finds what prevents their use. Pure."""

import collections.abc
import dataclasses

from gpu_agent.diagnosis import states as host_states
from gpu_agent.model import inventory as model_inventory
from gpu_agent.model.inventory import Gpu, State
from gpu_runtime.unavailable import UNUSABLE, Unavailable
from plan import diagnosis, messages
from plan.messages import Level, Line
from plan.state import RememberedIds, UnitState

Unusable = tuple[tuple[str, Unavailable], ...]
"""UUIDs of GPUs that tasks cannot use now, each with the cause."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The GPUs that gpu-device-ids allows, under the indexes that the operator knows them by.

    Attributes:
        gpus: the allowed GPUs that are here.
        indexes: what each of them is called: its index when the option was set.
        missing: the same for allowed GPUs that are not here.
        lost: PCI addresses of GPUs that do not answer; only where all GPUs are allowed.
        remember: what the chosen ids mean from now on.
        problem: why none can be chosen; or None.
    """

    gpus: tuple[Gpu, ...] = ()
    indexes: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    lost: tuple[str, ...] = ()
    remember: RememberedIds = dataclasses.field(default_factory=RememberedIds)
    problem: Line | None = None


def choose(state: UnitState) -> Choice:
    """Return the allowed GPUs. An index keeps meaning the card that it meant when it was set."""
    inventory, chosen = state.inventory, state.options.gpu_device_ids
    if inventory is None or inventory.state is not State.READY:
        return Choice(remember=state.remembered)
    if not chosen:
        indexes = tuple(gpu.index for gpu in inventory.gpus)
        return Choice(inventory.gpus, indexes, lost=inventory.lost)
    known = state.remembered if state.remembered.chosen == chosen else RememberedIds()
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
            about = {"unknown": ", ".join(unknown), "have": have}
            wrong = messages.line("unknown-gpu-ids", **about, **state.names)
            wrong = dataclasses.replace(wrong, text=wrong.text + as_before(state))
            return Choice(remember=state.remembered, problem=wrong)
    present = {gpu.uuid: gpu for gpu in inventory.gpus}
    # One card may have been named twice, by its index and by its UUID.
    meant = sorted({(i, uuid) for i, (_, uuid) in zip(known.indexes, known.uuids, strict=True)})
    here = [(index, uuid) for index, uuid in meant if uuid in present]
    if not here:
        return Choice(remember=known, problem=messages.line("chosen-gpus-gone", **state.names))
    return Choice(
        gpus=tuple(present[uuid] for _, uuid in here),
        indexes=tuple(index for index, _ in here),
        missing=tuple(index for index, uuid in meant if uuid not in present),
        remember=known,
    )


def as_before(state: UnitState) -> str:
    """Return which GPUs tasks keep while gpu-device-ids cannot be used; empty: none."""
    there = state.inventory.gpus if state.inventory else ()
    kept = [str(gpu.index) for gpu in there if gpu.uuid in state.handed_out]
    return f"; until then tasks keep GPU {', '.join(kept)}" if kept else ""


def _meanings(
    chosen: tuple[str, ...], gpus: tuple[Gpu, ...]
) -> collections.abc.Iterator[tuple[str, Gpu]]:
    for item in chosen:
        for gpu in gpus:
            if item in (str(gpu.index), gpu.uuid, gpu.pci_address):
                yield item, gpu


def pool(state: UnitState, choice: Choice) -> Choice:
    """Return the choice without GPUs that are out of use, for the worker's tags."""
    out = {entry.uuid for entry in state.quarantined}
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


def change(state: UnitState, choice: Choice) -> str:
    """Return which GPUs came or left since tasks' last GPUs, or the new choice; empty: none.

    It is shown while the other GPUs are tested. If none is left, status has the reason at once.
    """
    here = {gpu.uuid for gpu in choice.gpus}
    given = {*state.handed_out}
    chosen = state.options.gpu_device_ids
    if here and given and here != given and chosen != state.remembered.chosen:
        return f"gpu-device-ids={','.join(chosen) or 'all'}"
    said = [(len(here - given), "new"), (len(given - here), "gone")]
    words = [f"{count} GPU{'s' * (count > 1)} {what}" for count, what in said if count]
    return ", ".join(words) if here and given else ""


def are_all_quarantined(state: UnitState, choice: Choice) -> bool:
    """Whether there are allowed GPUs, and each is in quarantine."""
    return bool(choice.gpus) and not pool(state, choice).gpus


def problem_with(state: UnitState, choice: Choice) -> Line | None:
    """Return why no task can get a GPU although enable-gpu is true; None if one can."""
    facts = diagnosis.facts(state)
    if facts is None:
        return None
    return (
        _obstacle(host_states.of_gpus(facts))
        or choice.problem
        or _unsliced(choice.gpus)
        or _too_few(state, choice.gpus)
        or _obstacle(host_states.of_toolkit(facts))
    )


def unusable(state: UnitState, choice: Choice) -> Unusable:
    """Return the GPUs of tasks that tasks cannot use now, each with the reason.

    While no GPU for tasks is here, the last valid choice counts.
    """
    facts = diagnosis.facts(state)
    if facts is None or problem_with(state, choice) is None:
        return ()
    wrong = host_states.blocking(facts)
    if wrong and not wrong.is_of_an_option:
        cause = Unavailable(UNUSABLE, "host-state", wrong.what)
        return tuple((uuid, cause) for uuid in state.handed_out)
    here = {gpu.uuid: gpu for gpu in facts.inventory.gpus}
    sliced = {uuid for uuid, gpu in here.items() if not gpu.devices}
    missing = Unavailable(UNUSABLE, "missing", "not on this machine")
    no_mig = Unavailable(UNUSABLE, "mig-without-devices", "in MIG mode without a MIG device")
    why = dict.fromkeys((uuid for uuid in state.handed_out if uuid not in here), missing)
    why |= dict.fromkeys(sliced, no_mig)
    return tuple((uuid, why[uuid]) for uuid in state.handed_out if uuid in why)


def _obstacle(found: host_states.Finding | None) -> Line | None:
    if found is None:
        return None
    level = Level.WAITING if found.passes else Level.BLOCKED
    return Line(level, found.code, f"{found.what}: {found.remedy}")


def _unsliced(gpus: tuple[Gpu, ...]) -> Line | None:
    empty = [str(gpu.index) for gpu in gpus if not gpu.devices]
    return messages.line("mig-without-devices", gpus=", ".join(empty)) if empty else None


def _too_few(state: UnitState, gpus: tuple[Gpu, ...]) -> Line | None:
    have, wanted = len(model_inventory.devices(gpus)), state.options.gpus_per_task
    if wanted <= have:
        return None
    kinds = sorted({"MIG device" if gpu.mig_enabled else "GPU" for gpu in gpus})
    nouns = " and ".join(kind if have == 1 else f"{kind}s" for kind in kinds)
    more = ", or choose more with gpu-device-ids" if state.options.gpu_device_ids else ""
    about = {"wanted": wanted, "have": have, "nouns": nouns, "more": more}
    return messages.line("gpus-per-task-too-large", **about, **state.names)
