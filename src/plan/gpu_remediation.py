# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What may be done by itself for GPUs that are out of use: a reset, a reboot, or nothing. Pure."""

import collections.abc
import dataclasses
import enum
import typing

from gpu_agent.gpu.vendors.nvidia import recovery_action

HOUR: typing.Final = 3600
DAY: typing.Final = 24 * HOUR

_NOTHING: typing.Final = 0
# How often one GPU is reset in a week: one that needs more is for its operator.
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
        idle: nobody has it, and no process is on it.
        whole: it is not split into MIG devices, which a reset would end.
        asked: a test of it is asked for, as after a reset, and there is no verdict yet.
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
    """All that the decision rests on.

    Attributes:
        wish: the option gpu-recovery: `none`, `reset` or `reboot`.
        patients: the GPUs in quarantine.
        made: what was done before.
        now: seconds since the epoch.
        boot: the id of this boot.
        uptime: for how long it has lasted, in seconds.
        can_reset: its GPUs are NVIDIA's, and this is no container, where a GPU is its host's.
        joined: they are joined by NVSwitches, so that a reset of one touches all.
        all_idle: nobody has any of them.
        engaged: something else is at the driver or about to reboot the machine, or a self-test
            runs.
    """

    wish: str
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
    """What is to be done now, and for which GPUs."""

    step: Step
    uuids: tuple[str, ...] = ()


def decide(site: Site) -> Cure:
    """The next step: one reset at a time, and a reboot only where no reset is left to try."""
    if site.wish == "none" or site.engaged or not site.can_reset:
        return Cure(Step.NOTHING)
    needs = {patient: need(patient, site) for patient in site.patients}
    for patient, step in needs.items():
        if step is Step.RESET and _may_be_reset(patient, site):
            return Cure(Step.RESET, (patient.uuid,))
    to_reboot = tuple(one.uuid for one, step in needs.items() if step is Step.REBOOT)
    rests = all(_age(made, site) >= DAY for made in _of(site.made, Step.REBOOT))
    if site.wish == "reboot" and to_reboot and rests:
        return Cure(Step.REBOOT, to_reboot)
    return Cure(Step.NOTHING)


def need(patient: Patient, site: Site) -> Step:
    """What would help a GPU, whether or not it may be done now.

    What was done since it came into quarantine, and left it as it is, helps no more: after a reset
    a reboot may, after a reboot nothing does that the charm can do.
    """
    if not patient.level or patient.action == recovery_action.COLD_START:
        return Step.NOTHING
    # By the wall clock, as a quarantine lasts over boots, and its file shows people a time.
    reboot = Step.REBOOT if patient.since >= site.now - site.uptime else Step.NOTHING
    if not patient.answers:
        return reboot
    # Drivers before the query tell of an Xid alone.
    silent = patient.action is None and patient.fault == "xid"
    if (
        patient.action in recovery_action.RESETS
        or patient.pending
        or patient.uncorrected
        or silent
    ):
        if not any(made.at >= patient.since for made in _resets(patient, site)):
            return Step.RESET
        # Whether that helped, its test has to say first.
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
