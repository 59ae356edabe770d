# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What health and Xids come to; by a simulated NVML: tests/functional/test_gpu_nvml_health.py."""

import dataclasses
import itertools
import random

import pytest

from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.nvidia.xid import Log, Message
from gpu_agent.model.gpu_health import Health, RemappedRows, Sram
from gpu_agent.model.inventory import MigDevice
from gpu_selftest.check import Level, Outcome
from gpu_selftest.quick import gpu_checks
from gpu_selftest.settings import Settings
from tests.unit.situations import GPUS

HEALTHY = Health(
    compute_capability=(8, 0),
    memory_mib=81920,
    ecc=True,
    corrected_volatile=0,
    corrected_aggregate=0,
    uncorrected_volatile=0,
    uncorrected_aggregate=0,
    sram=Sram(0, 0, 0, threshold_exceeded=False),
    remapped_rows=RemappedRows(0, 0, pending=False, failed=False),
    retired_pages=0,
    retired_pages_pending=False,
    recovery_action=0,
    reasons=1,
    computing=False,
    pcie_width=16,
    pcie_width_max=16,
    temperature=35,
    temperature_margin=57,
    persistence=True,
    sm_clock_mhz=210,
    sm_clock_max_mhz=1410,
    power_w=60.0,
    power_limit_w=400.0,
)
SETTINGS = Settings("worker/0", gpus=GPUS, min_gpu_memory_gib=80, min_compute_capability="8.0")
NOTHING = Log()
CHECKS = {check.id for check in gpu_checks.CHECKS}


def made(health=HEALTHY, log=NOTHING, gpu=GPUS[0], settings=SETTINGS):
    results = gpu_checks.run(settings, {gpu.uuid: health}, log, (gpu,))
    return {result.check: result for result in results}


def outcomes(**what):
    return {name: result.outcome for name, result in made(**what).items()}


def log(*codes, address=GPUS[0].pci_address, text=""):
    return Log(tuple(Message(code, address, float(n), text) for n, code in enumerate(codes)))


def test_the_checks_are_of_each_gpu_and_quick():
    assert len(CHECKS) == len(gpu_checks.CHECKS) == 13
    assert all(check.each_gpu and check.level is Level.QUICK for check in gpu_checks.CHECKS)
    assert outcomes() == dict.fromkeys(CHECKS, Outcome.PASSED)


def test_a_gpu_of_which_nothing_is_told_passes_nothing_but_what_was_seen():
    told = outcomes(health=Health())
    assert {name for name, outcome in told.items() if outcome is Outcome.PASSED} == {
        "nvml",
        "xid",
        "memory",
    }
    rest = CHECKS - {"nvml", "xid", "memory"}
    assert {told[name] for name in rest} == {Outcome.SKIPPED}


BAD = {
    "ecc": {"uncorrected_volatile": 2},
    "sram-ecc": {"sram": Sram(1, 1, 0, threshold_exceeded=False)},
    "remapped-rows": {"remapped_rows": RemappedRows(0, 1, pending=False, failed=True)},
    "retired-pages": {"retired_pages_pending": True},
    "recovery-action": {"recovery_action": 1},
    "pcie-width": {"pcie_width": 8},
    "temperature": {"temperature_margin": 0},
    "memory": {"memory_mib": 40960},
    "compute-capability": {"compute_capability": (7, 5)},
}


def test_faults_do_not_hide_or_cause_each_other():
    """Any set of faults turns exactly its own checks red."""
    chosen = random.Random(7)
    sets = [*itertools.combinations(BAD, 1), *itertools.combinations(BAD, 2)]
    sets += [chosen.sample(sorted(BAD), size) for size in range(3, len(BAD) + 1)]
    for faults in sets:
        values = {name: value for fault in faults for name, value in BAD[fault].items()}
        told = outcomes(health=dataclasses.replace(HEALTHY, **values))
        red = {name for name, outcome in told.items() if outcome is Outcome.FAILED}
        assert red == set(faults)


def test_whatever_is_red_or_warns_has_a_remedy_and_a_short_reason():
    chosen = random.Random(11)
    numbers = {
        "uncorrected_volatile": range(3),
        "corrected_volatile": (0, 1, 10**9),
        "recovery_action": range(9),
        "reasons": range(0x800),
        "pcie_width": (0, 1, 4, 16),
        "temperature_margin": range(-5, 12),
        "memory_mib": (0, 15360, 81920),
        "retired_pages": (None, 0, 64),
        "computing": (None, False, True),
        "trouble": ("", "nvmlDeviceGetPowerUsage: Unknown Error"),
    }
    for _ in range(500):
        values = {name: chosen.choice(list(those)) for name, those in numbers.items()}
        codes = chosen.sample(range(1, 200), chosen.randint(0, 4))
        found = made(health=dataclasses.replace(HEALTHY, **values), log=log(*codes))
        for result in found.values():
            bad = result.outcome in (Outcome.FAILED, Outcome.WARNING)
            assert bad == bool(result.remedy), result
            assert result.text
            assert "\n" not in result.text
            assert "None" not in result.text + result.remedy
            if result.outcome is Outcome.FAILED:
                assert len(result.text.partition(":")[0]) < 60
                assert "juju run worker/0 gpu-selftest" in result.remedy


def test_a_failure_of_nvml_prevents_all_but_the_kernels_log():
    found = made(health=Health(failure="GPU requires restart"), log=log(79))
    told = {name: result.outcome for name, result in found.items()}
    assert told.pop("nvml") is Outcome.FAILED
    assert told.pop("xid") is Outcome.FAILED
    assert set(told.values()) == {Outcome.NOT_RUN}
    assert found["ecc"].text == "nvml failed: GPU requires restart"


def test_what_a_job_has_is_not_judged_by_its_heat_and_clock():
    """Whatever the driver says of them; what it says of the card itself counts as ever."""
    values = {"reasons": 0xE8, "temperature_margin": -3, "uncorrected_volatile": 1}
    health = dataclasses.replace(HEALTHY, **values)
    for busy, computing in (((GPUS[0].uuid,), False), ((), True)):
        told = dataclasses.replace(health, computing=computing)
        found = gpu_checks.run(SETTINGS, {GPUS[0].uuid: told}, NOTHING, GPUS[:1], busy)
        red = {one.check for one in found if one.outcome in (Outcome.FAILED, Outcome.WARNING)}
        assert red == {"ecc"}
        skipped = {one.check for one in found if one.outcome is Outcome.SKIPPED}
        assert skipped == {"throttle", "temperature"}
    idle = gpu_checks.run(SETTINGS, {GPUS[0].uuid: health}, NOTHING, GPUS[:1], ("GPU-other",))
    red = {one.check: one.condemns for one in idle if one.outcome is Outcome.FAILED}
    assert red == {"ecc": True, "temperature": False}
    assert [one.check for one in idle if one.outcome is Outcome.WARNING] == ["throttle"]


# ---- Xid ----


@pytest.mark.parametrize(
    ("codes", "outcome", "text"),
    [
        ((), "passed", "no Xid since the machine started"),
        (
            (13, 31, 43, 45, 68),
            "passed",
            "none that requires action; Xid 68: video decoder error",
        ),
        ((79,), "failed", "Xid 79: the GPU has fallen off the bus"),
        ((31, 48, 63, 48, 95), "failed", "Xid 48: double bit ECC error, 2 times; then Xid 95"),
        ((63, 94), "warning", "Xid 63: memory was remapped; then Xid 94"),
        ((109,), "warning", "Xid 109: a context switch timed out"),
    ],
)
def test_xids(codes, outcome, text):
    found = made(log=log(*codes))["xid"]
    assert (found.outcome.value, found.text) == (outcome, text)
    assert found.value == (", ".join(map(str, sorted(set(codes)))) or "none")


def test_an_xid_concerns_its_own_gpu_alone():
    assert made(log=log(79, address=GPUS[1].pci_address))["xid"].outcome is Outcome.PASSED


def test_a_fatal_xid_says_how_it_clears():
    remedy = made(log=log(79))["xid"].remedy
    for words in ("juju ssh worker/0 sudo reboot", "keeps an Xid until then", "Replace GPU 0"):
        assert words in remedy
    remedy = made(log=log(63))["xid"].remedy
    assert f"gpu-selftest level=burn-in gpu={GPUS[0].uuid}" in remedy


def test_a_recovery_that_the_driver_tells_clears_an_xid():
    recovered = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    messages = (*log(119).messages, *log(154, text=recovered).messages)
    found = made(log=Log(messages))["xid"]
    assert (found.outcome, found.text) == (
        Outcome.PASSED,
        "the driver has recovered since Xid 119, 154",
    )


def test_a_log_that_cant_be_read_is_skipped_and_one_without_its_beginning_says_so():
    found = made(log=Log(problem="/dev/kmsg: Operation not permitted", complete=False))["xid"]
    assert found.outcome is Outcome.SKIPPED
    assert "/dev/kmsg: Operation not permitted" in found.text
    assert made(log=Log(complete=False))["xid"].text == "no Xid in what is left of the log"


# ---- minimums, MIG, other makers ----


@pytest.mark.parametrize(
    ("mib", "gib", "outcome"),
    [
        (81559, 80, "passed"),  # an H100 of 80 GB
        (23034, 24, "passed"),  # an L4
        (15360, 16, "passed"),  # a T4
        (15360, 24, "failed"),
        (81559, 81, "failed"),
        (0, 1, "skipped"),
        (81559, 0, "skipped"),
    ],
)
def test_memory_is_judged_by_the_size_as_sold(mib, gib, outcome):
    settings = dataclasses.replace(SETTINGS, min_gpu_memory_gib=gib)
    health = dataclasses.replace(HEALTHY, memory_mib=mib)
    assert made(health=health, settings=settings)["memory"].outcome.value == outcome


def test_a_gpu_with_too_little_can_be_left_out_or_less_be_asked_for():
    health = dataclasses.replace(HEALTHY, memory_mib=40960)
    minimums = "minimums=gpu-memory=40GiB,compute-capability=8.0"
    less = f"the minimum by `juju config worker {minimums}`; then `juju run worker/0 gpu-selftest`"
    assert made(health=health)["memory"].remedy == (
        f"Leave GPU 0 out by `juju config worker gpu-device-ids=1`, or lower {less}"
    )
    alone = dataclasses.replace(SETTINGS, gpus=GPUS[:1])
    assert made(health=health, settings=alone)["memory"].remedy == f"Lower {less}"


@pytest.mark.parametrize(
    ("has", "wanted", "outcome"),
    [
        ((8, 0), "8.0", "passed"),
        ((10, 0), "9.0", "passed"),
        ((7, 5), "8", "failed"),
        ((8, 0), "8", "passed"),
        ((8, 6), "8.9", "failed"),
        (None, "8.0", "skipped"),
        ((3, 5), "", "skipped"),
    ],
)
def test_compute_capability_is_compared_as_numbers(has, wanted, outcome):
    settings = dataclasses.replace(SETTINGS, min_compute_capability=wanted)
    health = dataclasses.replace(HEALTHY, compute_capability=has)
    found = made(health=health, settings=settings)["compute-capability"]
    assert found.outcome.value == outcome


def test_with_mig_the_smallest_device_counts():
    split = dataclasses.replace(
        GPUS[0],
        mig_enabled=True,
        mig=(MigDevice("MIG-a", "1g.10gb"), MigDevice("MIG-b", "2g.20gb")),
    )
    found = made(gpu=split)["memory"]
    assert (found.outcome, found.value, found.gpu) == (Outcome.FAILED, 10, split.uuid)
    assert outcomes(gpu=dataclasses.replace(split, mig=()))["memory"] is Outcome.SKIPPED


@pytest.mark.parametrize("vendor", ["amd", "intel"])
def test_of_other_makers_the_memory_alone_is_judged(vendor):
    gpu = dataclasses.replace(GPUS[0], vendor=vendor)
    found = gpu_checks.run(SETTINGS, {}, Log(problem="none"), (gpu,))
    assert [(one.check, one.outcome.value) for one in found] == [
        ("nvml", "skipped"),
        ("memory", "passed"),
    ]
    display = registry.find(vendor).display
    assert found[0].text == f"{display}: health is known of NVIDIA's GPUs only"
