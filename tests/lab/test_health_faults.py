# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Each fault that the watch must see, and each that it must not, seen from outside alone.

In `make soak` all of them; else a few.
"""

import dataclasses
import os
import re
import time

import pytest

from tests.lab import alerts
from tests.lab.leases import Tasks
from tests.lab.watching import Watch

SOAK = "GPUCI_SOAK" in os.environ
pytestmark = pytest.mark.usefixtures("watched")

# What a fault without an event may take, by design/issue: a poll of 15 s and a look; with room for
# a busy machine.
EVENT_SECONDS, POLL_SECONDS, ROOM = 5.0, 30.0, 10.0
# As long a harmless one is waited for: two polls and more.
QUIET_SECONDS = 40.0
# That a GPU is out, or about to be.
ALERTS = ("GpuQuarantined", "GpuPoolShort", "GpuDriverHangs", "GpuBreakerTripped")


@dataclasses.dataclass(frozen=True)
class Fault:
    """One way in which card 1 can fail.

    Attributes:
        name: for people.
        commands: of fakegpu, that bring it about.
        reason: how the reason begins that status and refusals show; empty: nothing may follow.
        seconds: after which no lease may be granted.
        both: whether the other card is out too.
        level: of the test that brings it back; empty: the operator alone.
        told: how the line goes on that the job on the card reads; empty: none comes.
        short: whether the short form has it.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    reason: str = ""
    seconds: float = POLL_SECONDS
    both: bool = False
    level: str = "isolation"
    told: str = "failed ("
    short: bool = False


def _set(*values):
    return ("set", "1", *values)


def _nvml(code):
    return ("xid", "1", str(code), "--only", "nvml")


SEEN = (
    Fault("xid-79", (_set("field-230=2"), ("xid", "1", "79")), "", EVENT_SECONDS),
    Fault("xid-by-nvml-alone", (_nvml(79),), "Xid 79", EVENT_SECONDS),
    Fault("xid-48", (_nvml(48),), "Xid 48", EVENT_SECONDS, level="compute"),
    Fault("off-the-bus", (("lose", "1"),), "off the bus"),
    Fault("off-the-bus-in-words", (("lose", "1"), ("xid", "1", "79", "--only", "log")), ""),
    Fault("does-not-answer", (("lose", "1", "--nvml-only"),), ""),
    Fault("recovery-event", (_set("field-230=1"), ("event", "1", "0x8000")), "", EVENT_SECONDS),
    Fault("recovery-by-poll", (_set("field-230=1"),), "recovery needed", short=True),
    Fault("ecc-by-poll", (_set("ecc-uncorrected-volatile=1"),), "uncorr", level="compute"),
    Fault("remapping-failed", (_set("remapped-rows-failed=1"),), "remapping failed", level=""),
    # Jobs that compute may well go on.
    Fault("hang", (("hang",),), "driver hangs", both=True, level="quick", told="", short=True),
)  # fmt: skip
HARMLESS = (
    Fault("illegal-address", (("xid", "1", "13"),), told="Xid 13: "),
    Fault("page-fault", (("xid", "1", "31"),), told="Xid 31: "),
    Fault("ended-channel", (("xid", "1", "43"), ("xid", "1", "45")), told="Xid 45: "),
    Fault("kernel-log-alone", (("xid", "1", "79", "--only", "log"),), told=""),
    Fault("power-cap", (_set("throttle-reasons=0x4"),), told=""),
    Fault("software-thermal", (_set("throttle-reasons=0x20"),), told=""),
    Fault("corrected-errors", (_set("ecc-corrected-volatile=100000"),), told=""),
    Fault("remapping-pending", (_set("remapped-rows-pending=1"),), told=""),
    Fault(
        "noise",
        (
            *(("xid", "1", "13"), ("xid", "1", "31"), ("xid", "1", "79", "--only", "log")),
            _set("throttle-reasons=0x24", "ecc-corrected-volatile=7", "remapped-rows-pending=1"),
        ),
        told="Xid 31: ",
        short=True,
    ),
)


def chosen(faults):
    return [fault for fault in faults if SOAK or fault.short]


@pytest.fixture(scope="module")
def mended(site):
    """The watch, where all is well."""
    watch = Watch(site)
    watch.begin()
    return watch


@pytest.fixture
def watch(mended):
    """The watch; all is well again afterwards."""
    yield mended
    mended.begin()


@pytest.fixture
def job(site):
    """One that has both GPUs."""
    tasks = Tasks(site)
    job = tasks.start("job", GPU_COUNT="2")
    assert job.cards() == [0, 1]
    job.build.line(r"\[gpu-ci\] GPU 0, 1: ")
    yield job
    tasks.end()


def ends_well(job, told):
    """The job goes on, and reads this of its GPU, or nothing."""
    if told:
        job.build.line(rf"\[gpu-ci\] GPU 1:? {re.escape(told)}", 60)
    job.answer()
    assert job.end() == 0
    # Only its own output: its usage is reported after a minute.
    lines = [line for line in job.build.output.splitlines() if "[gpu-ci] GPU 1" in line]
    assert bool(lines) == bool(told), job.build.output


@pytest.mark.parametrize("fault", chosen(SEEN), ids=lambda fault: fault.name)
def test_what_must_be_seen(site, watch, job, tmp_path, fault):
    shown = "All GPUs are unavailable" if fault.both else "1 quarantined: GPU 1 ("
    if fault.name in ("off-the-bus", "off-the-bus-in-words", "does-not-answer"):
        shown = "1x NVIDIA"
    if fault.name == "hang":
        shown = "does not answer"
    took, told = watch.faults_and_status(1, shown, *fault.commands)
    said = f"{fault.name}: no lease is granted after {took:.1f} s, promised {fault.seconds:g}"
    print(f"{said}; status says so after {told:.1f} s")
    assert took <= fault.seconds + ROOM
    if fault.both:
        watch.until(lambda: len(watch.out()) == 2)
    out = watch.out()
    assert len(out) == 1 + fault.both
    entry = out[watch.uuid(1)]
    assert entry["reason"].startswith(fault.reason)
    assert (entry["by"], entry["level"]) == ("watch", fault.level)
    watch.until(lambda: sum(watch.metric(r"gpuci_gpu_quarantined\{")) == len(out))
    firing = {"GpuQuarantined": len(out), "GpuDriverHangs": int(fault.name == "hang")}
    watch.until(lambda: "gpu-count=2" not in site.tags())
    # Web lets as many tasks in as there are GPUs.
    ends_well(job, fault.told)
    if fault.both:
        # No task is sent to a worker that has none left.
        watch.until(lambda: "gpu" not in site.tags())
    else:
        refused = site.task("true", params={"GPU_COUNT": "2"})
        assert refused.returncode
        assert "GPU" in refused.stdout
    alerts.check(tmp_path, watch.page(), firing)


@pytest.mark.parametrize("fault", chosen(HARMLESS), ids=lambda fault: fault.name)
def test_what_must_take_nothing_out(site, watch, job, tmp_path, fault):
    for command in fault.commands:
        watch.fake(*command)
    end = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < end:
        assert watch.reasons() == {}, (fault.name, watch.journal())
        time.sleep(3)
    assert sum(watch.metric(r"gpuci_gpu_quarantined\{")) == 0
    page = watch.page()
    ends_well(job, fault.told)
    assert site.task("true", params={"GPU_COUNT": "2"}).returncode == 0
    alerts.check(tmp_path, page, dict.fromkeys(ALERTS, 0))
