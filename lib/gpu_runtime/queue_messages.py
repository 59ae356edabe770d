# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The line of those who wait, in words: where one stands, who has what, and why it gets nothing.

No call that gets its devices at once needs any of it, so whoever does imports it then.
"""

from __future__ import annotations

from gpu_runtime.lease_scheduler import LONGEST_LOOK
from gpu_runtime.lease_table import CONTAINER, JOB, NOUNS, STEP, Holder, Table, Waiter
from gpu_runtime.policy import SELF_TEST_CONTAINER, Device, Policy
from gpu_runtime.refusal import Refused, duration, failed

_FEWER = {
    STEP: "set the param GPU_COUNT lower, or give the step the tag gpu-count>={}",
    CONTAINER: "ask for fewer",
    JOB: "ask for fewer",
}
_ELSEWHERE = {STEP: "run it again, which may find another worker, or tell this one's operator"}
_LATER = "try again later, or tell this worker's operator"
_RETRY = {STEP: "Run it again, or give the step attempts: 3, which does so by itself"}


class Held:
    """A device that somebody has.

    Attributes:
        device: it.
        name: its holder's name in the table.
        who: its holder for people, such as `concourse task 4f0c` or `docker container "train"`.
        seconds: for how long; None: that is not known.
        handing_over: whether that one has ended, and the device goes on after a look at who has
            it open.
    """

    __slots__ = ("device", "handing_over", "name", "seconds", "who")

    def __init__(self, device: Device, name: str, holder: Holder, now: float) -> None:
        self.device = device
        self.name = name
        self.who = who(name, holder)
        # A table that was made anew does not know since when.
        self.seconds = int(now - holder.since) if holder.since else None
        self.handing_over = bool(holder.handing) and now - holder.handing[1] < LONGEST_LOOK

    @property
    def words(self) -> str:
        """Who has it, and for how long."""
        if self.handing_over:
            return f"GPU {self.device.index} goes on from {self.who}"
        age = "" if self.seconds is None else f", {duration(self.seconds)}"
        return f"{self.who} holds GPU {self.device.index}{age}"


class Place:
    """Where in the line somebody stands.

    Attributes:
        number: 1 for who is next, and so on.
        held: those devices that it may have and somebody has.
    """

    __slots__ = ("held", "number")

    def __init__(self, table: Table, usable: list[Device], wish: Waiter, now: float) -> None:
        self.number = 1 + _ahead(table, wish)
        self.held = _held(table, usable, wish, now)

    @property
    def words(self) -> str:
        """All of it, such as `2nd in line; concourse task 4f0c holds GPU 0, 12 min`."""
        return "; ".join([f"{_ordinal(self.number)} in line", *(one.words for one in self.held)])


def who(name: str, holder: Holder) -> str:
    """A holder as people know it: in its engine's words, or by its name."""
    if holder.who:
        return holder.who
    if holder.kind != STEP:
        return f"{NOUNS[holder.kind]} {name}"
    return "the self-test" if name.startswith(SELF_TEST_CONTAINER) else f"concourse task {name}"


def expired(
    kind: str, policy: Policy, table: Table, usable: list[Device], wish: Waiter, now: float
) -> Refused:
    """What somebody is told who has waited for too long."""
    held: list[str] = []
    is_shown_by_fly = False
    for one in _held(table, usable, wish, now):
        holder = table.holders[one.name]
        # Who runs pipelines has fly, which knows containers.
        is_shown = kind == STEP == holder.kind
        by = f"container {one.name}" if is_shown and not holder.who else one.who
        age = "" if one.seconds is None else f" for {duration(one.seconds)}"
        use = "goes on from" if one.handing_over else "is in use by"
        held.append(f"GPU {one.device.index} {use} {by}{'' if one.handing_over else age}")
        is_shown_by_fly |= is_shown
    whose = ", ".join(held) or "none is in use"
    whose += " (fly containers shows whose)" if is_shown_by_fly else ""
    ahead = _ahead(table, wish)
    others = f"; {ahead} other{' has' if ahead == 1 else 's have'} waited longer" if ahead else ""
    wanted = f"{gpus(wish.count)} of this worker's {len(usable)}"
    if wish.named:
        indexes = [f"GPU {device.index}" for device in usable if device.id in wish.named]
        wanted = " and ".join(indexes)
    return Refused(
        f"this {NOUNS[kind]} waited {policy.wait_timeout} s for {wanted}: {whose}{others}. "
        f"{_RETRY.get(kind, 'Try again later')}; if it happens "
        "often, ask the worker's operator for more workers or a longer gpu-wait-timeout"
    )


def too_few(kind: str, policy: Policy, cordoned: dict[str, str], count: int) -> Refused:
    """What somebody is told who asks for more devices than there are."""
    there = len(policy.devices) - len(cordoned)
    has = f"this worker has {gpus(there)}"
    if cordoned:
        out = "; ".join(
            f"GPU {device.index} ({device.id}) is {cordoned[device.id]}"
            for device in policy.devices
            if device.id in cordoned
        )
        has += f" for {NOUNS[kind]}s now ({out})"
    advice = _FEWER[kind].format(count) if there else _ELSEWHERE.get(kind, _LATER)
    return Refused(f"this {NOUNS[kind]} needs {gpus(count)}, and {has}: {advice}")


def not_here(kind: str, policy: Policy, cordoned: dict[str, str], missing: list[str]) -> Refused:
    """What somebody is told who names a device that can't be had."""
    noun, name = NOUNS[kind], missing[0]
    has = ", ".join(
        f"GPU {device.index} ({device.id})"
        for device in policy.devices
        if device.id not in cordoned
    )
    why = f"is {cordoned[name]}" if name in cordoned else f"{noun}s on this worker do not get"
    return Refused(
        f"this {noun} asks for GPU {name[:64]}, which {why}: "
        + (f"there is {has}" if has else _ELSEWHERE.get(kind, _LATER))
    )


def withheld(kind: str, holder: Holder, why: str) -> Refused:
    """What somebody is told who can't have a holder's devices though that has ended."""
    return Refused(f"{failed(NOUNS[kind])}: {' and '.join(holder.gpus)} can't be handed on: {why}")


def gpus(count: int) -> str:
    """So many GPUs."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _held(table: Table, usable: list[Device], wish: Waiter, now: float) -> list[Held]:
    return [
        Held(device, name, holder, now)
        for device in usable
        if not wish.named or device.id in wish.named
        for name, holder in table.holders.items()
        if device.id in holder.gpus
    ]


def _ahead(table: Table, wish: Waiter) -> int:
    return sum(waiter.since < wish.since for waiter in table.waiters)


def _ordinal(number: int) -> str:
    if number % 100 in {11, 12, 13}:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
