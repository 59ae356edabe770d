# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The compute checks with the real PyTorch and ONNX Runtime, on the CPU: the code that GPUs get.

`make soak` runs it: the environment is made once, in .venv-selftest (2.5 GiB to download, 5.6 GiB
on the disk), as a worker makes it. tests/unit/test_selftest_compute.py is the short form.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from gpu_selftest.check import Outcome
from gpu_selftest.compute import answers, environment, work
from gpu_selftest.compute import level as compute
from gpu_selftest.compute.environment import Environment
from gpu_selftest.compute.equipment import Equipment
from gpu_selftest.compute.measurements import ON_CPU
from gpu_selftest.compute.work import WorkFailedError
from gpu_selftest.settings import Settings
from gpu_selftest.starvation_clock import Pulse
from tests.fakes import FAKEGPU
from tests.functional.containerd_worker import NEEDS, UUIDS, worker_in_a_namespace
from tests.functional.lease_site import Site

if "GPUCI_SOAK" not in os.environ:
    pytest.skip("`make soak` runs it", allow_module_level=True)
ROOT = pathlib.Path(__file__).parents[2]
HOME = ROOT / ".venv-selftest"


@pytest.fixture(scope="module")
def made() -> Environment:
    return environment.ensure("", "", "worker", lambda text: None, HOME)


def test_an_environment_is_made_once(made):
    told = []
    assert environment.ensure("", "", "worker", told.append, HOME) == made
    assert told == []


def test_all_checks_pass_on_the_cpu_and_say_that_they_prove_no_gpu(made, tmp_path):
    told = []
    equipment = Equipment(home=tmp_path, pytorch=lambda *_: made)
    found = compute.run(Settings(unit="worker/0"), (), "cpu", told.append, equipment)
    assert [one.check for one in found] == [check.id for check in compute.CHECKS]
    outcomes = {one.check: one.outcome for one in found}
    container = outcomes.pop("container")
    assert container in (Outcome.PASSED, Outcome.NOT_RUN)  # where there is no wrapper
    assert set(outcomes.values()) == {Outcome.PASSED}, found
    assert all(ON_CPU in one.text and not one.gpu for one in found)
    rates = [one for one in found if one.check.startswith(("matrix-rate", "copy", "host", "peer"))]
    assert all(one.value > 0 and one.unit in ("TFLOPS", "GB/s") for one in rates)
    assert any("matrix products" in text for text in told)
    assert not [*tmp_path.iterdir()]


def test_without_a_gpu_the_work_fails_in_pytorchs_words(made):
    with pytest.raises(WorkFailedError, match=r"NVIDIA|CUDA"):
        work.ask(made, "results", "cuda", ["GPU-none"], timeout=120, clock=Pulse())


# Runs inside the environment: the workload's own functions, with a fault put in.
IN_THE_WORKLOAD = """
import sys, json, torch
sys.path.insert(0, {folder!r})
import devices
device = devices.find("cpu")
"""
BROKEN_PRODUCTS = """
import matrices
calls = 0
def multiply(left, right):
    global calls
    calls += 1
    out = left @ right
    bits = {{2: torch.int16, 4: torch.int32, 8: torch.int64}}[out.element_size()]
    if calls in {calls}:
        {fault}
    return out
torch.manual_seed(1)
found = {{}}
for kind in matrices.FORMATS:
    calls = 0
    found[kind.name] = matrices.examine(kind, device, 64, multiply)
print(json.dumps({{"formats": found}}))
"""
LOWEST_BIT = "out.view(bits)[3, 5] ^= 1"


def in_the_workload(made, program):
    code = IN_THE_WORKLOAD.format(folder=str(work.PROGRAM)) + program
    done = subprocess.run(
        [made.python, "-I", "-B", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("calls", "fault", "count", "words"),
    [
        ((1, 2), LOWEST_BIT, "inexact", "1 of the integers are wrong"),
        ((2,), LOWEST_BIT, "unequal", "1 differ when repeated"),
        ((3, 4), "out[3, 5] += 40", "wrong", "1 are wrong, by up to"),
        ((3, 4), "out[3, 5] = float('nan')", "wrong", "1 are wrong, by up to"),
        ((3, 4), "out[3, 5] = float('inf')", "wrong", "1 are wrong, by up to"),
    ],
)
def test_one_wrong_value_in_a_product_of_any_format_fails(made, calls, fault, count, words):
    answer = in_the_workload(made, BROKEN_PRODUCTS.format(calls=calls, fault=fault))
    assert answer["formats"].keys() == answers.RATES.keys()
    for name, found in answer["formats"].items():
        assert {key: found[key] for key in ("inexact", "wrong", "unequal")} == {
            key: int(key == count) for key in ("inexact", "wrong", "unequal")
        }
        meaning = answers.results({"formats": {name: found}})
        assert meaning.outcome is Outcome.FAILED
        assert f"{name}: of 8192 values {words}" in meaning.text


BROKEN_MEMORY = """
import memory
chunks = memory.allocate(device)
for chunk, first in memory._numbered(chunks):
    torch.arange(first, first + chunk.numel(), out=chunk)
assert memory.verify(chunks, inverse=False) == (0, None)
{fault}
normal = memory.verify(chunks, inverse=False)
for chunk in chunks:
    chunk.bitwise_not_()
assert memory.verify(chunks, inverse=True) == normal
print(json.dumps([chunks[0].numel(), *normal]))
"""


@pytest.mark.parametrize(
    ("fault", "wrong", "first"),
    [
        ("chunks[1][7] ^= 1 << 62", lambda size: 1, lambda size: (size + 7) * 8),
        # An address line that is stuck: two halves are one.
        ("chunks[0][:1024] = chunks[0][1024:2048]", lambda size: 1024, lambda size: 0),
    ],
)
def test_a_flipped_bit_and_a_stuck_address_are_found_in_memory(made, fault, wrong, first):
    size, count, place = in_the_workload(made, BROKEN_MEMORY.format(fault=fault))
    assert (count, place) == (wrong(size), first(size))
    answer = {"bytes": 2**30, "total": 2**30, "wrong": count, "first": place}
    meaning = answers.memory(answer)
    assert meaning.outcome is Outcome.FAILED
    assert f"{count} words are wrong, the first {place:#x} bytes in" in meaning.text


def test_a_session_that_falls_back_to_the_cpu_without_an_error_fails(made, tmp_path):
    """The real ONNX Runtime, asked for CUDA on a machine that has none."""
    program = f"""
import session
class Gpu:
    is_cuda, about = True, {{}}
print(json.dumps(session.run(Gpu(), {str(tmp_path)!r})))
"""
    answer = in_the_workload(made, program)
    assert "CUDAExecutionProvider" in answer["available"]
    assert answer["wrong"] == 0
    meaning = answers.onnx(answer)
    assert meaning.outcome is Outcome.FAILED
    assert meaning.text.startswith("ONNX Runtime fell back to the CPU: ")
    assert "has CPUExecutionProvider, and ran MatMul on CPUExecutionProvider" in meaning.text
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in meaning.remedy


def test_load_tells_each_second_and_ends_on_sigterm(made):
    argv = work.argv(made, "load", "cpu", "--seconds", "60")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={}) as child:
        lines = [json.loads(child.stdout.readline()) for _ in range(2)]
        child.send_signal(signal.SIGTERM)
        rest, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert lines[1]["products"] > lines[0]["products"] > 0
    last = work.answer(rest)
    assert last["ended"] is True
    assert (last["mismatches"], last["format"]) == (0, "bf16")
    assert last["tflops"] > 0


def test_load_sees_one_bit_that_differs(made):
    program = """
import load, matrices
first, left, right = load.make(matrices.FORMATS[-1], device)
copies = [torch.mm(left, right) for _ in range(3)]
assert load.compare(first, copies) == 0
copies[1].view(torch.int16)[0, 9] ^= 1
print(load.compare(first, copies))
"""
    assert in_the_workload(made, program) == 1


def test_code_for_other_gpus_is_told_apart(made):
    """By NVIDIA's rules of binary and PTX compatibility."""
    cases = {
        ("sm_80", (8, 9)): True,
        ("sm_90", (8, 9)): False,
        ("sm_86", (8, 0)): False,
        ("sm_100", (10, 3)): True,
        ("sm_120", (12, 0)): True,
        ("sm_90a", (9, 0)): True,
        ("sm_100a", (10, 3)): False,
        ("sm_100f", (10, 3)): True,
        ("compute_120", (12, 1)): True,
        ("compute_90", (10, 0)): True,
        ("compute_90", (8, 9)): False,
        ("gfx90a", (9, 0)): False,
    }
    program = f"print(json.dumps([devices._runs(*case) for case in {list(cases)}]))"
    assert in_the_workload(made, program) == list(cases.values())


RUN = """
import dataclasses, json, pathlib, sys
from gpu_agent.gpu.vendors import detect
from gpu_selftest.compute import level as compute
from gpu_selftest.compute import environment
from gpu_selftest.compute.equipment import Equipment
from gpu_selftest.settings import Settings
home = pathlib.Path(sys.argv[1])
equipment = Equipment(pytorch=lambda *asked: environment.ensure(*asked, home))
gpus = detect.detect().gpus
settings = Settings("worker/0", gpus=gpus)
found = compute.run(settings, gpus, sys.argv[2], lambda text: None, equipment)
print(json.dumps([dataclasses.asdict(one) for one in found], default=lambda enum: enum.value))
"""


@pytest.fixture(scope="module")
def worker(made):
    with worker_in_a_namespace() as started:
        inside(started, FAKEGPU, "install", "--count", "2")
        for number, uuid in enumerate(UUIDS):
            inside(started, FAKEGPU, "set", number, f"uuid={uuid}")
        started.charm(0, 1)
        started.start()
        yield started


@pytest.fixture
def site(worker):
    site = Site(worker)
    yield site
    site.close()


def inside(worker, *words):
    env = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib", "PATH": os.environ["PATH"]}
    done = worker.inside(*words, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestOnAWorker:
    """With the real wrapper and runc, and simulated GPUs that compute nothing."""

    pytestmark = NEEDS

    def run(self, worker, device):
        text = inside(worker, sys.executable, "-c", RUN, HOME, device)
        return json.loads(text.splitlines()[-1])

    def test_pytorch_works_in_a_tasks_container(self, worker):
        found = {one["check"]: one for one in self.run(worker, "cpu")}
        assert found["container"]["outcome"] == "passed", found["container"]
        assert ON_CPU in found["container"]["text"]

    def test_gpus_that_can_not_compute_fail_and_are_given_back(self, worker):
        found = self.run(worker, "cuda")
        outcomes = {(one["check"], one["gpu"]): one["outcome"] for one in found}
        assert outcomes.pop(("pytorch", "")) == "passed"
        assert {gpu for _, gpu in outcomes} == set(UUIDS)
        failed = {key for key, outcome in outcomes.items() if outcome == "failed"}
        assert failed == {(name, gpu) for name in ("results", "container") for gpu in UUIDS}
        assert {outcomes[key] for key in outcomes.keys() - failed} == {"not-run"}
        why = {one["text"] for one in found if one["check"] == "memory-pattern"}
        assert why == {"results failed"}
        # Made with the GPU and the driver's libraries; what fails is the work in it.
        words = {one["text"] for one in found if one["check"] in ("container", "results")}
        assert all(text.startswith("PyTorch failed: RuntimeError: ") for text in words)
        assert worker.leases()["holders"] == {}

    def test_a_gpu_that_a_job_has_is_left_alone(self, worker, site):
        site.create("job", "GPU_COUNT=1")
        site.step("job")
        (held,) = site.gpus("job")
        found = self.run(worker, "cuda")
        about = [one for one in found if one["gpu"] == held]
        assert {one["outcome"] for one in about} == {"not-run"}
        assert all("is in use by container job" in one["text"] for one in about)
        free = {one["check"]: one["outcome"] for one in found if one["gpu"] not in ("", held)}
        assert (free["results"], free["peer"]) == ("failed", "not-run")
        assert site.gpus("job") == [held]
