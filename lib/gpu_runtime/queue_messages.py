# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Messages about the queue: a request's position, the holders, and the reasons of refusals.

A request that gets its devices at once needs none of it, so other modules import this one late.
"""

from __future__ import annotations

from gpu_runtime.lease_scheduler import LONGEST_LOOK
from gpu_runtime.lease_table import CONTAINER, JOB, NOUNS, RUNNER, STEP, Holder, Table, Waiter
from gpu_runtime.policy import SELF_TEST_CONTAINER, Device, Policy
from gpu_runtime.refusal import Refused, duration, failed
from gpu_runtime.unavailable import Unavailable

_FEWER = {
    STEP: "Lower GPU_COUNT, or add the tag `gpu-count>={}` to run on a larger worker",
    CONTAINER: "Request fewer GPUs",
    JOB: "Request fewer GPUs",
    RUNNER: "Request fewer GPUs",
}
_ELSEWHERE = {
    STEP: "Rerun the job, which may run on another worker, or ask this worker's operator"
}
_LATER = "Try again later, or ask this worker's operator"
_RETRY = {
    STEP: "Rerun the job, or set `attempts: 3` on the step",
    CONTAINER: "Try again later",
    JOB: "Try again later, or with a longer --timeout",
    RUNNER: "Try again later",
}


class Held:
    """A device with its holder.

    Attributes:
        device: the device.
        name: its holder's name in the table.
        who: its holder for people, such as `CI task 4f0c` or `docker container "train"`.
        seconds: how long the holder has had it; None: unknown.
        handing_over: whether the holder has ended, and the device becomes free after a search for
            other users.
    """

    __slots__ = ("device", "handing_over", "name", "seconds", "who")

    def __init__(self, device: Device, name: str, holder: Holder, now: float) -> None:
        self.device = device
        self.name = name
        self.who = who(name, holder)
        # A table that was rebuilt does not have the time.
        self.seconds = int(now - holder.since) if holder.since else None
        self.handing_over = bool(holder.handing) and now - holder.handing[1] < LONGEST_LOOK

    @property
    def words(self) -> str:
        """Return who has it, and for how long."""
        if self.handing_over:
            return f"{self.who} is releasing GPU {self.device.index}"
        age = "" if self.seconds is None else f", {duration(self.seconds)}"
        return f"{self.who} holds GPU {self.device.index}{age}"


class Place:
    """The position of a request in the queue.

    Attributes:
        number: 1 for the request that is next, and so on.
        held: the devices that the request may get and that have a holder.
    """

    __slots__ = ("held", "number")

    def __init__(self, table: Table, usable: list[Device], waiter: Waiter, now: float) -> None:
        self.number = 1 + _ahead(table, waiter)
        self.held = _held(table, usable, waiter, now)

    @property
    def words(self) -> str:
        """Return all of it: `position 2 in the queue; CI task 4f0c holds GPU 0, 12 min`."""
        position = f"position {self.number} in the queue"
        return "; ".join([position, *(one.words for one in self.held)])


def who(name: str, holder: Holder) -> str:
    """Return a holder's name for people: from its engine, or its name in the table."""
    if holder.who:
        return holder.who
    if holder.kind != STEP:
        return f"{NOUNS[holder.kind]} {name}"
    return "the self-test" if name.startswith(SELF_TEST_CONTAINER) else f"CI task {name}"


def expired(
    kind: str, policy: Policy, table: Table, usable: list[Device], waiter: Waiter, now: float
) -> Refused:
    """Make the refusal of a request that has waited too long."""
    held: list[str] = []
    is_shown_by_fly = False
    for one in _held(table, usable, waiter, now):
        holder = table.holders[one.name]
        # Pipeline authors have fly, which shows containers.
        is_shown = kind == STEP == holder.kind
        by = f"container {one.name}" if is_shown and not holder.who else one.who
        age = "" if one.seconds is None else f" for {duration(one.seconds)}"
        use = "is being released by" if one.handing_over else "by"
        held.append(f"GPU {one.device.index} {use} {by}{'' if one.handing_over else age}")
        is_shown_by_fly |= is_shown
    whose = ", ".join(held) or "none"
    whose += " (see fly containers)" if is_shown_by_fly else ""
    ahead = _ahead(table, waiter)
    others = f" {ahead} request{'s' * (ahead > 1)} waited longer." if ahead else ""
    wanted = f"{waiter.count} of {gpus(len(usable))}"
    if waiter.named:
        indexes = [f"GPU {device.index}" for device in usable if device.id in waiter.named]
        wanted = " and ".join(indexes)
    return Refused(
        "wait-timeout",
        f"timed out after {policy.wait_timeout} s waiting for {wanted}. In use: {whose}.{others} "
        f"{_RETRY[kind]}. If this is frequent, ask the worker's operator for more workers or a "
        "longer gpu-wait-timeout",
    )


def too_few(kind: str, policy: Policy, unavailable: dict[str, Unavailable], count: int) -> Refused:
    """Make the refusal of a request for more devices than are available."""
    there = len(policy.devices) - len(unavailable)
    has = f"this worker has {there} available"
    if unavailable:
        out = "; ".join(
            f"GPU {device.index} is {unavailable[device.id].describe()}"
            for device in policy.devices
            if device.id in unavailable
        )
        has += f", because {out}"
    advice = _FEWER[kind].format(count) if there else _ELSEWHERE.get(kind, _LATER)
    return Refused("too-few-gpus", f"this {NOUNS[kind]} needs {gpus(count)}; {has}. {advice}")


def not_here(
    kind: str, policy: Policy, unavailable: dict[str, Unavailable], missing: list[str]
) -> Refused:
    """Make the refusal of a request that names an unavailable device."""
    noun, name = NOUNS[kind], missing[0]
    has = ", ".join(
        f"GPU {device.index} ({device.id})"
        for device in policy.devices
        if device.id not in unavailable
    )
    out = unavailable.get(name)
    why = out.describe() if out else f"not offered to {noun}s on this worker"
    return Refused(
        "gpu-unavailable" if out else "gpu-not-offered",
        f"GPU {name[:64]} is {why}. "
        + (f"Available: {has}. Request one of these" if has else _ELSEWHERE.get(kind, _LATER)),
    )


def withheld(kind: str, holder: Holder, why: str) -> Refused:
    """Make the refusal if the devices of an ended holder cannot be reused."""
    return Refused(
        "handover-failed",
        f"{failed(NOUNS[kind])}: {' and '.join(holder.gpus)} cannot be reused: {why}",
    )


def gpus(count: int) -> str:
    """Format a number of GPUs."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _held(table: Table, usable: list[Device], waiter: Waiter, now: float) -> list[Held]:
    return [
        Held(device, name, holder, now)
        for device in usable
        if not waiter.named or device.id in waiter.named
        for name, holder in table.holders.items()
        if device.id in holder.gpus
    ]


def _ahead(table: Table, waiter: Waiter) -> int:
    return sum(one.since < waiter.since for one in table.waiters)
