# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What may be done by itself for a sick GPU: never under a job, never for ever."""

import dataclasses

import pytest

from plan.gpu_remediation import DAY, HOUR, Cure, Made, Patient, Site, Step, decide

NOW = 1_790_000_000.0
UPTIME = 7 * DAY
SINCE = NOW - 60
ASKS_RESET = Patient("GPU-0", "isolation", "recovery", SINCE, action=1)
LOST = Patient("GPU-1", "isolation", "off-bus", SINCE, answers=False)
SPLIT = dataclasses.replace(ASKS_RESET, whole=False)


def site(*patients, made=(), **more):
    given = {"may_reset": True, "may_reboot": True, "now": NOW, "boot": "this", "uptime": UPTIME}
    return Site(patients=patients, made=tuple(made), **given | more)


def step(*patients, **more):
    return decide(site(*patients, **more)).step


def made_at(age, step=Step.RESET, uuid="GPU-0", clock=0):
    """What was made so long ago, in this boot if that is old enough; the clock was set since."""
    boot = "this" if age <= UPTIME else "before"
    return Made(step, (uuid,), NOW - age - clock, boot, UPTIME - age)


def reset(age, uuid="GPU-0"):
    return made_at(age, uuid=uuid)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"action": 1}, Step.RESET),
        ({"action": 3}, Step.RESET),
        ({"action": 4}, Step.RESET),
        ({"action": 0, "pending": True}, Step.RESET),
        ({"action": 0, "uncorrected": 2}, Step.RESET),
        ({"action": None, "fault": "xid"}, Step.RESET),
        ({"action": None, "fault": "slowdown-lasting"}, Step.NOTHING),
        ({"action": 0, "fault": "xid"}, Step.NOTHING),
        ({"action": 0}, Step.NOTHING),
        ({"action": 2}, Step.REBOOT),
        ({"action": 6}, Step.REBOOT),
        ({"action": 7}, Step.NOTHING),
        ({"action": 7, "pending": True}, Step.NOTHING),
        ({"answers": False}, Step.REBOOT),
        # What only the operator brings back.
        ({"level": ""}, Step.NOTHING),
        ({"level": "", "answers": False}, Step.NOTHING),
        # The machine has started since, and it is still so.
        ({"action": 2, "since": NOW - UPTIME - 1}, Step.NOTHING),
        ({"answers": False, "since": NOW - UPTIME - 1}, Step.NOTHING),
    ],
)
def test_what_helps(change, expected):
    assert step(dataclasses.replace(ASKS_RESET, **change)) is expected


def test_nothing_without_the_option_or_a_patient():
    assert step(ASKS_RESET, LOST, may_reset=False, may_reboot=False) is Step.NOTHING
    assert step() is Step.NOTHING


def test_with_reset_alone_no_machine_is_rebooted():
    assert step(LOST, may_reboot=False) is Step.NOTHING
    assert step(ASKS_RESET, may_reboot=False) is Step.RESET


def test_without_resets_a_reboot_is_made_for_what_either_would_help():
    without = {"may_reset": False}
    assert step(ASKS_RESET, **without) is Step.REBOOT
    assert step(SPLIT, **without) is Step.REBOOT
    assert step(LOST, **without) is Step.REBOOT
    assert step(dataclasses.replace(ASKS_RESET, asked=True), **without) is Step.NOTHING
    since = dataclasses.replace(ASKS_RESET, since=NOW - UPTIME - 1)
    assert step(since, **without) is Step.NOTHING


@pytest.mark.parametrize(
    "more", [{"can_reset": False}, {"engaged": True}, {"joined": True, "all_idle": False}]
)
def test_where_no_reset_may_be(more):
    assert step(ASKS_RESET, **more) is Step.NOTHING


def test_gpus_that_are_not_joined_are_reset_beside_jobs_on_others():
    assert step(ASKS_RESET, all_idle=False) is Step.RESET


@pytest.mark.parametrize("change", [{"idle": False}, {"whole": False}])
def test_never_under_a_job_and_never_with_mig(change):
    assert step(dataclasses.replace(ASKS_RESET, **change)) is Step.NOTHING


def test_one_at_a_time_and_resets_before_the_reboot():
    other = dataclasses.replace(ASKS_RESET, uuid="GPU-2")
    assert decide(site(LOST, ASKS_RESET, other)) == Cure(Step.RESET, ("GPU-0",))
    assert decide(site(LOST, SPLIT)) == Cure(Step.REBOOT, ("GPU-1",))
    assert decide(site(LOST, dataclasses.replace(LOST, uuid="GPU-2"))) == Cure(
        Step.REBOOT, ("GPU-1", "GPU-2")
    )


def test_a_reset_that_did_not_help_is_not_made_again():
    made = [reset(30)]
    assert step(ASKS_RESET, made=made, may_reboot=False) is Step.NOTHING
    assert step(ASKS_RESET, made=made) is Step.REBOOT
    assert step(ASKS_RESET, made=[reset(30, "GPU-9")]) is Step.RESET


def test_whether_a_reset_helped_its_test_says_before_a_reboot_is_made():
    """Drivers that tell of an Xid alone look the same after the reset."""
    silent = dataclasses.replace(ASKS_RESET, action=None, fault="xid", asked=True)
    assert step(silent) is Step.RESET
    assert step(silent, made=[reset(30)]) is Step.NOTHING
    assert step(dataclasses.replace(silent, asked=False), made=[reset(30)]) is Step.REBOOT
    # What does not answer, or asks for a reboot, has no test that could pass.
    for change in ({"answers": False}, {"action": 2}):
        assert step(dataclasses.replace(silent, **change), made=[reset(30)]) is Step.REBOOT


def test_the_next_quarantine_may_have_its_own_reset_but_not_within_the_hour():
    assert step(ASKS_RESET, made=[reset(HOUR / 2)]) is Step.NOTHING
    assert step(ASKS_RESET, made=[reset(2 * HOUR)]) is Step.RESET


def test_three_in_a_week_are_enough():
    made = [reset(age) for age in (2 * HOUR, 2 * DAY, 6 * DAY)]
    assert step(ASKS_RESET, made=made) is Step.NOTHING
    assert step(ASKS_RESET, made=[*made[:2], reset(8 * DAY)]) is Step.RESET


def test_one_reboot_a_day_whomever_it_is_for():
    def reboot(age):
        return made_at(age, Step.REBOOT, "GPU-7")

    assert step(LOST, made=[reboot(DAY - 1)]) is Step.NOTHING
    assert step(LOST, made=[reboot(DAY)]) is Step.REBOOT


@pytest.mark.parametrize("clock", [30 * DAY, -30 * DAY])
def test_a_clock_that_was_set_makes_no_second_reboot_and_keeps_none_away(clock):
    for step_, patient in ((Step.RESET, ASKS_RESET), (Step.REBOOT, LOST)):
        rest = {Step.RESET: HOUR, Step.REBOOT: DAY}[step_]
        uuid = patient.uuid if step_ is Step.RESET else "GPU-7"
        # Quarantined anew since, by whichever clock.
        sick = dataclasses.replace(patient, since=NOW + 60 * DAY)
        assert step(sick, made=[made_at(rest - 1, step_, uuid, clock)]) is Step.NOTHING
        assert step(sick, made=[made_at(rest, step_, uuid, clock)]) is step_
    # Of an earlier boot this one's time is known for certain.
    earlier = Made(Step.REBOOT, ("GPU-7",), NOW + DAY, "before", 60.0)
    assert step(LOST, made=[earlier]) is Step.REBOOT


def test_a_card_that_is_broken_for_good_ends_in_nothing():
    """Whatever the order of hooks and boots: one reset, one reboot, and then it rests."""
    patient, made, boot, booted, now, steps = ASKS_RESET, [], "0", NOW - UPTIME, NOW, []
    for _ in range(1000):
        cure = decide(site(patient, made=made, now=now, boot=boot, uptime=now - booted))
        if cure.step is not Step.NOTHING:
            steps.append(cure.step)
            made.append(Made(cure.step, cure.uuids, now, boot, now - booted))
        if cure.step is Step.REBOOT:
            boot, booted = boot + "1", now + 60
        now += HOUR
    assert steps == [Step.RESET, Step.REBOOT]
