# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The lines in a job's log, word for word."""

import pathlib

import pytest

from gpu_agent.fault_policy import conditions
from gpu_agent.fault_policy import fault_table as faults
from gpu_agent.model.card import Card
from gpu_agent.model.decisions import Tell
from gpu_agent.reporting.joblog import messages as job_words
from gpu_agent.reporting.joblog.messages import Used
from tests.fakes import fakecards


def card(index, model="A100-SXM4-80GB", devices=None):
    uuid = f"GPU-{index}"
    return Card(uuid, index, f"0000:0{index}:00.0", model, devices or (uuid,))


A, B = card(1), card(3)
MIG = card(0, devices=("MIG-a", "MIG-b", "MIG-c"))


@pytest.mark.parametrize(
    ("cards", "devices", "waited", "versions", "said"),
    [
        ([B], ["GPU-3"], 12.3, ("580.95", "13.0"),
         "GPU 3 (GPU 0 in this task): A100-SXM4-80GB, driver 580.95, CUDA 13.0; waited 12 s"),
        ([B], ["GPU-3"], 0, ("580.95", "13.0"),
         "GPU 3 (GPU 0 in this task): A100-SXM4-80GB, driver 580.95, CUDA 13.0; waited 0 s"),
        ([B], ["GPU-3"], None, ("580.95", "13.0"),
         "GPU 3 (GPU 0 in this task): A100-SXM4-80GB, driver 580.95, CUDA 13.0"),
        ([card(2, "Instinct MI300X")], ["GPU-2"], 200, ("", ""),
         "GPU 2 (GPU 0 in this task): Instinct MI300X; waited 3 min"),
        ([A, B], ["GPU-1", "GPU-3"], 1, ("580.95", ""),
         "GPU 1, 3 (numbered from 0 in this task): A100-SXM4-80GB, driver 580.95; waited 1 s"),
        ([A, card(2, "L4")], ["GPU-1", "GPU-2"], None, ("", ""),
         "GPU 1: A100-SXM4-80GB, GPU 2: L4"),
        ([card(n) for n in range(8)], [f"GPU-{n}" for n in range(8)], 5, ("580.95", "13.0"),
         "8 GPUs: A100-SXM4-80GB, driver 580.95, CUDA 13.0; waited 5 s"),
        ([MIG], ["MIG-b"], None, ("580.95", "13.0"),
         "MIG device of GPU 0: A100-SXM4-80GB, driver 580.95, CUDA 13.0"),
        ([MIG], ["MIG-b", "MIG-c"], None, ("", ""), "2 MIG devices of GPU 0: A100-SXM4-80GB"),
    ],
)  # fmt: skip
def test_what_a_job_got(cards, devices, waited, versions, said):
    assert job_words.start(cards, devices, waited, *versions) == f"[gpu-ci] {said}"


def test_the_machines_fault_is_not_the_authors():
    tell = Tell("GPU-1", "xid", "Xid 79, it has fallen off the bus", hardware=True, xid=79)
    failed = (
        "[gpu-ci] GPU 1 failed (Xid 79, it has fallen off the bus): hardware, not your change."
    )
    assert job_words.fault(A, tell, out=True) == (
        f"{failed} It is out of use now; run the build again"
    )
    assert job_words.fault(A, tell, out=False) == f"{failed} Run the build again"


@pytest.mark.parametrize(
    ("xid", "part"),
    [(13, "illegal access"), (31, "segmentation"), (43, "not faulty"), (45, "kill")],
)
def test_the_programs_own_fault_is_said_in_its_authors_words(xid, part):
    line = job_words.fault(A, Tell("GPU-1", "job", "?", hardware=False, xid=xid), out=False)
    assert line.startswith(f"[gpu-ci] GPU 1: Xid {xid}: ")
    assert part in line
    assert "hardware" not in line


def test_what_is_neither_is_said_as_it_is():
    tell = Tell("GPU-1", "driver-reset", "its driver has reset it", hardware=False)
    line = job_words.fault(A, tell, out=False)
    assert line.startswith("[gpu-ci] GPU 1: its driver has reset it. ")


@pytest.mark.parametrize(
    ("seconds", "gpus", "energy", "said"),
    [
        (840, [Used(A, 71.2, 62464, 81920)], 720000,
         "14 min: GPU 71 % busy, memory peak 61 of 80 GiB, 0.2 kWh"),
        (60, [Used(A, 0, 900, 16384)], 7200,
         "1 min: GPU 0 % busy, memory peak 0.9 of 16 GiB, 2 Wh"),
        (9000, [Used(A, 50)], None, "2.5 h: GPU 50 % busy"),
        (300, [Used(A, 71, 10240, 81920), Used(B, 3)], 3.6e6,
         "5 min: GPU 1 71 % busy, memory peak 10 of 80 GiB, GPU 3 3 % busy, 1.0 kWh"),
        (300, [Used(card(n), 10.0 * n) for n in range(8)], None, "5 min: 8 GPUs 35 % busy"),
        (300, [Used(A)], 3600, "5 min: 1 Wh"),
    ],
)  # fmt: skip
def test_what_a_job_used(seconds, gpus, energy, said):
    assert job_words.used(seconds, gpus, energy) == f"[gpu-ci] {said}"


def test_nothing_is_said_where_nothing_is_known():
    assert job_words.used(300, [Used(A)], None) == ""


def test_a_gpu_that_is_not_used():
    said = (
        "[gpu-ci] no process has used GPU 3 in 10 min. Is the framework a CPU-only package? Then "
        "install its GPU package."
    )
    assert job_words.unused([B], 601, ends=False) == (
        f"{said} If this step needs no GPU, set the param GPU_COUNT to 0"
    )
    ended = job_words.unused([B], 601, ends=True)
    assert ended.startswith(f"{said} This step is killed for it (idle-gpu-action=fail). ")


def test_no_word_of_a_driver_steers_a_terminal_or_begins_another_line():
    hostile = "Xid 79\r\n\x1b[2J\x9b31m\N{RIGHT-TO-LEFT OVERRIDE}" + "x" * 9000
    for line in (
        job_words.fault(A, Tell("GPU-1", "xid", hostile, hardware=True), out=True),
        job_words.start([card(1, hostile)], ["GPU-1"], 1, hostile, hostile),
    ):
        assert line.isprintable()
        assert line.isascii()
        assert len(line) <= 400


PAGE = pathlib.Path(__file__).parents[2] / "docs/reference/job-log.md"
# As the judge has it of NVML's event, which comes without words.
LOST = Tell("GPU-3", "xid", conditions.of_xid(79, "").words, hardware=True, xid=79)

RESET = Tell("GPU-3", faults.DRIVER_RESET.name, faults.DRIVER_RESET.words, hardware=False)


@pytest.mark.parametrize(
    "line",
    [
        job_words.start([B], ["GPU-3"], 12, fakecards.DRIVER_VERSION, fakecards.CUDA_VERSION),
        job_words.fault(B, LOST, out=True),
        *(
            job_words.fault(B, Tell("GPU-3", "job", "", hardware=False, xid=xid), out=False)
            for xid in faults.JOB_XIDS
        ),
        job_words.fault(B, RESET, out=False),
        job_words.used(900, [Used(B, 71, 62464, 81920)], 720000),
        job_words.unused([B], 600, ends=False),
    ],
)
def test_the_page_for_authors_has_each_line_as_it_is(line):
    assert f"| `{line}` |" in PAGE.read_text()
