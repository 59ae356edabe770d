# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Decides the charm's own remedy for quarantined GPUs: a reset, a reboot or none. Pure."""

import collections.abc
import dataclasses
import enum
import typing

from gpu_agent.model import recovery_action

HOUR: typing.Final = 3600
DAY: typing.Final = 24 * HOUR

_NOTHING: typing.Final = 0
# The most resets of one GPU in a week; a GPU that needs more is left to the operator.
_MOST_RESETS: typing.Final = 3


class Step(enum.Enum):
    """What is done."""

    NOTHING = "nothing"
    RESET = "reset"
    REBOOT = "reboot"


@dataclasses.dataclass(frozen=True)
class Patient:
    """A GPU in quarantine. Times are seconds since the epoch.

    Attributes:
        uuid: its id.
        level: the self-test's level that brings it back; empty: the operator alone does.
        fault: the name of the fault, or of the check, that it is in quarantine for.
        since: when it came there.
        answers: whether its driver can say how it is.
        action: what the driver asks for; None where it does not tell.
        pending: rows or pages of its memory wait for a reset.
        uncorrected: memory errors that ECC could not correct, since the driver was loaded.
        idle: no lease and no process uses it.
        whole: it is not split into MIG devices, which a reset would remove.
        asked: a test was requested, as after a reset, and its verdict is missing.
    """

    uuid: str
    level: str
    fault: str
    since: float
    answers: bool = True
    action: int | None = None
    pending: bool = False
    uncorrected: int = 0
    idle: bool = True
    whole: bool = True
    asked: bool = False


@dataclasses.dataclass(frozen=True)
class Made:
    """A reset or a reboot that was begun, whatever came of it.

    Attributes:
        step: which.
        uuids: the GPUs that it was for.
        at: when, in seconds since the epoch.
        boot: the id of the boot in which that was; empty: an earlier charm did not note it.
        since_boot: when, in seconds since that boot.
    """

    step: Step
    uuids: tuple[str, ...]
    at: float
    boot: str
    since_boot: float


@dataclasses.dataclass(frozen=True)
class Site:
    """The facts for the decision.

    Attributes:
        may_reset: the option gpu-recovery allows it.
        may_reboot: the option auto-reboot allows it for a GPU.
        patients: the GPUs in quarantine.
        made: what was done before.
        now: seconds since the epoch.
        boot: the id of this boot.
        uptime: for how long it has lasted, in seconds.
        can_reset: the GPUs are NVIDIA's, and this is not a container, whose host has the GPU.
        joined: they are joined by NVSwitches, so that a reset of one touches all.
        all_idle: no lease or process uses any of them.
        engaged: something else is at the driver or about to reboot the machine, or a self-test
            runs.
    """

    may_reset: bool
    may_reboot: bool
    patients: tuple[Patient, ...]
    made: tuple[Made, ...]
    now: float
    boot: str
    uptime: float
    can_reset: bool = True
    joined: bool = False
    all_idle: bool = True
    engaged: bool = False


@dataclasses.dataclass(frozen=True)
class Cure:
    """The next step, and its GPUs."""

    step: Step
    uuids: tuple[str, ...] = ()


def decide(site: Site) -> Cure:
    """Choose the next step: one reset at a time, and a reboot only if no reset is left to try."""
    if site.engaged or not site.can_reset:
        return Cure(Step.NOTHING)
    needs = {patient: need(patient, site) for patient in site.patients}
    for patient, step in needs.items():
        if step is Step.RESET and _may_be_reset(patient, site):
            return Cure(Step.RESET, (patient.uuid,))
    to_reboot = tuple(one.uuid for one, step in needs.items() if step is Step.REBOOT)
    rests = all(_age(made, site) >= DAY for made in _of(site.made, Step.REBOOT))
    if site.may_reboot and to_reboot and rests:
        return Cure(Step.REBOOT, to_reboot)
    return Cure(Step.NOTHING)


def need(patient: Patient, site: Site) -> Step:
    """Return what would help a GPU, whether or not it may be done now.

    A repair since the quarantine began that did not help is not repeated. After a reset, or if no
    reset is allowed, a reboot may help; after a reboot, no step of the charm does.
    """
    if not patient.level or patient.action == recovery_action.COLD_START:
        return Step.NOTHING
    # By the wall clock, as a quarantine lasts over boots, and its file shows people a time.
    reboot = Step.REBOOT if patient.since >= site.now - site.uptime else Step.NOTHING
    if not patient.answers:
        return reboot
    # Older drivers report only an Xid.
    silent = patient.action is None and patient.fault.partition("-")[0] == "xid"
    if (
        patient.action in recovery_action.RESETS
        or patient.pending
        or patient.uncorrected
        or silent
    ):
        if site.may_reset and not any(made.at >= patient.since for made in _resets(patient, site)):
            return Step.RESET
        # Its test must show first whether that helped.
        return Step.NOTHING if patient.asked else reboot
    return Step.NOTHING if patient.action in (None, _NOTHING) else reboot


def _may_be_reset(patient: Patient, site: Site) -> bool:
    if not patient.idle or not patient.whole or (site.joined and not site.all_idle):
        return False
    ages = [_age(made, site) for made in _resets(patient, site)]
    lately = [age for age in ages if age < 7 * DAY]
    return len(lately) < _MOST_RESETS and all(age >= HOUR for age in lately)


def _age(made: Made, site: Site) -> float:
    """How long ago something was made, in seconds.

    The time since boot ends with the boot. Of an earlier one the wall clock alone tells, which may
    have been set since; it was before this boot in any case.
    """
    if made.boot == site.boot:
        return site.uptime - made.since_boot
    return max(site.now - made.at, site.uptime if made.boot else 0.0)


def _resets(patient: Patient, site: Site) -> list[Made]:
    return [made for made in _of(site.made, Step.RESET) if patient.uuid in made.uuids]


def _of(made: collections.abc.Iterable[Made], step: Step) -> list[Made]:
    return [one for one in made if one.step is step]
