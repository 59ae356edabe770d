# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Decide which runners a machine begins and which idle ones it ends. Pure.

A runner with GPUs is registered only for GPUs that are free, so that jobs without a free GPU wait
in the service's own queue. It offers all its labels to every job. So a machine has runners of
`per_runner` GPUs ready, and makes others only for a job that waits and that no idle runner fits.
"""

import collections.abc
import dataclasses
import enum

from ci.runners import labels
from ci.runners.labels import Common, Facts, Labels
from ci.runners.service import Job


class State(enum.Enum):
    """The state of a runner."""

    IDLE = "idle"
    """It is ready for a job."""
    BUSY = "busy"
    """It has a job, or may have one."""
    ENDING = "ending"
    """It is to end, and takes no job."""


@dataclasses.dataclass(frozen=True)
class Mine:
    """A runner of this machine.

    Attributes:
        name: its name.
        gpus: the ids of its GPUs.
        labels: what it offers.
        state: its state.
        stale: whether it began with other settings.
    """

    name: str
    gpus: tuple[str, ...]
    labels: Labels
    state: State
    stale: bool = False


@dataclasses.dataclass(frozen=True)
class Claim:
    """A request of another holder that waits for GPUs.

    Attributes:
        count: how many.
        named: the ids of particular ones; empty: any.
    """

    count: int
    named: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Want:
    """What a job that waits needs, and is not free.

    Attributes:
        count: how many GPUs.
        unfit: the ids of the GPUs that its labels exclude.
    """

    count: int
    unfit: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Situation:
    """All that decides.

    Attributes:
        mine: the runners of this machine.
        usable: the GPUs that may be given to runners, by id, with or without a holder.
        free: the ids of those without a holder.
        others: the requests of other holders that wait now.
        jobs: the service's jobs that wait, the oldest first.
        common: what all runners of this machine have.
        most: how many runners the machine may have.
        per_runner: how many GPUs a runner has that no job asks for.
        beyond: how many runners without GPUs the machine has ready.
        rests: whether no runner may begin, as the unit is paused or drained.
    """

    mine: tuple[Mine, ...]
    usable: collections.abc.Mapping[str, Facts]
    free: tuple[str, ...]
    others: tuple[Claim, ...]
    jobs: tuple[Job, ...]
    common: Common
    most: int
    per_runner: int
    beyond: int = 0
    rests: bool = False


@dataclasses.dataclass(frozen=True)
class Decision:
    """What to do now.

    Attributes:
        end: the names of idle runners to end.
        begin: the GPUs of each runner to begin; an empty tuple for one without GPUs.
        want: what to wait for in the machine's queue, for the oldest job; None: nothing.
    """

    end: tuple[str, ...] = ()
    begin: tuple[tuple[str, ...], ...] = ()
    want: Want | None = None


def decide(now: Situation) -> Decision:
    """Return which runners to begin, which idle ones to end, and what to wait for."""
    idle = [one for one in now.mine if one.state is State.IDLE]
    if now.rests:
        return Decision(end=tuple(one.name for one in idle))
    stale = [one for one in idle if one.stale or not now.usable.keys() >= {*one.gpus}]
    idle = [one for one in idle if one not in stale]
    given_up = _for_others(now, idle)
    idle = [one for one in idle if one not in given_up]
    # What is free is theirs who wait already.
    free = [] if now.others else [gpu for gpu in now.free if gpu in now.usable]
    jobs = _for_jobs(now, idle, free)
    surplus = _surplus(now, [one for one in idle if one not in jobs.unwanted], jobs.spare)
    ready = [] if jobs.unwanted or jobs.want else _ready(now, jobs.begin, free)
    room = max(0, now.most - len(now.mine))
    return Decision(
        tuple(one.name for one in (*stale, *given_up, *jobs.unwanted, *surplus)),
        (*jobs.begin, *ready)[:room],
        jobs.want if room > len(jobs.begin) else None,
    )


def _labels(now: Situation, gpus: collections.abc.Sequence[str]) -> Labels:
    return labels.of(now.common, [now.usable[gpu] for gpu in gpus])


def _for_others(now: Situation, idle: list[Mine]) -> list[Mine]:
    """Return the idle runners whose GPUs other holders wait for, the smallest first."""
    found: list[Mine] = []
    left = {*now.free}
    for claim in now.others:
        for one in sorted(idle, key=lambda one: len(one.gpus)):
            helps = {*one.gpus} & {*claim.named} if claim.named else one.gpus
            if helps and one not in found and _lacks(claim, left):
                found.append(one)
                left |= {*one.gpus}
        taken = claim.named or sorted(left)[: claim.count]
        left -= {*taken}
    return found


def _lacks(claim: Claim, free: set[str]) -> bool:
    return not {*claim.named} <= free if claim.named else len(free) < claim.count


@dataclasses.dataclass
class _ForJobs:
    """What waiting jobs need.

    Attributes:
        begin: the GPUs of runners to begin.
        unwanted: idle runners that are in the way of a job, or that no job needs as they are.
        spare: idle runners that no job takes.
        want: what to wait for.
    """

    begin: list[tuple[str, ...]] = dataclasses.field(default_factory=list[tuple[str, ...]])
    unwanted: list[Mine] = dataclasses.field(default_factory=list[Mine])
    spare: list[Mine] = dataclasses.field(default_factory=list[Mine])
    want: Want | None = None


def _for_jobs(now: Situation, idle: list[Mine], free: list[str]) -> _ForJobs:
    """Give each waiting job an idle runner or free GPUs; stop at the first that must wait."""
    found = _ForJobs(spare=[*idle])
    spare = found.spare
    for job in (one for one in now.jobs if not one.runner):
        fitting = (one for one in spare if job.labels <= {*one.labels})
        # The smallest one that fits.
        if has := min(fitting, key=lambda one: len(one.gpus), default=None):
            spare.remove(has)
            continue
        count = labels.count(job.labels, max(1, now.per_runner))
        chosen = _choose(now, job, free, count)
        if chosen is not None:
            found.begin.append(chosen)
            # The caller's list: the remaining GPUs are for runners that wait for a job.
            free[:] = [gpu for gpu in free if gpu not in chosen]
            continue
        reach = [*free, *(gpu for one in spare for gpu in one.gpus)]
        reached = _choose(now, job, reach, count)
        if reached is not None:
            # Its GPUs come together in a later look; until then no younger job gets them.
            found.unwanted = [one for one in spare if {*one.gpus} & {*reached}]
            return found
        fit = [gpu for gpu in now.usable if _may_have(now, job, gpu, count)]
        if count and len(fit) >= count:
            found.want = Want(count, tuple(gpu for gpu in now.usable if gpu not in fit))
            return found
    # Those that were made for a job that is gone.
    found.unwanted = [one for one in spare if len(one.gpus) not in (0, now.per_runner)]
    return found


def _may_have(now: Situation, job: Job, gpu: str, count: int) -> bool:
    """Whether a runner with so many GPUs like this one fits a job."""
    return job.labels <= {*labels.of(now.common, [now.usable[gpu]] * count)}


def _choose(now: Situation, job: Job, gpus: list[str], count: int) -> tuple[str, ...] | None:
    """Return GPUs of a runner that fits a job; None if there are none."""
    alike = {now.usable[gpu] for gpu in gpus} if count else set[Facts]()
    for facts in sorted(alike, key=repr):
        chosen = tuple(gpu for gpu in gpus if now.usable[gpu] == facts)[:count]
        if len(chosen) == count and job.labels <= {*_labels(now, chosen)}:
            return chosen
    # GPUs of several kinds, if the job names none.
    mixed = tuple(gpus[:count])
    fits = len(mixed) == count and job.labels <= {*_labels(now, mixed)}
    return mixed if fits else None


def _ready(now: Situation, begun: list[tuple[str, ...]], free: list[str]) -> list[tuple[str, ...]]:
    """Return the runners to have ready: with all free GPUs, and those beyond without any."""
    each = now.per_runner
    with_gpus = [tuple(free[at : at + each]) for at in range(0, len(free), each)] if each else []
    found = [gpus for gpus in with_gpus if len(gpus) == each]
    without = sum(not one.gpus for one in now.mine) + sum(not gpus for gpus in begun)
    return found + [()] * max(0, now.beyond - without)


def _surplus(now: Situation, idle: list[Mine], spare: list[Mine]) -> list[Mine]:
    """Return the idle runners that no job takes, and that are too many."""
    without = [one for one in now.mine if not one.gpus and one.state is not State.ENDING]
    too_many = [one for one in spare if one in idle and not one.gpus]
    found = too_many[: max(0, len(without) - now.beyond)]
    others = [one for one in spare if one in idle and one not in found]
    return found + others[: max(0, len(now.mine) - len(found) - now.most)]
