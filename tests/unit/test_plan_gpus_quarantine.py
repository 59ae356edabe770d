# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What quarantine and the self-test's verdict do to tags, plan and status."""

import dataclasses

import pytest

from ci.concourse.plan.model import planned
from gpu_agent.model.verdict import Verdict
from plan.labels import NO_GPU_LEFT
from plan.state import Quarantine
from tests.unit.grants import in_use
from tests.unit.situations import TSA, Running, changed, gpu, make_plan, situation, status_lines

XID = Quarantine(
    "GPU-1", "Xid 79: it has fallen off the bus", "xid", "quick", remedy="reboot the machine"
)
BY_HAND = Quarantine("GPU-0", "fan replaced tomorrow", by="operator")
PASSED = Verdict("passed")


def found(*quarantined, verdict=None, **values):
    given = situation(gpu(0), gpu(1), **values)
    return changed(given, quarantined=quarantined, verdict=verdict, tsa=TSA)


def said(found):
    made = make_plan(found)
    return status_lines(found, made, Running(worker=True, connected=True))[0].text


def test_a_gpu_in_quarantine_is_out_of_the_tags_but_the_wrapper_knows_it():
    made = make_plan(found(XID))
    assert planned(made).worker.tags[:3] == ("gpu", "gpu-type=nvidia", "gpu-count=1")
    assert "gpu-count>=2" not in planned(made).worker.tags
    assert planned(made).worker.max_active_tasks == 1
    assert [gpu.uuid for gpu in made.gpu.gpus] == ["GPU-0", "GPU-1"]
    assert made.problems == ()


def test_the_tag_with_the_indexes_leaves_it_out_too():
    made = make_plan(found(XID, options={"gpu-device-ids": "0,1"}))
    assert "gpu-devices=0" in planned(made).worker.tags


def test_status_names_it_with_reason_and_remedy():
    assert said(found(XID)) == (
        "Worker ready (GPU: 1x NVIDIA, 1 quarantined: GPU 1 (Xid 79; reboot the machine))"
    )


def test_one_that_is_not_here_or_not_allowed_concerns_nobody():
    other = dataclasses.replace(XID, uuid="GPU-7")
    assert said(found(other)) == "Worker ready (GPU: 2x NVIDIA)"
    assert said(found(XID, options={"gpu-device-ids": "0"})) == "Worker ready (GPU: 1x NVIDIA)"


def test_one_that_somebody_uses_besides_is_told_once():
    external = (("GPU-1", in_use("pid 4711 (python3)")),)
    both = dataclasses.replace(found(XID), external=external)
    assert said(both) == (
        "Worker ready (GPU: 1x NVIDIA, 1 quarantined: GPU 1 (Xid 79; reboot the machine))"
    )


@pytest.mark.parametrize("ids", ["all", "0,1"])
def test_without_any_left_the_operator_reads_what_to_run_and_nobody_is_sent_here(ids):
    wrapper = [
        Quarantine(
            f"GPU-{n}", "/opt/gpu-ci/bin/runc is changed", "wrapper", "quick", remedy="wait"
        )
        for n in range(2)
    ]
    options = {"gpu-device-ids": ids, "extra-tags": "rack-7"}
    made = make_plan(found(*wrapper, options=options))
    assert said(found(*wrapper, options=options)) == (
        "All GPUs are unavailable (2 quarantined: GPU 0, 1 (/opt/gpu-ci/bin/runc is changed)): "
        "wait, then juju run worker/0 gpu-selftest level=quick"
    )
    assert planned(made).worker.tags == (NO_GPU_LEFT, "rack-7")
    assert planned(made).worker.wrapped
    assert len(made.gpu.gpus) == 2


def test_the_operators_own_is_given_back_by_his_word():
    assert said(found(BY_HAND)) == (
        "Worker ready (GPU: 1x NVIDIA, 1 cordoned: GPU 0 (fan replaced tomorrow; juju run "
        "worker/0 gpu-uncordon gpu=gpu-0))"
    )


def test_each_way_back_is_named():
    assert said(found(XID, BY_HAND)) == (
        "All GPUs are unavailable (1 cordoned: GPU 0 (fan replaced tomorrow), 1 quarantined: GPU "
        "1 (Xid 79)): reboot the machine, then juju run worker/0 gpu-selftest level=quick and "
        "juju run worker/0 gpu-uncordon gpu=gpu-0"
    )


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (None, "2x NVIDIA"),
        (PASSED, "2x NVIDIA, self-test passed"),
        (
            Verdict("incomplete", failure="GPU 1 is in use"),
            (
                "2x NVIDIA, self-test incomplete (GPUs stay in use; tried again after 5 min): GPU "
                "1 is in use"
            ),
        ),
        (Verdict("passed", partial=True), "2x NVIDIA, self-test of one GPU passed"),
        (
            Verdict("failed", failure="x", remedy="lxc config device add c gpu0 gpu pci=0:1:0.0"),
            "2x NVIDIA, self-test failed: x (lxc config device add c gpu0 gpu pci=0:1:0.0)",
        ),
        (
            Verdict("failed", failure="GPU 2 is gone", remedy="look in dmesg"),
            "2x NVIDIA, self-test failed: GPU 2 is gone (look in dmesg)",
        ),
    ],
)
def test_status_tells_the_verdict(verdict, text):
    assert said(found(verdict=verdict)) == f"Worker ready (GPU: {text})"


def test_a_failure_that_put_a_gpu_into_quarantine_is_told_once():
    failed = Verdict("failed", failure="Xid 79: it has fallen off the bus", remedy="reboot")
    assert said(found(XID, verdict=failed)).count("Xid 79") == 1


def test_what_failed_besides_and_took_no_gpu_out_is_told_too():
    failed = Verdict("failed", failure="disk full", remedy="sudo du | tail; make room")
    text = said(found(XID, verdict=failed))
    assert "1 quarantined: GPU 1 (Xid 79; " in text
    assert text.endswith(", self-test failed: disk full (sudo du | tail))")


@pytest.mark.parametrize(
    ("remedy", "shown"),
    [
        (
            "Reboot the machine (`sudo reboot`); then test again. If not",
            "reboot the machine, then ",
        ),
        ("Have it replaced; then `juju run worker/0 gpu-selftest`", "have it replaced, then "),
        ("Wait. The charm writes it again", "wait, then "),
        ("Install 1.19.1 or newer: apt", "install 1.19.1 or newer, then "),
        ("", ""),
    ],
)
def test_status_has_the_first_step_of_a_remedy_and_the_report_all(remedy, shown):
    entries = [dataclasses.replace(XID, uuid=f"GPU-{n}", remedy=remedy) for n in range(2)]
    assert said(found(*entries)).startswith(
        f"All GPUs are unavailable (2 quarantined: GPU 0, 1 (Xid 79)): {shown}juju run "
    )


def test_a_long_reason_of_the_operator_is_cut():
    cordoned = dataclasses.replace(BY_HAND, reason="the fan " * 20)
    assert "(the fan the fan the fan the fan the fan...; juju run" in said(found(cordoned))
