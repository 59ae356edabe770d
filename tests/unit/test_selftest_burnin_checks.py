# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What is seen of a GPU under load turns its own check red, and noise turns none."""

import dataclasses

import pytest

from gpu_agent.gpu.vendors.nvidia.xid import Log, Message
from gpu_agent.model import clock_reasons
from gpu_agent.model.gpu_health import Health, Sample, Sram
from gpu_selftest.burnin import checks as burnin_checks
from gpu_selftest.burnin.checks import Course, Load, UnderLoad
from gpu_selftest.burnin.plot import Moment
from gpu_selftest.check import Outcome
from gpu_selftest.settings import Settings
from tests.unit.situations import GPUS

WELL = Health(
    sm_clock_max_mhz=1980, temperature=30, temperature_margin=60, uncorrected_volatile=0,
    corrected_volatile=0, sram=Sram(0, 0, 0, threshold_exceeded=False),
)  # fmt: skip
BUSY = Sample(
    sm_clock_mhz=1700, power_w=500.4, temperature=66, reasons=clock_reasons.SOFTWARE_POWER_CAP
)
SETTINGS = Settings("worker/0", gpus=GPUS)


def course(gpu=GPUS[0], *, minutes=10, sample=lambda at: BUSY, after=None, log=None, **changes):
    moments = tuple(Moment(float(at), sample(at)) for at in range(60 * minutes))
    whole = {
        "case": UnderLoad(SETTINGS, gpu, after or WELL, log or Log()), "before": WELL,
        "moments": moments, "messages": (), "loads": (Load(1000, 0, 650.0),),
        "picture": "/x.svg",
    }  # fmt: skip
    return Course(**{**whole, **changes})


def judged(*courses):
    gpu = courses[0].case.gpu.uuid
    found = [one for one in burnin_checks.judge(courses) if one.gpu == gpu]
    assert [one.check for one in found] == [check.id for check in burnin_checks.CHECKS]
    return {one.check.removeprefix("burn-in-"): one for one in found}


def busy(**changes):
    return lambda at: dataclasses.replace(BUSY, **changes)


def part(share, **changes):
    """The changes for this share of each ten seconds."""
    return lambda at: dataclasses.replace(BUSY, **changes) if at % 10 < share * 10 else BUSY


def well(**changes):
    return dataclasses.replace(WELL, **changes)


def message(code, text=""):
    return Message(code, GPUS[0].pci_address, 100.0, text)


HW, THERMAL = (
    clock_reasons.HARDWARE_SLOWDOWN | clock_reasons.HARDWARE_THERMAL,
    clock_reasons.SOFTWARE_THERMAL,
)
SRAM = Sram(1, 1, 0, threshold_exceeded=False)


def test_healthy_gpu_passes_all_and_its_numbers_are_told():
    found = judged(course())
    assert {one.outcome for one in found.values()} == {Outcome.PASSED}
    assert {check: (one.value, one.unit, one.text) for check, one in found.items()} == {
        "results": (0, "wrong values", "1000 matrices alike at 650 TFLOPS; picture: /x.svg"),
        "ecc": (0, "errors", "none uncorrected, 0 corrected"),
        "xid": (0, "", "no Xid"),
        "throttle": (0.0, "% of the time", "never slowed down"),
        "temperature": (
            66, "°C", "30 °C before, 66 °C at most, 30 °C after; 24 °C below its limit",
        ),
        "clocks": (1700, "MHz", "1700 of 1980 MHz at 500 W"),
    }  # fmt: skip
    assert all(one.threshold and not one.remedy for one in found.values())


# Each with its own check, what becomes of that, and how its text begins.
SEEN = [
    (
        course(loads=(Load(1000), Load(1000, 7))),
        *("results", Outcome.FAILED, "wrong results under load: 7 values of 2000 matrices"),
    ),
    (
        course(loads=(Load(1000, problem="CUDA error: unspecified"),)),
        *("results", Outcome.FAILED, "the load ended early: CUDA error: unspecified"),
    ),
    (course(after=well(uncorrected_volatile=1)), "ecc", Outcome.FAILED, "uncorrected memory err"),
    (course(after=well(sram=SRAM)), "ecc", Outcome.FAILED, "uncorrected memory errors under load"),
    (course(messages=(message(79),)), "xid", Outcome.FAILED, "Xid 79: the GPU has fallen off"),
    (course(messages=(message(13), message(48))), "xid", Outcome.FAILED, "Xid 48: double bit ECC"),
    (course(messages=(message(63),)), "xid", Outcome.WARNING, "Xid 63: memory was remapped"),
    (course(messages=(message(13),) * 3), "xid", Outcome.WARNING, "Xid 13: a program's"),
    (
        course(sample=part(0.6, reasons=HW)),
        *("throttle", Outcome.FAILED, "slowed down by its hardware: 60"),
    ),
    (course(sample=part(0.5, reasons=HW)), "throttle", Outcome.WARNING, "slowed down by its hard"),
    (
        course(sample=busy(reasons=THERMAL)),
        *("throttle", Outcome.FAILED, "slowed down by its driver for heat: 100 %"),
    ),
    (
        course(sample=part(0.8, reasons=THERMAL)),
        *("throttle", Outcome.WARNING, "slowed down by its driver for heat: 80"),
    ),
    (
        course(sample=busy(temperature=90)),
        *("temperature", Outcome.FAILED, "too hot under load: 30 °C before, 90 °C at most"),
    ),
    (course(sample=busy(temperature=87)), "temperature", Outcome.WARNING, "30 °C before, 87 °C"),
    (
        course(sample=busy(sm_clock_mhz=480, reasons=0)),
        *("clocks", Outcome.FAILED, "slow under load: 480 of 1980 MHz at 500 W"),
    ),
    # The operator's own limit.
    (course(sample=busy(sm_clock_mhz=480)), "clocks", Outcome.WARNING, "slow under load: 480 of"),
]


@pytest.mark.parametrize(("seen", "check", "outcome", "text"), SEEN)
def test_each_fault_turns_exactly_its_own_check(seen, check, outcome, text):
    found = judged(seen)
    assert found[check].outcome is outcome
    assert found[check].text.startswith(text)
    assert "then `juju run worker/0 gpu-selftest level=burn-in`" in found[check].remedy
    others = [one.outcome for name, one in found.items() if name != check]
    assert set(others) == {Outcome.PASSED}
    if outcome is Outcome.FAILED:
        # What stands before the colon is what juju status shows.
        assert len(text.partition(":")[0]) < 60


HARMLESS = [
    course(after=well(corrected_volatile=5)),
    # A GPU is slow and cold in its first seconds.
    course(sample=lambda at: BUSY if at > 15 else dataclasses.replace(BUSY, sm_clock_mhz=300)),
    course(sample=lambda at: dataclasses.replace(BUSY, reasons=0 if at % 20 else HW)),
    course(sample=lambda at: dataclasses.replace(BUSY, reasons=HW if at == 100 else 0)),
    # The driver was loaded anew, and counts from 0.
    course(before=well(uncorrected_volatile=4), after=well(uncorrected_volatile=0)),
    course(before=well(uncorrected_volatile=4), after=well(uncorrected_volatile=4)),
]


@pytest.mark.parametrize("seen", HARMLESS)
def test_harmless_noise_turns_nothing(seen):
    assert {one.outcome for one in judged(seen).values()} == {Outcome.PASSED}


def test_corrected_errors_are_told():
    assert judged(HARMLESS[0])["ecc"].text == "none uncorrected, 5 corrected"


def test_ten_bad_minutes_of_a_long_run_count():
    def bad(at):
        return dataclasses.replace(BUSY, reasons=HW if 3000 <= at < 3600 else 0)

    result = judged(course(minutes=120, sample=bad))["throttle"]
    assert (result.outcome, result.value) == (Outcome.FAILED, pytest.approx(100, abs=0.5))
    result = judged(course(minutes=120, sample=part(0.1, reasons=HW)))["throttle"]
    assert result.value == pytest.approx(10, abs=0.5)


def test_slower_than_its_siblings_is_a_warning_that_names_their_clock():
    slow = course(sample=busy(sm_clock_mhz=1300))
    found = judged(slow, course(GPUS[1]))
    assert found["clocks"].outcome is Outcome.WARNING
    assert found["clocks"].text == (
        "slower than other GPUs of its model, which have 1700 MHz: 1300 of 1980 MHz at 500 W"
    )
    assert judged(course(GPUS[1]), slow)["clocks"].outcome is Outcome.PASSED
    other = dataclasses.replace(GPUS[1], model="NVIDIA H100")
    assert judged(slow, course(other))["clocks"].outcome is Outcome.PASSED


def test_clock_and_power_are_told_before_during_and_after():
    idle = well(sm_clock_mhz=210, power_w=60.2, power_limit_w=700.0)
    found = judged(course(before=idle, after=well(sm_clock_mhz=345, power_w=71.0)))
    assert found["clocks"].text == (
        "1700 of 1980 MHz at 500 of 700 W; 210 MHz at 60 W before; 345 MHz at 71 W after"
    )
    assert judged(course(sample=busy(power_w=None)))["clocks"].text == "1700 of 1980 MHz"


def test_what_a_gpu_does_not_tell_is_skipped_and_not_passed():
    mute = course(sample=lambda at: Sample(), before=Health(), after=Health())
    found = judged(mute)
    assert {check for check, one in found.items() if one.outcome is Outcome.SKIPPED} == {
        "ecc", "throttle", "temperature", "clocks",
    }  # fmt: skip
    unread = judged(course(log=Log(problem="/dev/kmsg: Operation not permitted")))["xid"]
    assert (unread.outcome, unread.text) == (Outcome.SKIPPED, "/dev/kmsg: Operation not permitted")
    unlimited = judged(course(before=well(temperature_margin=None)))["temperature"]
    assert unlimited.outcome is Outcome.SKIPPED
    assert unlimited.text.endswith("; the GPU does not report its limit")


def test_gpu_that_vanished_fails_by_nvmls_words_even_without_an_xid():
    lost = judged(course(after=Health(failure="GPU is lost")))
    assert lost["xid"].outcome is Outcome.FAILED
    assert lost["xid"].text == "NVML says GPU is lost: the GPU stopped answering under load"
    assert lost["temperature"].text.startswith("30 °C before, 66 °C at most, unknown after")
    back = judged(course(sample=lambda at: Sample(failure="GPU is lost") if at == 50 else BUSY))
    assert back["xid"].outcome is Outcome.FAILED


def test_stopped_early_nothing_passes_and_what_failed_stays_failed():
    found = judged(course(stopped="2.0 of 10 min", after=well(uncorrected_volatile=2)))
    assert found.pop("ecc").outcome is Outcome.FAILED
    assert {one.outcome for one in found.values()} == {Outcome.NOT_RUN}
    assert found["xid"].text == "stopped after 2.0 of 10 min; until then: no Xid"
    assert not any(one.remedy for one in found.values())
