# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs under load, one program for each: what comes of it, and what stops it.

The load here is a program that tells what PyTorch's would and uses no GPU.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import signal
import threading
import time

import pytest

from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.nvidia.xid import Log, Message
from gpu_agent.gpu.vendors.vendor import Cuda, QueryError
from gpu_agent.model.gpu_health import Health, Sample
from gpu_agent.model.inventory import MigDevice
from gpu_selftest.burnin import level as burnin
from gpu_selftest.check import Obstacle, Outcome, Request
from gpu_selftest.compute.environment import Environment, UnavailableError
from gpu_selftest.compute.equipment import Equipment, Times
from gpu_selftest.settings import Settings
from gpu_selftest.starvation_clock import Pulse
from tests.unit.situations import GPUS

FIRST, SECOND = GPUS[:2]
RUN = "20261121T170000Z-1a2b"
WELL = Health(
    sm_clock_max_mhz=1980, temperature=30, temperature_margin=60,
    uncorrected_volatile=0, corrected_volatile=0,
)  # fmt: skip
BUSY = Sample(sm_clock_mhz=1700, power_w=500.4, temperature=66, reasons=4)
# Ends as the file beside it says for its device, and writes down how it was called.
PROGRAM = """
import json, os, pathlib, signal, sys, time
here = pathlib.Path(__file__).parent
device = os.environ.get("CUDA_VISIBLE_DEVICES", "")
with open(here / "calls", "a") as calls:
    calls.write(json.dumps([sys.argv[1:], device, os.getpid()]) + "\\n")
how = json.loads((here / "how").read_text()).get(device, "well")
stopped = []
if how == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
if how == "unsupported":
    print(json.dumps({"mode": "load", "unsupported": "no code for compute capability 3.5"}))
    sys.exit()
if how == "fails at once":
    sys.exit("Traceback\\nRuntimeError: CUDA error: an illegal memory access was encountered")
state, began = {}, time.monotonic()
while not stopped and time.monotonic() - began < float(sys.argv[-1]) / 60:
    time.sleep(0.1)
    state = {"seconds": 1, "tflops": 650.0, "products": 1000, "mismatches": 7 * (how == "wrong")}
    if how != "silent" or not state:
        print(json.dumps(state), flush=True)
        (here / f"told-{device}").touch()
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
while how in ("silent", "deaf"):
    time.sleep(1)
print(json.dumps({"mode": "load", **state, "ended": True}))
"""


class Place:
    """A machine with GPUs that tell what is set here."""

    def __init__(self, folder):
        self.folder = folder
        self.before, self.after, self.sample = {}, {}, {}
        self.logs = Log(), Log()
        self.held, self.leases, self.told = {}, [], []
        self._reads = {"health": 0, "log": 0}
        (folder / "workload").mkdir()
        (folder / "workload/__main__.py").write_text(PROGRAM)
        python = folder / "bin/python"
        python.parent.mkdir()
        # ... -I -X CACHE WORKLOAD MODE
        python.write_text(f'#!/bin/sh\nshift 4\nexec /usr/bin/python3 -I {folder}/workload "$@"\n')
        python.chmod(0o755)
        self.times = Times(look=0.1, tell=0.5)
        self.clock = functools.partial(Pulse, home=folder / "selftest")
        self.how()

    def how(self, **by_device):
        text = str({name.replace("_", "-"): how for name, how in by_device.items()})
        (self.folder / "workload/how").write_text(text.replace("'", '"'))

    def vendor(self, name):
        """As it is known, but for how its driver is asked."""
        known = registry.find(name)
        asked = Cuda(lambda: ("13.0", "580.95.05"), self.watch) if known.cuda else None
        return dataclasses.replace(known, health=self.read_health, cuda=asked)

    def pytorch(self, cuda, wheels, application, progress):
        assert cuda in ("13.0", "")
        return Environment(self.folder, "key")

    def read_health(self, uuids):
        told = self.after if self._again("health") else self.before
        return {uuid: told.get(uuid, WELL) for uuid in uuids}

    def read_log(self):
        return self.logs[self._again("log")]

    def _again(self, what):
        """Whether it is read the second time in a run."""
        self._reads[what] += 1
        return self._reads[what] % 2 == 0

    @contextlib.contextmanager
    def watch(self, uuids):
        wanted = tuple(uuids)
        yield lambda: {uuid: self.sample.get(uuid, BUSY) for uuid in wanted}

    @contextlib.contextmanager
    def alone(self, container, gpus):
        why = self.held.get(gpus[0])
        self.leases.append((container, tuple(gpus), why.text if why else "taken"))
        yield why
        self.leases.append((container, tuple(gpus), "given back"))

    def calls(self):
        lines = (self.folder / "workload/calls").read_text().splitlines()
        return [eval(line) for line in lines]

    def run(self, *gpus, device="cuda", minutes=1):
        settings = Settings("worker/0", gpus=gpus)
        request = Request(RUN, device=device, minutes=minutes)
        equipment = Equipment(
            home=self.folder / "selftest",
            vendor=self.vendor,
            alone=self.alone,
            pytorch=self.pytorch,
            clock=self.clock,
            times=self.times,
        )
        found = burnin.run(settings, gpus, request, self.told.append, equipment, self.read_log)
        return {(one.check.removeprefix("burn-in-"), one.gpu): one for one in found}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def outcomes(found, gpu=FIRST):
    return {check: one.outcome for (check, uuid), one in found.items() if uuid == gpu.uuid}


def gone(calls):
    return not any(pathlib.Path(f"/proc/{pid}").exists() for *_, pid in calls)


def test_each_gpu_works_alone_and_all_at_once(place):
    found = place.run(FIRST, SECOND)
    calls = place.calls()
    assert sorted(device for _, device, _ in calls) == sorted([FIRST.uuid, SECOND.uuid])
    assert calls[0][0] == ["load", "--device", "cuda", "--seconds", "60"]
    names = [f"gpu-selftest-burn-in-{RUN}-{gpu.index}" for gpu in (FIRST, SECOND)]
    assert place.leases == [
        (names[0], (FIRST.uuid,), "taken"), (names[1], (SECOND.uuid,), "taken"),
        (names[1], (SECOND.uuid,), "given back"), (names[0], (FIRST.uuid,), "given back"),
    ]  # fmt: skip
    for gpu in (FIRST, SECOND):
        assert found["results", gpu.uuid].outcome is Outcome.PASSED
        assert "1000 matrices alike at 650 TFLOPS" in found["results", gpu.uuid].text
        picture = place.folder / f"selftest/burn-in-{RUN}-gpu{gpu.index}.svg"
        assert str(picture) in found["results", gpu.uuid].text
        assert gpu.model in picture.read_text()
    assert place.told[0] == f"Burn-in of 1 min on GPU {FIRST.index}, {SECOND.index}"
    states = f"GPU {FIRST.index} 1700 MHz, 500 W, 66 °C; GPU {SECOND.index} 1700 MHz"
    assert states in place.told[1]
    assert place.told[1].startswith("Burn-in, 0.0 of 1 min: ")


def test_what_a_short_load_can_not_prove_is_not_passed(place):
    # It ended by itself with nothing wrong, but long before there was anything to see.
    found = place.run(FIRST)
    for check in ("throttle", "temperature", "clocks"):
        result = found[check, FIRST.uuid]
        assert result.outcome is Outcome.NOT_RUN
        assert result.text == "the GPU was under load for less than 20 s"


def test_on_the_cpu_the_same_program_runs_without_a_gpu(place):
    place.run(FIRST, device="cpu")
    assert place.calls()[0][0][:3] == ["load", "--device", "cpu"]


def test_each_mig_device_has_work_of_its_own(place):
    slices = (MigDevice("MIG-a", "1g.10gb"), MigDevice("MIG-b", "1g.10gb"))
    gpu = dataclasses.replace(FIRST, mig_enabled=True, mig=slices)
    place.how(MIG_b="wrong")
    found = place.run(gpu)
    assert sorted(device for _, device, _ in place.calls()) == ["MIG-a", "MIG-b"]
    assert found["results", gpu.uuid].outcome is Outcome.FAILED
    assert "7 values of 2000 matrices differ" in found["results", gpu.uuid].text


def test_gpu_that_a_job_holds_is_left_to_it_and_the_others_are_tested(place):
    why = f"GPU {FIRST.index} is in use by container abc (task, 3 min)"
    place.held = {FIRST.uuid: Obstacle(why)}
    found = place.run(FIRST, SECOND)
    assert set(outcomes(found).values()) == {Outcome.NOT_RUN}
    assert {one.text for (_, uuid), one in found.items() if uuid == FIRST.uuid} == {why}
    assert [device for _, device, _ in place.calls()] == [SECOND.uuid]
    assert outcomes(found, SECOND)["results"] is Outcome.PASSED


def test_when_jobs_hold_all_nothing_is_started(place):
    place.held = {FIRST.uuid: Obstacle("in use")}
    assert set(outcomes(place.run(FIRST)).values()) == {Outcome.NOT_RUN}
    assert not (place.folder / "workload/calls").exists()


@pytest.mark.parametrize(
    ("how", "outcome", "words"),
    [
        ("wrong", Outcome.FAILED, "wrong results under load: 7 values of 1000 matrices differ"),
        ("fails at once", Outcome.FAILED, "RuntimeError: CUDA error: an illegal memory access"),
        ("killed", Outcome.NOT_RUN, "the load ended early: killed by signal 9"),
        ("unsupported", Outcome.SKIPPED, "no code for compute capability 3.5"),
        ("silent", Outcome.FAILED, "the load ended early: no output for 4 s"),
    ],
)
def test_load_that_does_not_end_well_is_told_and_ended(place, how, outcome, words):
    # Longer than a busy machine needs to start the load.
    place.times = dataclasses.replace(place.times, silence=4)
    place.how(**{FIRST.uuid.replace("-", "_"): how})
    found = place.run(FIRST)
    result = found["results", FIRST.uuid]
    assert result.outcome is outcome
    assert words in result.text
    assert bool(result.remedy) == (outcome is Outcome.FAILED)
    assert gone(place.calls())
    if outcome is Outcome.FAILED:
        assert result.remedy.endswith("`juju run worker/0 gpu-selftest level=burn-in`")


def test_load_that_is_silent_while_the_machine_serves_nobody_has_its_time(place):
    began = time.monotonic()

    class Clock(Pulse):
        def seconds(self, awaited=None):
            return max(0.0, time.monotonic() - began - 2)

    place.times = dataclasses.replace(place.times, silence=0.5)
    place.clock = functools.partial(Clock, home=place.folder / "selftest")
    place.how(**{FIRST.uuid.replace("-", "_"): "silent"})
    found = place.run(FIRST)
    assert time.monotonic() - began > 2
    assert found["results", FIRST.uuid].outcome is Outcome.FAILED


def test_stopped_early_it_tells_what_was_seen_and_leaves_nothing_behind(place):
    def interrupt(*_):
        raise KeyboardInterrupt

    def stop_once_both_have_told():
        while len([*place.folder.glob("workload/told-*")]) < 2:
            time.sleep(0.05)
        time.sleep(0.5)  # it looks each tenth of a second
        os.kill(os.getpid(), signal.SIGTERM)

    place.times = dataclasses.replace(place.times, stop=3.0)
    place.how(**{SECOND.uuid.replace("-", "_"): "deaf"})
    before = signal.signal(signal.SIGTERM, interrupt)
    threading.Thread(target=stop_once_both_have_told, daemon=True).start()
    began = time.monotonic()
    try:
        found = place.run(FIRST, SECOND, minutes=60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert time.monotonic() - began < 60
    assert outcomes(found)["results"] is Outcome.NOT_RUN
    assert found["results", FIRST.uuid].text.startswith(
        "stopped after 0.0 of 60 min; until then: 1000 matrices alike"
    )
    assert found["clocks", FIRST.uuid].text == "stopped after 0.0 of 60 min"
    assert gone(place.calls())
    assert [state for *_, state in place.leases] == ["taken", "taken", "given back", "given back"]


def test_gpu_that_stops_answering_fails(place):
    lost = "GPU is lost"
    place.sample = {FIRST.uuid: Sample(failure=lost)}
    place.after = {FIRST.uuid: Health(failure=lost)}
    found = place.run(FIRST)
    assert found["xid", FIRST.uuid].outcome is Outcome.FAILED
    assert found["xid", FIRST.uuid].text.startswith("NVML says GPU is lost")
    assert found["ecc", FIRST.uuid].outcome is Outcome.SKIPPED


def test_only_xids_that_came_under_load_count(place):
    old = Message(79, FIRST.pci_address, 10.0, "old")
    new = Message(48, FIRST.pci_address, 20.0, "new")
    others = Message(79, SECOND.pci_address, 20.0, "another GPU's")
    place.logs = Log((old,)), Log((old, new, others))
    result = place.run(FIRST)["xid", FIRST.uuid]
    assert (result.outcome, result.text) == (Outcome.FAILED, "Xid 48: double bit ECC error")
    place.logs = Log((old,)), Log((old,))
    assert place.run(FIRST)["xid", FIRST.uuid].outcome is Outcome.PASSED


def test_without_pytorch_or_nvml_it_says_why_nothing_was_made(place):
    def unavailable(*_):
        raise UnavailableError("no room for PyTorch")

    @contextlib.contextmanager
    def unwatched(_):
        raise QueryError("Unknown Error")
        yield

    place.watch = unwatched
    found = place.run(FIRST)
    assert {(one.outcome, one.text) for one in found.values()} == {
        (Outcome.NOT_RUN, "NVML says Unknown Error")
    }
    place.pytorch = unavailable
    found = place.run(FIRST)
    assert {(one.outcome, one.text) for one in found.values()} == {
        (Outcome.NOT_RUN, "no room for PyTorch")
    }


def test_gpus_of_other_makers_are_passed_over_in_words(place):
    found = place.run(dataclasses.replace(FIRST, vendor="amd"))
    assert {one.outcome for one in found.values()} == {Outcome.SKIPPED}
    assert place.leases == []
