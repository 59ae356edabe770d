# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A report reads well at 100 columns, and an action's results fit into its arguments."""

import dataclasses
import json

import pytest

from gpu_agent.model.inventory import Gpu
from gpu_selftest import report, results
from gpu_selftest.check import Check, Level, Outcome
from gpu_selftest.results import Report

REMEDY = "replace the card; then juju run worker/0 gpu-selftest"
INVENTORY = Check("inventory", Level.QUICK, "no GPU is lost")
WRAPPER = Check("gpu-runtime", Level.QUICK, "the wrapper is the charm's")
ECC = Check("ecc", Level.QUICK, "the memory is well", unit="errors", each_gpu=True)
HEAT = Check("temperature", Level.QUICK, "it is cool", unit="°C", each_gpu=True)
XID = Check("xid", Level.QUICK, "the driver has no complaint", REMEDY, each_gpu=True)
MEMORY = Check("memory", Level.QUICK, "it has enough memory", unit="GiB", each_gpu=True)
LEASE = Check("lease", Level.ISOLATION, "a task gets its GPU", each_gpu=True)
GPUS = tuple(
    Gpu(n, f"GPU-{n}", "nvidia", "NVIDIA A100", 81920, f"0000:0{n}:00.0", n) for n in range(4)
)
UNSET = "the option minimums is not set"


def report_of(*made, level=Level.ISOLATION, **changes):
    whole = {
        "run": "20261121T170000Z-1a2b", "subject": "abc", "level": level, "device": "cuda",
        "gpu": "", "outcome": results.outcome(made), "started": "2026-11-21T17:00:00+00:00",
        "seconds": 7.4, "results": made,
    }  # fmt: skip
    return Report(**{**whole, **changes})


SICK = report_of(
    INVENTORY.result(Outcome.PASSED, "4 GPUs", value=4, threshold="4, as before"),
    WRAPPER.result(Outcome.PASSED, "its files are as the charm wrote them " + "and so on " * 9),
    *(
        result
        for gpu in GPUS
        for result in (
            ECC.result(Outcome.PASSED, "none", gpu=gpu.uuid, value=0, threshold="0"),
            HEAT.result(
                *(Outcome.PASSED, "cool"),
                gpu=gpu.uuid, value=31.0 + gpu.index // 3, threshold="below 85 °C",
            ),
            XID.result(Outcome.FAILED, "Xid 79: fallen off the bus", gpu=gpu.uuid, value="79")
            if gpu.index == 1
            else XID.result(Outcome.PASSED, "no Xid since boot", gpu=gpu.uuid),
            MEMORY.result(Outcome.SKIPPED, UNSET, gpu=gpu.uuid),
        )
    ),
    LEASE.result(Outcome.NOT_RUN, "xid failed", gpu="GPU-1"),
    LEASE.result(
        Outcome.WARNING, "it took 9 s", gpu="GPU-0", remedy="look at the load of the machine"
    ),
    INVENTORY.result(Outcome.FAILED, "gone", gpu="GPU-9999aaaa-0000", remedy="look for it"),
)  # fmt: skip


def test_table_has_verdict_first_then_checks_then_what_to_do_about_each():
    assert (
        report.table(SICK, GPUS)
        == """\
failed: quick and isolation, 5 GPUs, 21 checks (2 failed, 1 warned, 1 not run, 4 skipped), 7.4 s

check        GPU           outcome  measured  threshold
inventory    -             passed   4         4, as before
inventory    GPU-9999aaaa  failed   gone
gpu-runtime  -             passed   its files are as the charm wrote them and so on and so on a...
ecc          0-3           passed   0 errors  0
temperature  0-2           passed   31 °C     below 85 °C
temperature  3             passed   32 °C     below 85 °C
xid          0,2-3         passed   no Xid since boot
xid          1             failed   79
lease        0             warning  it took 9 s

Failed:
  xid (GPU 1): Xid 79: fallen off the bus
    Remedy: replace the card; then juju run worker/0 gpu-selftest
  inventory (GPU-9999aaaa-0000): gone
    Remedy: look for it

Warnings:
  lease (GPU 0): it took 9 s
    Remedy: look at the load of the machine

Not run:
  lease (GPU 1): xid failed

Skipped:
  memory (GPU 0-3): the option minimums is not set
"""
    )


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (Level.QUICK, "quick"),
        (Level.ISOLATION, "quick and isolation"),
        (Level.BURN_IN, "quick, isolation, compute and burn-in"),
    ],
)
def test_headline_of_a_good_run_is_one_short_sentence(level, expected):
    good = report_of(
        INVENTORY.result(Outcome.PASSED, "2 GPUs"),
        *(ECC.result(Outcome.PASSED, "", gpu=gpu.uuid) for gpu in GPUS[:2]),
        level=level,
    )
    assert report.headline(good) == f"passed: {expected}, 2 GPUs, 3 checks, 7.4 s"
    taken = INVENTORY.result(Outcome.WARNING, "is passed in no more", gpu="GPU-3")
    fewer = dataclasses.replace(good, results=(*good.results, taken))
    assert ", 2 GPUs, 4 checks (1 warned)" in report.headline(fewer)
    on_cpu = dataclasses.replace(good, device="cpu")
    assert report.headline(on_cpu).endswith(", on the CPU, which proves nothing about a GPU")


def test_what_prevents_many_checks_is_said_once():
    failed = report_of(
        INVENTORY.result(Outcome.FAILED, "GPU 1 is lost", remedy="reboot"),
        *(check.result(Outcome.NOT_RUN, "inventory failed") for check in (ECC, HEAT, XID)),
    )
    told = report.table(failed, GPUS)
    assert "ecc, temperature, xid: inventory failed" in told
    assert told.count("inventory failed") == 1


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0, "errors", "0 errors"), (4, "", "4"), (10.0, "", "10"), (100.0, "GiB", "100 GiB"),
        (1234567.8, "MB/s", "1234568 MB/s"), (51.26, "TFLOPS", "51.3 TFLOPS"),
        (0.0049, "s", "0.0049 s"), (1.25, "s", "1.25 s"), (-12.34, "°C", "-12.3 °C"),
        ("0660", "", "0660"),
    ],
)  # fmt: skip
def test_measured_values_are_shown_with_their_unit_and_no_false_precision(value, unit, shown):
    check = Check("x", Level.QUICK, "", unit=unit)
    made = report_of(check.result(Outcome.PASSED, "unseen", value=value))
    row = report.table(made, ()).splitlines()[3]
    assert row.split("passed")[1].strip() == shown


def test_no_line_is_wider_than_100_columns_whatever_it_says():
    word, many = "remedy " * 60, Check("a-check-of-long-name", Level.QUICK, "", unit="furlongs")
    wide = report_of(
        *(
            many.result(outcome, word, gpu=gpu, value=value, threshold=word, remedy=word)
            for outcome in Outcome
            for gpu in ("", "GPU-1", "GPU-" + "a" * 36)
            for value in (None, 1.5, word)
        )
    )
    lines = report.table(wide, GPUS).splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) > 40


def test_action_results_are_flat_and_tell_each_gpu():
    shown = report.as_results(SICK, GPUS)
    assert shown.pop("report") == report.table(SICK, GPUS)
    assert shown == {
        "verdict": "failed",
        "level": "isolation",
        "duration": "7.4 s",
        "gpu-0": "passed, warned: lease",
        "gpu-1": "failed: xid",
        "gpu-2": "passed",
        "gpu-3": "passed",
    }


def test_what_is_the_machines_is_no_warning_of_each_gpu():
    disk = Check("disk", Level.QUICK, "there is room")
    shown = report.as_results(
        report_of(
            disk.result(Outcome.WARNING, "30 GB free", remedy="make room"),
            XID.result(Outcome.PASSED, "none", gpu=GPUS[0].uuid),
        ),
        GPUS[:1],
    )
    assert shown["gpu-0"] == "passed"
    assert "30 GB free" in shown["report"]


def test_a_program_gets_the_report_alone():
    shown = report.as_json(SICK)
    assert shown.keys() == {"json"}
    assert json.loads(shown["json"]) == json.loads(json.dumps(results.plain(SICK)))


def test_failure_of_the_worker_is_one_of_each_gpu_and_what_could_not_run_is_incomplete():
    made = (ECC.result(Outcome.PASSED, "", gpu="GPU-0"), LEASE.result(Outcome.NOT_RUN, "held"))
    assert report.as_results(report_of(*made), GPUS[:1])["gpu-0"] == "incomplete: lease"
    made += (WRAPPER.result(Outcome.FAILED, "replaced"),)
    assert report.as_results(report_of(*made), GPUS[:1])["gpu-0"] == "failed: gpu-runtime"


def test_what_takes_no_gpu_out_says_so():
    disk = Check("disk", Level.QUICK, "there is room", "make room", condemns=False)
    full = report_of(
        ECC.result(Outcome.PASSED, "", gpu="GPU-0"), disk.result(Outcome.FAILED, "disk full: 0 GB")
    )
    shown = report.as_results(full, GPUS[:1])
    assert (shown["verdict"], shown["gpu-0"]) == (
        "failed", "failed: disk, takes no GPU out of use",
    )  # fmt: skip
    assert (
        "  disk: disk full: 0 GB, takes no GPU out of use\n    Remedy: make room\n"
        in (shown["report"])
    )
    both = report_of(*full.results, WRAPPER.result(Outcome.FAILED, "replaced"))
    assert report.as_results(both, GPUS[:1])["gpu-0"] == "failed: disk, gpu-runtime"


@pytest.mark.parametrize("said", ["a\nb\x1b[2J\tc", "x\u202ey\u2028z", "\x00", "a" * 100_000])
def test_what_a_program_said_is_one_printable_line_of_some_length(said):
    """It may come to action results, status, logs, and the files of the quarantine."""
    result = XID.result(Outcome.FAILED, f"it says: {said}", value=said, remedy=said)
    for text in (result.text, str(result.value), result.remedy):
        assert text.isprintable()
        assert len(text) <= 2000


def test_only_the_gpu_that_was_asked_for_is_told():
    only = report_of(ECC.result(Outcome.PASSED, "", gpu="GPU-2"), gpu="GPU-2")
    assert [key for key in report.as_results(only, GPUS) if key.startswith("gpu-")] == ["gpu-2"]


@pytest.mark.parametrize("filler", ["x", "ü", "\N{GRINNING FACE}"])
def test_long_results_name_their_file_instead(filler):
    many = report_of(
        *(XID.result(Outcome.FAILED, f"{n} {filler * 99}", gpu="GPU-0") for n in range(600))
    )
    shown = report.as_results(many, GPUS)
    kept = "/var/lib/gpu-ci/selftest/history/20261121T170000Z-1a2b.json"
    assert report.as_json(many) == {"file": kept}
    assert shown["report"].endswith(f"\nThe rest is in {kept}\n")
    # Linux, MAX_ARG_STRLEN: one string of argv.
    assert all(len(f"{key}={value}".encode()) < 128 << 10 for key, value in shown.items())
