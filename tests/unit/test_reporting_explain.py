# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What is explained of a build, container, unit or job, from recorded entries and leases."""

import dataclasses
import json

import pytest

from gpu_agent.reporting import explain
from gpu_agent.reporting.decisions import Entry
from gpu_agent.reporting.explain import Lease, Out, Records, Source, Waiting
from gpu_agent.reporting.receipts.receipt import GpuReceipt, Receipt
from gpu_runtime.lease_table import CONTAINER, JOB, STEP

A, B = "GPU-aaaaaaaa-1111-2222-3333-444444444444", "GPU-bbbbbbbb-1111-2222-3333-444444444444"
TASK = "0b7c1f8e-3f0a-4f0e-6d2b-1a2b3c4d5e6f"
OTHER = "1c8d2f9e-3f0a-4f0e-6d2b-1a2b3c4d5e6f"
TRAIN = "4f0c" * 16
UNIT = "gpu-run-1a2b3c4d5e6f.scope"
BUILD = ("main", "train", "fit", "12")
NO_BUILD = ("", "", "", "")
T0 = explain.seconds("2026-11-23T14:00:00Z")


def at(seconds):
    return explain._iso(T0 + seconds)


def entry(container, seconds, kind="task", **more):
    return Entry(at(seconds), "boot", seconds, container, kind, **more)


def granted(container, seconds, *gpus, **more):
    return entry(container, seconds, granted=gpus, asked=len(gpus), **more)


def refused(container, seconds, code="gpu-wait-expired", **more):
    text = "this task waited 240 s for 1 GPU: GPU 0 is in use"
    return entry(container, seconds, **{"code": code, "asked": 1, "reason": text, **more})


def lease(container, began, ended, *gpus, build=NO_BUILD, kind=STEP, who="", **more):
    more = {"outcome": "" if ended is None else "ended", **more}
    over = None if ended is None else T0 + ended
    return Lease(container, kind, who, build, gpus, T0 + began, over, **more)


def records(*found, queue=(), out=(), now=3600.0, **more):
    return Records(
        entries=tuple(one for one in found if isinstance(one, Entry)),
        leases=tuple(one for one in found if isinstance(one, Lease)),
        queue=queue,
        out=out,
        labels={A: "GPU 0", B: "GPU 1", "MIG-1": "GPU 0 MIG 1"},
        parts={"MIG-1": A},
        sources=(Source("decision log", "/oci.log", at(-50)),),
        now=T0 + now,
        **more,
    )


def only(known, name, since=0.0):
    found = explain.find(known, name, since)
    assert found.count == 1, found
    return found.cases[0]


def text_of(known, name):
    text = explain.as_text(known, only(known, name))
    assert max(map(len, text.splitlines())) <= 96
    return " ".join(text.split())


def test_a_refused_task_is_told_who_held_the_gpus_then():
    known = records(
        granted(OTHER, 10, A), refused(TASK, 400, waited=240.0),
        lease(OTHER, 10, 500, A, build=BUILD), lease("before", -90, 5, A),
        lease("after", 500, 600, A), lease("elsewhere", 0, 900, B),
    )  # fmt: skip
    text = text_of(known, TASK)
    assert f"Container {TASK} CI step" in text
    assert "Asked 2026-11-23 14:02:40 UTC: task requests 1 GPU" in text
    assert "14:06:40 UTC: refused (gpu-wait-expired) after waiting 4 min" in text
    assert "this task waited 240 s for 1 GPU: GPU 0 is in use" in text
    held = f"GPU 0: container {OTHER} (main/train/fit/12), 2026-11-23 14:00:10 UTC to 2026-11-23"
    assert f"Held then {held} 14:08:20 UTC" in text
    assert "GPU 1: container elsewhere" in text
    assert "before" not in text
    assert "after," not in text
    assert text.endswith("Ended it never had a GPU")


def test_a_granted_task_is_told_what_it_got_what_it_met_and_what_ended_it():
    faulty = lease(
        TASK, 10, 700, A, build=BUILD, outcome="gpu failed", reason="Xid 79: it is gone",
        faults=((A, "Xid 79"), (A, "it is gone")),
    )  # fmt: skip
    known = records(
        granted(TASK, 10, A, waited=8.0), faulty,
        out=(Out(A, "quarantined: Xid 79", at(690)), Out(B, "cordoned: fan", at(1))),
    )  # fmt: skip
    text = text_of(known, "main/train/fit/12")
    assert "Build main/train/fit/12" in text
    assert f"granted after waiting 8 s: GPU 0 ({A})" in text
    assert "Fault GPU 0: Xid 79 Fault GPU 0: it is gone" in text
    assert "Out now GPU 0 is quarantined: Xid 79, since 2026-11-23 14:11:30 UTC" in text
    assert "GPU 1" not in text
    assert "Ended 2026-11-23 14:11:40 UTC: gpu failed: Xid 79: it is gone; held GPU 0 for" in text


@pytest.mark.parametrize(
    "name",
    [
        *("fit", "fit/12", "train/fit", "train/fit/12", "main/train/fit", "main/train/fit/12"),
        *(TASK, TASK[:8]),
    ],
)
def test_a_step_is_found_by_its_build_and_by_the_beginning_of_its_id(name):
    known = records(lease(TASK, 0, 9, A, build=BUILD), lease(OTHER, 0, 9, B))
    assert only(known, name).container == TASK


@pytest.mark.parametrize("name", ["42", "main/42"])
def test_a_build_without_a_pipeline_is_found_by_its_id(name):
    known = records(lease(TASK, 0, 9, A, build=("main", "", "", "42")))
    assert only(known, name).build == "main/42"


@pytest.mark.parametrize(
    ("name", "container"),
    [
        ("train", TRAIN),
        ('docker container "train"', TRAIN),
        (TRAIN[:12], TRAIN),
        (UNIT, UNIT),
        (UNIT.removesuffix(".scope"), UNIT),
        ("gpu-run of ci: python fit.py", UNIT),
        ("python fit.py", UNIT),
        ("python", UNIT),
    ],
)
def test_engines_containers_and_units_have_more_than_one_name(name, container):
    known = records(
        granted(TRAIN, 1, A, kind="docker container", who='docker container "train"'),
        lease(UNIT, 0, 9, B, kind=JOB, who="gpu-run of ci: python fit.py"),
    )
    assert only(known, name).container == container


@pytest.mark.parametrize("name", ["0b7", "zzzz", "main", "12", "", ".scope", '"'])
def test_a_name_that_means_too_much_or_nothing_finds_nothing(name):
    known = records(lease(TASK, 0, 9, A, build=BUILD), lease(UNIT, 0, 9, B, kind=JOB))
    assert explain.find(known, name, 0.0) == explain.Found((), 0)


def test_an_exact_name_is_preferred_to_a_beginning():
    known = records(refused("abcd", 1), refused("abcdef", 2))
    assert only(known, "abcd").container == "abcd"
    assert explain.find(known, "abcde", 0.0).count == 1


def test_several_are_listed_the_newest_first_each_short():
    known = records(
        *(refused(f"task-{number:02}", number, waited=3.0) for number in range(30)),
        granted(f"task-{'x' * 150}", 99, A),
        lease(f"task-{'x' * 150}", 99, None, A, build=BUILD),
    )  # fmt: skip
    found = explain.find(known, "task-", 0.0)
    assert (found.count, len(found.cases)) == (31, 20)
    lines = explain.as_list(found).splitlines()
    assert max(map(len, lines)) <= 96
    assert lines[0] == "2026-11-23 14:01:39 UTC: granted, 1 GPU, holds them now"
    assert lines[3] == "2026-11-23 14:00:29 UTC: refused (gpu-wait-expired), waited 3 s"
    assert lines[4] == "  container task-29"
    assert lines[-1] == "and 11 older ones"
    assert explain.find(known, "task-", T0 + 20).count == 11


def test_a_request_that_waits_is_told_its_position_and_who_holds_the_gpus():
    waits = Waiting(TASK, "", 2, (), T0 + 3000, 3)
    known = records(lease(OTHER, 10, None, A), queue=(waits,), out=(Out(B, "cordoned: x", ""),))
    text = text_of(known, TASK)
    assert "Asked 2026-11-23 14:50:00 UTC: requests 2 GPUs" in text
    assert "Waiting for 10 min, position 3 in the queue" in text
    assert f"Held now GPU 0: container {OTHER}, 2026-11-23 14:00:10 UTC to now" in text
    assert "Out now GPU 1 is cordoned: x" in text
    assert "Ended" not in text


def test_an_operator_and_this_worker_end_leases():
    known = records(
        granted(TASK, 10, A),
        entry(TASK, 60, "gpu-reclaim", reason=f"{A}: it hangs"),
        lease(TASK, 10, 61, A, outcome="killed", reason=f"gpu-reclaim: {A}: it hangs"),
        entry("", 70, "gpu-cordon", reason=f"{A}: fan"),
    )
    text = text_of(known, TASK)
    assert "14:01:01 UTC: killed: gpu-reclaim: GPU-aaaaaaaa" in text
    assert f"Ended by 2026-11-23 14:01:00 UTC: gpu-reclaim: {A}: it hangs" in text
    assert "gpu-cordon" not in text


def test_a_task_without_gpus_requested_none():
    text = text_of(records(entry(TASK, 5)), TASK)
    assert "task requests 0 GPUs" in text
    assert "no GPU requested" in text
    assert "Held then" not in text


def test_a_lease_without_a_usage_record_was_over_when_the_next_one_got_its_gpu():
    known = records(granted(TASK, 10, A), granted(OTHER, 90, A))
    assert "no usage record of its lease of GPU 0; it was over by 2026-11-23 14:01:30" in text_of(
        known, TASK
    )
    assert text_of(known, OTHER).endswith("no usage record of its lease of GPU 0")


def test_a_session_within_a_lease_is_no_lease_of_its_own():
    known = records(
        granted(TASK, 10, A), granted(TASK, 20, A, kind="exec x"), lease(TASK, 10, 30, A)
    )
    case = only(known, TASK)
    assert (len(case.decisions), len(case.leases)) == (2, 1)


def test_named_devices_and_parts_of_a_gpu():
    known = records(
        refused(UNIT, 50, kind="gpu-run", named=("MIG-1",), who="gpu-run of ci: x"),
        lease(OTHER, 0, 90, "MIG-1"), lease("other-gpu", 0, 90, B),
    )  # fmt: skip
    text = text_of(known, UNIT)
    assert "gpu-run requests GPU 0 MIG 1 (MIG-1) by name" in text
    assert "Held then GPU 0 MIG 1: container 1c8d" in text
    assert "other-gpu" not in text


def test_what_is_refused_at_once_was_not_counted():
    text = text_of(records(refused(TASK, 5, code="gpus-disabled", asked=0)), TASK)
    assert "task; it was refused before its request was counted" in text
    assert "no other lease is recorded for that time" in text


HOSTILE = ["\x1b[2J\x1b]0;x\x07", "a\nb: c\n- d", "\u202eevil", "{[(%s%n", "x" * 5000, "\ud800"]


@pytest.mark.parametrize("bad", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_choose_nothing_of_the_terminal(bad):
    known = records(
        refused(TASK, 9, who=bad, reason="r" * 1300),
        lease(TASK, 10, 20, A, build=(bad, bad, bad, bad), who=bad, outcome="killed", reason=bad),
        lease(OTHER, 0, 90, A, build=(bad, bad, bad, bad), who=bad, faults=((A, bad),)),
        out=(Out(A, bad, bad),), queue=(Waiting(TASK, bad, 1, (bad,), T0, 1),),
    )  # fmt: skip
    found = explain.find(known, TASK, 0.0)
    for text in (explain.as_text(known, found.cases[0]), explain.as_list(found)):
        assert all(line.isprintable() and len(line) <= 96 for line in text.splitlines())
        assert len(text) < 8000


def test_json_has_all_of_one_case_and_stays_small():
    many = [lease(f"c{number}", 0, 900, A, who="ü" * 200) for number in range(400)]
    known = records(granted(TASK, 10, A), refused(TASK, 400, reason="r" * 1300), *many)
    text = explain.as_json(TASK, known, explain.find(known, TASK, 0.0))
    assert len(text.encode()) <= 60_000
    found = json.loads(text)
    (case,) = found["cases"]
    assert [made["verdict"] for made in case["decisions"]] == ["granted", "refused"]
    assert case["decisions"][1]["code"] == "gpu-wait-expired"
    assert found["searched"][0]["name"] == "decision log"
    listed = json.loads(explain.as_json("c", known, explain.find(known, "c399", 0.0)))
    assert listed["cases"][0]["container"] == "c399"
    known = records(refused("cccc1", 1), refused("cccc2", 2))
    listed = json.loads(explain.as_json("cccc", known, explain.find(known, "cccc", 0.0)))
    assert (listed["matches"], "decisions" in listed["cases"][0]) == (2, False)


def test_a_log_of_thousands_is_explained_in_a_moment():
    known = records(
        *(refused(f"many-{number}", number) for number in range(20_000)),
        *(lease(f"many-{number}", number, number + 50, A) for number in range(20_000)),
        now=90_000,
    )
    assert explain.find(known, "many-", 0.0).count == 20_000
    assert explain.unnamed_refusals(known, 0.0).count == 0


def test_refused_tasks_have_no_build():
    known = records(
        refused(TASK, 1), refused(OTHER, 2), lease(OTHER, 3, 4, A), refused("c", 3, kind="exec x"),
        granted("d", 4, A), refused("e", 5, kind="gpu-run"),
    )  # fmt: skip
    found = explain.unnamed_refusals(known, 0.0)
    assert [case.container for case in found.cases] == [TASK]


def test_a_usage_record_becomes_a_lease():
    gpu = GpuReceipt(A, 0, "A100", xids=(79, 31), failed="it is gone", ecc_uncorrected=2)
    part = GpuReceipt(B, 1, "A100", devices=("MIG-1", "MIG-2"))
    receipt = Receipt(
        "2026-11-23T14:00:10.500Z", "2026-11-23T14:01:00.000Z", TASK, 50.0, "gpu failed",
        (gpu, part), reason="it is gone", team="main", pipeline="train", job="fit", build="12",
    )  # fmt: skip
    found = explain.lease_of(receipt)
    assert (found.began, found.ended) == (T0 + 10.5, T0 + 60)
    assert (found.devices, found.build, found.kind) == ((A, "MIG-1", "MIG-2"), BUILD, STEP)
    texts = ["Xid 79", "Xid 31", "it is gone", "2 uncorrected ECC errors"]
    assert [text for _, text in found.faults] == texts
    still = explain.lease_of(dataclasses.replace(receipt, kind=CONTAINER, who="x"), over=False)
    assert (still.ended, still.outcome, still.kind) == (None, "", CONTAINER)


def test_sources_say_how_far_back_they_reach():
    known = dataclasses.replace(
        records(),
        sources=(
            Source("decision log", "/var/log/gpu-ci/oci.log", at(0), damaged=2),
            Source("usage records", "/var/log/gpu-ci/receipts.log", error="Permission denied"),
            Source("leases", "/run/gpu-ci/leases"),
        ),
    )
    assert explain.searched(known) == [
        (
            "decision log (/var/log/gpu-ci/oci.log): back to 2026-11-23 14:00:00 UTC; "
            "2 damaged lines left"
        ),
        "  out",
        "usage records (/var/log/gpu-ci/receipts.log): could not be read: Permission denied",
        "leases (/run/gpu-ci/leases): read",
    ]
