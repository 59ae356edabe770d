# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the compute checks make of answers: a program stands for PyTorch and tells what it is told.

With the real one: tests/functional/test_selftest_compute.py.
"""

import contextlib
import dataclasses
import functools
import json

import pytest

from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.vendor import Cuda
from gpu_selftest import results
from gpu_selftest.check import Obstacle, Outcome
from gpu_selftest.compute import level as compute
from gpu_selftest.compute.baseline import Baseline
from gpu_selftest.compute.environment import Environment, UnavailableError
from gpu_selftest.compute.equipment import Equipment, Times
from gpu_selftest.settings import Settings
from gpu_selftest.starvation_clock import Pulse
from tests.unit.situations import gpu, sliced

PASSED, WARNING, FAILED = Outcome.PASSED, Outcome.WARNING, Outcome.FAILED
SKIPPED, NOT_RUN = Outcome.SKIPPED, Outcome.NOT_RUN
RIGHT = {"values": 100, "inexact": 0, "wrong": 0, "largest": 0.5, "unequal": 0}
FORMATS = ("fp64", "fp32", "tf32", "fp16", "bf16")
CUDA = "CUDAExecutionProvider"
GOOD = {
    "results": {"formats": dict.fromkeys(FORMATS, RIGHT)},
    "rates": {"formats": {name: {"tflops": 50.0, "size": 8192} for name in FORMATS}},
    "bandwidth": {"within": 1500.0, "to_device": 50.0, "to_host": 52.0},
    "memory": {"bytes": 70 << 30, "total": 80 << 30, "wrong": 0, "first": None},
    "onnx": {
        "onnxruntime": "1.31.1",
        "available": [CUDA, "CPUExecutionProvider"],
        "wanted": CUDA,
        "providers": [CUDA, "CPUExecutionProvider"],
        "ran_on": {"MatMul": CUDA, "Relu": CUDA},
        "wrong": 0,
    },
}


def peers(count, wrong=()):
    return {
        "pairs": [
            {"from": a, "to": b, "gbps": 240.0, "wrong": int((a, b) in wrong), "direct": True}
            for a in range(count)
            for b in range(count)
            if a != b
        ]
    }


class Worker:
    """Where the program says for each GPU and mode what the test wants."""

    def __init__(self, folder):
        self.folder = folder
        self.held = {}
        self.times = Times()
        self.clock = functools.partial(Pulse, home=folder)
        self.baseline = Baseline(folder)
        python = folder / "bin" / "python"
        python.parent.mkdir()
        # ... -I -X CACHE PROGRAM MODE
        python.write_text(f"""#!/bin/sh
answer={folder}/$CUDA_VISIBLE_DEVICES.$5
[ -e "$answer" ] || answer={folder}/$5
if [ -x "$answer" ]; then exec "$answer"; fi
cat "$answer"
""")
        python.chmod(0o755)
        for mode, answer in GOOD.items():
            self.answers(mode, answer)

    def answers(self, mode, answer, device=""):
        name = f"{device}.{mode}" if device else mode
        (self.folder / name).write_text(json.dumps(answer))

    def crashes(self, mode, line, device):
        path = self.folder / f"{device}.{mode}"
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    @contextlib.contextmanager
    def alone(self, container, gpus):
        assert container.startswith("gpu-selftest-")
        yield next((self.held[one] for one in gpus if one in self.held), None)

    def vendor(self, name):
        """As it is known, but for what its driver says of CUDA."""
        known = registry.find(name)
        asked = known.cuda and Cuda(lambda: ("13.0", "580.1"), known.cuda.watch)
        return dataclasses.replace(known, cuda=asked)

    def pytorch(self, cuda, wheels, application, progress):
        assert (cuda, application) == ("13.0", "worker")
        return Environment(self.folder, "kit")

    def run(self, *gpus):
        # Containers are for the functional tests: the runc that makes them is missing.
        settings = Settings("worker/0", gpus=gpus, runc=f"{self.folder}/runc")
        equipment = Equipment(
            home=self.folder,
            vendor=self.vendor,
            alone=self.alone,
            pytorch=self.pytorch,
            clock=self.clock,
            times=self.times,
        )
        return compute.run(settings, gpus, "cuda", lambda text: None, equipment)

    def test(self, *gpus):
        self.answers("peer", self.peer if hasattr(self, "peer") else peers(len(gpus)))
        found = self.run(*gpus)
        by_check = {(one.check, one.gpu): one for one in found}
        assert len(by_check) == len(found)
        return by_check


@pytest.fixture
def worker(tmp_path):
    return Worker(tmp_path)


def outcomes(found, *but):
    """What is not passed, by check and GPU."""
    return {
        key: one.outcome
        for key, one in found.items()
        if one.outcome is not PASSED and key[0] not in ("container", *but)
    }


def test_two_good_gpus_pass_and_are_remembered(worker):
    found = worker.test(gpu(0), gpu(1))
    assert outcomes(found) == {}
    assert [check for check, where in found if where in ("", "GPU-0")] == [
        check.id for check in compute.CHECKS
    ]
    assert found["container", "GPU-0"].outcome is NOT_RUN
    assert found["matrix-rate-bf16", "GPU-1"].value == 50.0
    assert found["host-bandwidth", "GPU-1"].value == 50.0
    assert worker.baseline.own("GPU-1", "kit 580.1")["copy-bandwidth"] == 1500.0


def test_one_gpu_has_nobody_to_copy_to(worker):
    assert outcomes(worker.test(gpu(0))) == {("peer", "GPU-0"): SKIPPED}


def test_a_gpu_in_use_is_prevented_in_every_check_and_the_other_is_tested(worker):
    worker.held["GPU-0"] = Obstacle("GPU 0 is in use by container X", "GPU 0 is in use")
    found = worker.test(gpu(0), gpu(1))
    held = {one for (_, where), one in found.items() if where == "GPU-0"}
    assert {(one.outcome, one.text, one.cause) for one in held} == {
        (NOT_RUN, "GPU 0 is in use by container X", "GPU 0 is in use")
    }
    assert {check for check, where in outcomes(found) if where == "GPU-1"} == {"peer"}
    assert found["peer", "GPU-1"].text == "no other GPU is free"


def test_gpus_copy_to_those_that_are_free(worker):
    worker.held["GPU-1"] = Obstacle("GPU 1 is in use by container X (task, 3 min)")
    worker.peer = peers(2)
    found = worker.test(*map(gpu, range(3)))
    peer = {where: one.outcome for (check, where), one in found.items() if check == "peer"}
    assert peer == {"GPU-0": PASSED, "GPU-1": NOT_RUN, "GPU-2": PASSED}


def test_a_slow_gpu_fails_against_its_sibling_alone(worker):
    slow = {name: {"tflops": 30.0, "size": 8192} for name in FORMATS}
    worker.answers("rates", {"formats": slow}, "GPU-1")
    found = worker.test(gpu(0), gpu(1))
    assert outcomes(found) == {(f"matrix-rate-{name}", "GPU-1"): FAILED for name in FORMATS}
    one = found["matrix-rate-fp16", "GPU-1"]
    assert one.text == "slow: 30 TFLOPS with matrices of 8192 by 8192"
    assert one.threshold == "at least 75% of the others of its model, 50 TFLOPS"
    assert one.remedy.endswith("then `juju run worker/0 gpu-selftest level=compute`")
    assert worker.baseline.own("GPU-1", "kit 580.1") == {}


def test_a_gpu_that_calculates_wrongly_fails_and_the_rest_is_made(worker):
    formats = {**GOOD["results"]["formats"], "bf16": {**RIGHT, "inexact": 3}}
    worker.answers("results", {"formats": formats}, "GPU-0")
    found = worker.test(gpu(0))
    assert outcomes(found, "peer") == {("results", "GPU-0"): FAILED}
    text = "wrong results: bf16: of 100 values 3 of the integers are wrong"
    assert found["results", "GPU-0"].text == text


def test_work_that_crashes_fails_its_check_in_its_words_and_prevents_what_it_should_tell(worker):
    worker.crashes("bandwidth", "echo CUDA error: unspecified launch failure >&2; exit 1", "GPU-0")
    found = worker.test(gpu(0), gpu(1))
    assert outcomes(found) == {
        ("copy-bandwidth", "GPU-0"): FAILED,
        ("host-bandwidth", "GPU-0"): NOT_RUN,
    }
    text = "PyTorch failed: CUDA error: unspecified launch failure"
    assert found["copy-bandwidth", "GPU-0"].text == text
    assert found["copy-bandwidth", "GPU-0"].remedy.startswith("Reboot the machine")
    assert found["host-bandwidth", "GPU-0"].text == "copy-bandwidth failed"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("kill -KILL $$", "killed by signal 9"),
        ("echo \"OSError: [Errno 28] No space left on device: '/x'\" >&2; exit 1", "OSError: "),
        ("echo 'MemoryError' >&2; exit 1", "MemoryError"),
    ],
)
def test_work_for_which_the_machine_has_no_memory_or_room_blames_no_gpu(worker, line, text):
    worker.crashes("results", line, "GPU-0")
    worker.crashes("bandwidth", line, "GPU-1")
    found = worker.test(gpu(0), gpu(1))
    assert set(outcomes(found).values()) == {NOT_RUN}
    assert {gpu for _, gpu in outcomes(found)} == {"GPU-0", "GPU-1"}
    assert found["results", "GPU-0"].text.startswith(text)
    assert found["host-bandwidth", "GPU-1"].text.startswith(text)
    assert found["matrix-rate-fp64", "GPU-1"].outcome is PASSED


@pytest.mark.parametrize(
    ("service", "outcome"), [("", FAILED), ("import time; time.sleep(2)", NOT_RUN)]
)
def test_work_that_does_not_end_is_the_gpus_fault_where_the_machine_has_time(
    worker, service, outcome
):
    worker.times = Times(work=2.0)
    worker.clock = functools.partial(worker.clock, service=service)
    worker.crashes("memory", "exec sleep 60", "GPU-0")
    found = worker.test(gpu(0))
    assert outcomes(found, "peer") == {("memory-pattern", "GPU-0"): outcome}
    assert found["memory-pattern", "GPU-0"].text.endswith("no answer within 2 s")


def test_copies_to_the_host_are_told_and_blame_no_gpu(worker):
    """Jobs that copy too have the same memory."""
    slow = {**GOOD["bandwidth"], "to_device": 5.0}
    worker.test(gpu(0))
    worker.answers("bandwidth", slow)
    found = worker.test(gpu(0))
    assert outcomes(found, "peer") == {("host-bandwidth", "GPU-0"): FAILED}
    assert not results.condemns(found["host-bandwidth", "GPU-0"])


def test_a_gpu_that_pytorch_can_not_use_is_not_blamed(worker):
    worker.answers("results", {"unsupported": "no code for compute capability 6.1"}, "GPU-0")
    found = worker.test(gpu(0))
    assert set(outcomes(found, "peer").values()) == {NOT_RUN}
    assert "juju attach-resource worker selftest-wheels=" in found["results", "GPU-0"].text


def test_formats_that_the_hardware_lacks_are_skipped(worker):
    old = {name: GOOD["rates"]["formats"][name] for name in ("fp64", "fp32", "fp16")}
    worker.answers("rates", {"formats": old})
    skipped = outcomes(worker.test(gpu(0)), "peer")
    assert skipped == {(f"matrix-rate-{name}", "GPU-0"): SKIPPED for name in ("tf32", "bf16")}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"providers": ["CPUExecutionProvider"]}, "fell back to the CPU"),
        ({"ran_on": {"MatMul": CUDA, "Relu": "CPUExecutionProvider"}}, "Relu on CPUExecution"),
        ({"ran_on": {}}, "ran no node that it reports"),
        ({"wrong": 2}, "gives wrong results: 2 values"),
    ],
)
def test_a_session_must_run_every_node_on_the_gpu_and_rightly(worker, changes, words):
    worker.answers("onnx", {**GOOD["onnx"], **changes})
    found = worker.test(gpu(0))
    assert outcomes(found, "peer") == {("onnxruntime", "GPU-0"): FAILED}
    assert words in found["onnxruntime", "GPU-0"].text
    assert found["onnxruntime", "GPU-0"].value == f"1.31.1: {CUDA}, CPUExecutionProvider"


def test_onnx_runtime_and_its_providers_are_in_the_report(worker):
    result = worker.test(gpu(0))["onnxruntime", "GPU-0"]
    assert result.outcome is PASSED
    assert result.value == f"1.31.1: {CUDA}, CPUExecutionProvider"


@pytest.mark.parametrize(
    ("changes", "outcome", "words"),
    [
        ({"wrong": 5, "first": 4096}, FAILED, "5 words are wrong, the first 0x1000 bytes in"),
        ({"bytes": 30 << 30}, WARNING, "only 30.0 of 80.0 GiB were free and tested"),
    ],
)
def test_memory_must_be_right_and_most_of_it_be_tested(worker, changes, outcome, words):
    worker.answers("memory", {**GOOD["memory"], **changes})
    found = worker.test(gpu(0))
    assert outcomes(found, "peer") == {("memory-pattern", "GPU-0"): outcome}
    assert words in found["memory-pattern", "GPU-0"].text


def test_copies_that_arrive_wrong_are_the_fault_of_the_gpu_that_has_them_all(worker):
    worker.peer = peers(3, [(0, 1), (2, 1)])
    found = worker.test(*map(gpu, range(3)))
    assert outcomes(found) == {("peer", "GPU-1"): FAILED}
    assert found["peer", "GPU-1"].text == "copies to other GPUs wrong: 2 words to or from this GPU"


def test_mig_devices_are_tested_each_and_have_no_floor_and_no_peers(worker):
    card = sliced(0, "1g.10gb", "3g.40gb")
    found = worker.run(card)
    rates = [one for one in found if one.check == "matrix-rate-fp32"]
    assert [one.text.rpartition(" (")[2].rstrip(")") for one in rates] == list(card.devices)
    assert {one.threshold for one in rates} == {"nothing to compare it with yet"}
    assert {one.outcome for one in found if one.check == "peer"} == {SKIPPED}
    assert worker.baseline.own(card.devices[0], "kit 580.1")


def test_without_an_environment_nothing_is_tested_and_the_reason_told_once(worker):
    def unavailable(*_):
        raise UnavailableError("no network. Check the proxies")

    worker.pytorch = unavailable
    found = worker.test(gpu(0), gpu(1))
    assert {one.outcome for one in found.values()} == {NOT_RUN}
    assert found.pop(("pytorch", "")).text == "no network. Check the proxies"
    assert {one.text for one in found.values()} == {"pytorch is not available"}
    assert len(found) == 2 * (len(compute.CHECKS) - 1)


def test_gpus_of_other_makers_are_not_tested(worker):
    found = worker.test(gpu(0, vendor="amd"))
    assert {one.outcome for one in found.values()} == {SKIPPED}
