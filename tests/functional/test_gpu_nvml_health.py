# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The quick checks of GPUs through the real binding, a simulated NVML and a kernel log of ours."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests import once
from tests.fakes import FAKEGPU, build_nvml
from tests.functional import gpu_machine
from tests.functional.quick_checks import CARDS, COMMAND, GPUS, Quick, environment, named, only


@pytest.fixture(scope="module")
def tester(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, for the simulated libnvidia-ml.so.1")
    state, library = tmp_path_factory.mktemp("gpus"), once.made("nvml", build_nvml)
    with subprocess.Popen(
        COMMAND,
        env=environment(FAKE_GPU_DIR=str(state), LD_LIBRARY_PATH=str(library)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Quick(process, state)
        process.stdin.close()


@pytest.fixture(autouse=True)
def machine_with_two_gpus(request):
    if "tester" in request.fixturenames:
        request.getfixturevalue("tester").begin()


def test_two_healthy_gpus_pass_every_check(tester):
    results = tester.results()
    assert len(results) == 26
    assert {one["outcome"] for one in results} == {"passed"}
    assert not any(one["remedy"] for one in results)
    assert all(one["proves"] and one["source"] for one in results)
    judged = {
        one["check"]: (one["value"], one["unit"], one["threshold"])
        for one in results
        if one["gpu"] == CARDS[1].uuid
    }
    assert judged == {
        "nvml": ("no error", "", "no error"),
        "ecc": (
            *(0, "errors"),
            "0 uncorrected since the driver was loaded; better at most 20,000,000 corrected",
        ),
        "sram-ecc": (
            *(0, "errors"),
            "0 uncorrected since the driver was loaded; better 0 ever, at most 10,000 corrected",
        ),
        "remapped-rows": (0, "rows", "at most 512, none failed; better none pending"),
        "retired-pages": (0, "pages", "none pending, fewer than 62"),
        "recovery-action": ("none", "", "none"),
        "throttle": ("0x1", "", "no thermal slowdown, hardware slowdown or power brake"),
        "pcie-width": (16, "lanes", "at least 16"),
        "temperature": (35, "°C", "below 92, better 87"),
        "persistence": ("on", "", "on"),
        "xid": ("none", "", "none that requires a reset, a reboot or a repair"),
        "memory": (80, "GiB", "at least 80"),
        "compute-capability": ("8.0", "", "at least 8.0"),
    }


FAULTS = {
    "nvml": [("temperature=rc=16", "gpu-recovery=reset")],
    "ecc": [("ecc-uncorrected-volatile=1", "gpu-recovery=reset")],
    "sram-ecc": [
        ("sram-uncorrected-volatile=1", "juju ssh worker/0 sudo reboot"),
        ("sram-threshold-exceeded=1", "Replace GPU"),
    ],
    "remapped-rows": [
        ("remapped-rows-failed=1", "Replace GPU"),
        ("remapped-rows-uncorrected=513", "Replace GPU"),
    ],
    "retired-pages": [
        ("retired-pages-pending=1", "gpu-recovery=reset"),
        ("retired-pages=62", "Replace GPU"),
        ("retired-pages-single-bit=62", "Replace GPU"),
    ],
    "recovery-action": [
        ("field-230=1", "gpu-recovery=reset"),
        ("field-230=2", "Reboot the machine"),
        ("field-230=7", "Power the machine off and on"),
        ("field-230=99", "Reboot the machine"),
    ],
    "pcie-width": [("pcie-width=4", "seat GPU 0 (0000:01:00.0)")],
    "temperature": [("temperature=92", "air flow"), ("temperature-margin=0", "air flow")],
    "memory": [("memory-mib=40960", "juju config worker minimums=gpu-memory=40GiB,")],
    "compute-capability": [("compute-capability=7.5", "compute-capability=7.5")],
}


@pytest.mark.parametrize(
    ("check", "fault", "remedy"),
    [(check, *fault) for check, faults in FAULTS.items() for fault in faults],
)
def test_a_fault_turns_its_own_check_red_and_no_other(tester, check, fault, remedy):
    name, _, value = fault.partition("=")
    tester.put(name, value)
    results = tester.results()
    assert named(results, "failed") == [(check, 0, "failed")]
    # What NVML does not answer is not judged; everything else stays as it was.
    rest = {one["outcome"] for one in results if one["check"] != check}
    assert rest == ({"passed", "not-run"} if check == "nvml" else {"passed"})
    found = only(results, check)
    assert remedy in found["remedy"]
    assert found["remedy"].count("juju run worker/0 gpu-selftest") >= 1
    reason = found["text"].partition(":")[0]
    assert 0 < len(reason) < 50, "what juju status shows of it"
    # What a job's load can bring about by itself takes no GPU out of use.
    assert found["condemns"] == (check != "temperature")


@pytest.mark.parametrize(
    ("check", "fault", "remedy"),
    [
        ("persistence", "persistence-mode=0", "nvidia-smi -pm 1"),
        ("temperature", "temperature=88", "air flow"),
        ("ecc", "ecc-corrected-volatile=20000001", "Replace GPU"),
        ("sram-ecc", "sram-uncorrected-aggregate=1", "Replace GPU"),
        ("remapped-rows", "remapped-rows-pending=1", "gpu-recovery=reset"),
        ("throttle", "throttle-reasons=0x20", "air flow"),
        ("throttle", "throttle-reasons=0x48", "air flow"),
        ("throttle", "throttle-reasons=0x8", "air flow"),
        ("throttle", "throttle-reasons=0x88", "power supply"),
        ("nvml", "power-mw=rc=999", "gpu-recovery=reset"),
    ],
)
def test_what_should_be_looked_at_is_a_warning_with_a_remedy(tester, check, fault, remedy):
    name, _, value = fault.partition("=")
    tester.put(name, value)
    results = tester.results()
    assert named(results, "failed", "warning", "not-run") == [(check, 0, "warning")]
    assert remedy in only(results, check)["remedy"]


@pytest.mark.parametrize(
    "noise",
    [
        "ecc-corrected-volatile=1",
        "ecc-corrected-aggregate=100000000",
        "ecc-uncorrected-aggregate=1",
        "sram-corrected-volatile=10",
        "remapped-rows-corrected=3",
        "remapped-rows-uncorrected=512",
        "retired-pages=61",
        "throttle-reasons=0x0",
        "throttle-reasons=0x2",
        "throttle-reasons=0x4",
        "throttle-reasons=0x117",
        "pcie-gen=1",
        "sm-clock-mhz=0",
        "temperature=86",
        "temperature-margin=6",
        "memory-mib=81559",
        "compute-capability=10.0",
        "processes=4711 100",
    ],
)
def test_harmless_noise_stays_green(tester, noise):
    name, _, value = noise.partition("=")
    tester.put(name, value)
    assert {one["outcome"] for one in tester.results()} == {"passed"}


@pytest.mark.parametrize(
    ("check", "names"),
    [
        ("ecc", ["ecc-uncorrected-volatile"]),
        ("sram-ecc", ["sram-uncorrected-volatile"]),
        ("remapped-rows", ["remapped-rows-corrected"]),
        ("retired-pages", ["retired-pages", "retired-pages-pending"]),
        ("recovery-action", ["field-230"]),
        ("throttle", ["throttle-reasons"]),
        ("pcie-width", ["pcie-width"]),
        ("pcie-width", ["pcie-width-max"]),
        ("temperature", ["temperature"]),
        ("temperature", ["temperature-slowdown"]),
        ("persistence", ["persistence-mode"]),
    ],
)
@pytest.mark.parametrize("answer", ["N/A", "rc=4", "rc=13"])
def test_what_a_gpu_does_not_tell_is_skipped_and_never_passes(tester, check, names, answer):
    for name in names:
        tester.put(name, answer)
    assert named(tester.results(), "failed", "warning", "skipped", "not-run") == [
        (check, 0, "skipped")
    ]


def test_without_ecc_or_a_minimum_there_is_nothing_to_judge(tester):
    tester.put("ecc-mode", 0)
    results = tester.results(min_gpu_memory_gib=0, min_compute_capability="")
    assert named(results, "skipped") == [
        ("ecc", 0, "skipped"),
        ("memory", 0, "skipped"),
        ("compute-capability", 0, "skipped"),
        ("memory", 1, "skipped"),
        ("compute-capability", 1, "skipped"),
    ]


@pytest.mark.parametrize(
    ("looks", "outcome"),
    [
        (["0x40", "0x1"], "passed"),
        (["0x8", "0x8", "0x1"], "passed"),
        (["0x40", "0x20", "0x40"], "passed"),
        (["0x60", "0x40", "0x41"], "warning"),
    ],
)
def test_a_reason_must_last_to_count(tester, looks, outcome):
    """A named pipe gives each look its own answer: another is in place before the look ends."""
    file = tester.state / "gpus/0/throttle-reasons"
    os.mkfifo(file)
    answer = f"exec 3>{file}; mkfifo {file}.next; mv {file}.next {file}; echo $v >&3; exec 3>&-"
    writer = f"for v in {' '.join(looks)}; do {answer}; done"
    with subprocess.Popen(["sh", "-c", writer]) as process:
        found = only(tester.results(), "throttle")
        process.kill()
    file.unlink()
    assert found["outcome"] == outcome, found


def test_a_jobs_own_heat_and_clock_are_not_judged(tester):
    tester.put("processes", "4711 100")
    for name, check, values in (
        ("throttle-reasons", "throttle", ("0x20", "0x68", "0x28", "0x80")),
        ("temperature", "temperature", ("88", "92", "110")),
    ):
        for value in values:
            tester.put(name, value)
            found = only(tester.results(), check)
            assert found["outcome"] == "skipped"
            assert found["text"].endswith("; not judged, because a job uses the GPU")


def test_a_lost_gpu_prevents_its_own_checks_and_says_so(tester):
    tester.put("fault", "nvml-only")
    results = tester.results()
    assert named(results, "failed") == [("nvml", 0, "failed")]
    assert only(results, "nvml")["text"] == "NVML says GPU is lost"
    assert len(named(results, "not-run")) == 11
    assert only(results, "ecc")["text"] == "nvml failed: GPU is lost"
    assert only(results, "xid")["outcome"] == "passed"


def test_nvml_that_does_not_start_is_each_gpus_failure(tester):
    (tester.state / "nvml-init-rc").write_text("18\n")
    answer = tester.ask()
    assert {one["failure"] for one in answer["healths"]} == {
        "RM has detected an NVML/RM version mismatch."
    }
    assert len(named(answer["results"], "failed")) == 2


def test_health_has_all_that_nvml_tells(tester):
    tester.put("temperature-margin", 40)
    tester.put("sram-uncorrected-aggregate", 3)
    tester.put("remapped-rows-uncorrected", 2)
    tester.put("retired-pages", 4)
    tester.put("retired-pages-single-bit", 1)
    assert tester.ask()["healths"][0] == {
        "failure": "",
        "trouble": "",
        "compute_capability": [8, 0],
        "memory_mib": 81920,
        "ecc": True,
        "corrected_volatile": 0,
        "corrected_aggregate": 0,
        "uncorrected_volatile": 0,
        "uncorrected_aggregate": 0,
        "sram": {
            "uncorrected_volatile": 0,
            "uncorrected_aggregate": 3,
            "corrected_volatile": 0,
            "threshold_exceeded": False,
        },
        "remapped_rows": {"corrected": 0, "uncorrected": 2, "pending": False, "failed": False},
        "retired_pages": 5,
        "retired_pages_pending": False,
        "recovery_action": 0,
        "reasons": 1,
        "computing": False,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "temperature": 35,
        "temperature_margin": 40,
        "persistence": True,
        "sm_clock_mhz": 210,
        "sm_clock_max_mhz": 1410,
        "power_w": 60.0,
        "power_limit_w": 400.0,
    }


def test_a_narrow_slot_is_no_fault_of_the_gpu(tester):
    """A card in a slot of eight lanes: NVML tells of the card's sixteen alone."""
    slot = tester.root / "sys/devices/pci0000:00/0000:00:01.0"
    (slot / CARDS[0].pci).mkdir(parents=True)
    devices = tester.root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / CARDS[0].pci).symlink_to(slot / CARDS[0].pci)
    try:
        tester.put("pcie-width", 8)
        for lanes, outcome in (("8", "passed"), ("16", "failed"), ("255", "failed")):
            (slot / "max_link_width").write_text(f"{lanes}\n")
            assert only(tester.results(), "pcie-width")["outcome"] == outcome
        tester.put("pcie-width", 4)
        (slot / "max_link_width").write_text("8\n")
        assert only(tester.results(), "pcie-width")["text"].startswith("PCIe x4 of x8: ")
    finally:
        shutil.rmtree(tester.root / "sys")


def test_the_memory_of_a_split_gpu_is_what_a_task_gets(tester):
    split = GPUS[0] | {"mig_enabled": True, "mig": []}
    assert only(tester.results([split, GPUS[1]]), "memory")["outcome"] == "skipped"


def test_samples_while_nvml_stays_open(tester):
    tester.put("sm-clock-mhz", 1980)
    tester.put("throttle-reasons", "0x20")
    samples = tester.ask(samples=3)["samples"]
    assert len(samples) == 3
    assert samples[2][CARDS[0].uuid] == {
        "failure": "",
        "sm_clock_mhz": 1980,
        "power_w": 60.0,
        "temperature": 35,
        "reasons": 0x20,
    }
    tester.put("fault", "fallen-off-bus")
    samples = tester.ask(samples=1)["samples"]
    assert samples[0][CARDS[0].uuid]["failure"] == "Not Found"
    assert samples[0][CARDS[1].uuid]["failure"] == ""


# ---- the kernel's log, as fakegpu makes it in a machine ----


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("mounts and device nodes need root")
    with gpu_machine.start(tmp_path_factory) as machine:
        yield machine


LOOK = """
import dataclasses, json
from gpu_agent.gpu.vendors.nvidia import xid
log = xid.read()
print(json.dumps([dataclasses.astuple(one) for one in log.messages] + [log.problem, log.complete]))
"""


def kernel_log(machine):
    variables = [f"{name}={value}" for name, value in environment().items()]
    done = machine.run("env", "-i", *variables, sys.executable, "-c", LOOK)
    *messages, problem, complete = json.loads(done.stdout)
    assert (problem, complete) == ("", True)
    return [(code, address, text) for code, address, _, text in messages]


def test_fakegpu_puts_an_xid_into_the_kernels_log_until_it_is_cleared(machine):
    machine.fakegpu("install", "--count", "2")
    assert kernel_log(machine) == []
    machine.fakegpu("xid", "1", "79")
    machine.fakegpu("apply")
    machine.fakegpu("xid", "0", "13", "--text", "pid=1, name=\\x0a, mine")
    assert kernel_log(machine) == [
        (79, "0000:02:00.0", "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        (13, "0000:01:00.0", "pid=1, name=\\x0a, mine"),
    ]
    written = machine.run("sh", "-c", "echo spoilt > /dev/kmsg", check=False)
    assert "Read-only file system" in written.stderr
    machine.fakegpu("lose", "1")
    machine.fakegpu("xid", "1", "119")
    assert [code for code, *_ in kernel_log(machine)] == [79, 13, 119]
    machine.fakegpu("xid", "clear")
    assert kernel_log(machine) == []
    refused = machine.run(FAKEGPU, "xid", "0", check=False)
    assert (refused.returncode, "xid N CODE" in refused.stderr) == (1, True)
