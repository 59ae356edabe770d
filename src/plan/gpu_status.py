# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the operator reads in juju status about the GPUs for tasks. Pure."""

import collections.abc
import dataclasses
import re
import typing

from gpu_agent.gpu.vendors import registry
from gpu_agent.model.quarantine import HEALTH
from plan import gpu_offers as offers
from plan import gpus, messages
from plan.ci_plan import WaitLimit
from plan.gpu_offers import GpuOffer
from plan.messages import Line
from plan.state import Quarantine, UnitState

# An operator's reason for a cordon may be long; gpu-inventory shows all of it.
_REASON: typing.Final = 40


@dataclasses.dataclass(frozen=True)
class _Group:
    """GPUs that are out of use for the same reason, under their indexes."""

    indexes: list[int]
    entry: Quarantine

    def text(self, remedy: str = "") -> str:
        reason = self.entry.reason
        if self.entry.by != "operator":
            reason = reason.partition(":")[0]
        elif len(reason) > _REASON:
            reason = f"{reason[:_REASON].rstrip()}..."
        inside = "; ".join(filter(None, (reason, remedy)))
        return f"GPU {_listed(self.indexes)} ({inside})"


def notes(state: UnitState, choice: gpus.Choice, limit: WaitLimit) -> list[Line]:
    """Return the notes about the GPUs for tasks, which must be some.

    Details that change by the minute, after the `:` of a reason, are left out.
    """
    groups = _out_of_use(state, choice)
    gone, users = {entry.uuid for entry in state.quarantined}, dict(state.external)
    external = [
        index
        for index, gpu in zip(choice.indexes, choice.gpus, strict=True)
        if gpu.uuid in users and gpu.uuid not in gone
    ]
    count = len(gpus.pool(state, choice).gpus) - len(external)
    vendor = registry.find(choice.gpus[0].vendor).display
    found = [messages.line("gpus", count=count, vendor=vendor)]
    found += _of_out(groups, lambda group: _way_back(state, group))
    for code, indexes in (("gpus-external", external), ("gpus-missing", choice.missing)):
        if indexes:
            found.append(messages.line(code, count=len(indexes), gpus=_listed(indexes)))
    if choice.lost:
        addresses = ", ".join(choice.lost)
        found.append(messages.line("gpus-lost", count=len(choice.lost), addresses=addresses))
    found += _of_verdict(state, {group.entry.reason for group in groups})
    return found + _of_wait(state, limit)


def _of_out(
    groups: list[_Group], step: collections.abc.Callable[[_Group], str]
) -> collections.abc.Iterator[Line]:
    """Yield a note about the cordoned GPUs and one about the quarantined, with a step for each."""
    for code, by_operator in (("gpus-cordoned", True), ("gpus-quarantined", False)):
        those = [one for one in groups if (one.entry.by == "operator") is by_operator]
        if those:
            count = sum(len(one.indexes) for one in those)
            shown = ", ".join(one.text(step(one)) for one in those)
            yield messages.line(code, count=count, gpus=shown)


def _of_wait(state: UnitState, limit: WaitLimit) -> list[Line]:
    """Return a note if tasks wait less long for a GPU than gpu-wait-timeout allows."""
    if limit.seconds is None or state.options.gpu_wait_timeout <= limit.seconds:
        return []
    return [messages.line("gpu-wait-capped", longest=limit.seconds, why=limit.why)]


def _out_of_use(state: UnitState, choice: gpus.Choice) -> list[_Group]:
    """Return the GPUs that are cordoned or quarantined, grouped by what status shows of them."""
    entries = {entry.uuid: entry for entry in state.quarantined}
    alike: dict[tuple[str, str, str], _Group] = {}
    for index, gpu in zip(choice.indexes, choice.gpus, strict=True):
        if entry := entries.get(gpu.uuid):
            key = entry.reason.partition(":")[0], _first_step(entry.remedy), entry.by
            alike.setdefault(key, _Group([], entry)).indexes.append(index)
    return list(alike.values())


def _listed(indexes: collections.abc.Iterable[int]) -> str:
    return ", ".join(map(str, indexes))


def _way_back(state: UnitState, group: _Group) -> str:
    """Return the first step towards using a GPU again."""
    entry = group.entry
    if entry.level or entry.remedy:
        return _first_step(entry.remedy)
    return _uncordon(state, group.indexes)


def _uncordon(state: UnitState, indexes: list[int]) -> str:
    return f"juju run {state.unit} gpu-uncordon gpu=gpu-{indexes[0]}"


def _of_verdict(state: UnitState, shown: set[str]) -> list[Line]:
    """Return a note about the last self-test, unless the `shown` reasons include its failure."""
    verdict = state.verdict
    if verdict is None:
        return []
    if verdict.outcome == "failed" and shown and verdict.failure in {*shown, ""}:
        return []
    test = "self-test of one GPU" if verdict.partial else "self-test"
    step = _first_step(verdict.remedy)
    failure = verdict.failure + (f" ({step})" if step else "")
    return [messages.line(f"self-test-{verdict.outcome}", test=test, failure=failure)]


def _first_step(remedy: str) -> str:
    """Return the first step of a remedy; the report of the self-test has all of it."""
    step = re.split(r" \(|;|: |\. ", remedy)[0]
    return step[:1].lower() + step[1:] if step[1:2].islower() else step


def all_unavailable(state: UnitState, choice: gpus.Choice) -> Line:
    """Return the line for GPUs of which each is cordoned or quarantined."""
    groups = _out_of_use(state, choice)
    steps = dict.fromkeys(filter(None, (_first_step(group.entry.remedy) for group in groups)))
    commands = {
        f"juju run {state.unit} gpu-selftest level={group.entry.level}"
        if group.entry.level
        else _uncordon(state, group.indexes)
        for group in groups
    }
    back = " and ".join(sorted(commands))
    remedy = f"{', '.join(steps)}, then {back}" if steps else back
    shown = ", ".join(note.text for note in _of_out(groups, lambda _: ""))
    return messages.line("all-gpus-unavailable", gpus=shown, remedy=remedy)


def failed_together(state: UnitState, choice: gpus.Choice, cause: str) -> Line:
    """Return the line for GPUs that failed at once, for the same cause."""
    out = {entry.uuid for entry in state.quarantined if entry.by == HEALTH}
    chosen = {gpu.uuid for gpu in choice.gpus} | out
    return messages.line(
        "gpus-failed-together",
        out=len(out),
        all=len(chosen),
        cause=cause,
        application=state.application,
    )


def shared(state: UnitState, choice: gpus.Choice, offer: GpuOffer | None) -> list[Line]:
    """Return a note for each set of GPUs that other units give to their tasks too."""
    notes: list[Line] = []
    met = offers.shared(offer, state.elsewhere.offers) if offer else {}
    for uuids, units in met.items():
        indexes = [
            index
            for index, gpu in zip(choice.indexes, choice.gpus, strict=True)
            if set(gpu.devices) & set(uuids)
        ]
        notes.append(
            messages.line(
                "gpu-shared",
                gpus=_listed(indexes),
                units=", ".join(units),
                application=state.application,
            )
        )
    return notes
