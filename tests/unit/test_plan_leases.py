# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Who gets GPUs, how long a task waits for them, and where Concourse itself queues tasks."""

import dataclasses

import pytest

from ci.concourse.plan.model import planned
from gpu_agent.gpu.vendors import registry
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from relations.model import Tsa
from tests.unit.situations import (
    GPUS,
    OUTSIDE,
    READY,
    RUNTIME,
    TSA,
    codes,
    gpu,
    gpu_unit,
    make_plan,
    note,
    sliced,
    unit,
)


def patient(seconds):
    """What webs say whose calls may last so long."""
    return dataclasses.replace(TSA, request_timeout=seconds)


def here(*gpus, vendor="nvidia", **inventory):
    return {"inventory": Inventory(State.READY, gpus, vendor=vendor, **inventory)}


def test_the_options_become_policy():
    options = {
        "gpu-allocation": "shared",
        "gpus-per-task": 2,
        "gpu-wait-timeout": "60s",
        "gpu-for-privileged-tasks": True,
    }
    assert make_plan(gpu_unit(options)).gpu == GpuPlan(
        gpus=GPUS,
        nvidia_runtime=RUNTIME,
        allocation="shared",
        gpus_per_task=2,
        wait_timeout=60,
        hijack_limit=1800,
        privileged_tasks="gpu",
        driver="580.95.05",
        cuda="13.0",
    )


@pytest.mark.parametrize("vendor", ["amd", "intel"])
def test_other_vendors_have_no_runtime_even_where_nvidias_is(vendor):
    card = gpu(0, vendor=vendor, minor=-1, nodes=("/dev/dri/renderD128",))
    for machine in ({}, {"toolkit": None}):
        found = gpu_unit(machine=machine, **here(card, vendor=vendor))
        made = make_plan(found)
        assert made.problems == ()
        assert (made.gpu.gpus, made.gpu.nvidia_runtime) == ((card,), "")
        assert (made.gpu.driver, made.gpu.cuda) == ("", "")
        assert planned(made).worker.wrapped
        assert note(found) == f"1x {registry.find(vendor).display}"


# gpu-wait-timeout, what is known of the web; then the wait, the worker's own clock, the note.
WAITS = {
    "default": (240, {}, 240, 300, ""),
    "none": (0, {}, 0, 300, ""),
    "just below": (280, {}, 280, 340, ""),
    "a web that says nothing": (
        *(281, {}, 280, 340),
        ", gpu-wait-timeout limited to 280 s: web names no request-timeout",
    ),
    "a web outside Juju": (
        *(1800, {"options": OUTSIDE, "tsa": Tsa()}, 280, 340),
        ", gpu-wait-timeout limited to 280 s: web names no request-timeout",
    ),
    "a patient web": (1800, {"tsa": patient(2100)}, 1800, 1860, ""),
    "a less patient web": (
        *(1800, {"tsa": patient(600)}, 540, 600),
        ", gpu-wait-timeout limited to 540 s: web's request-timeout is 600 s",
    ),
    "one as patient as Concourse itself": (
        *(250, {"tsa": patient(300)}, 240, 300),
        ", gpu-wait-timeout limited to 240 s: web's request-timeout is 300 s",
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_refusal_comes_before_concourse_gives_up(name):
    asked, values, wait, clock, more = WAITS[name]
    values = dict(values)
    options = {"gpu-wait-timeout": f"{asked}s", **values.pop("options", {})}
    found = gpu_unit(options, **values)
    made = make_plan(found)
    assert made.gpu.wait_timeout == wait
    assert planned(made).worker.request_timeout == clock
    assert note(found) == f"2x NVIDIA{more}"


def test_a_unit_that_is_both_knows_its_own_webs_patience():
    options = {"enable-gpu": True, "gpu-wait-timeout": "30m"}
    found = unit("all", options=options, tsa=patient(300))
    assert (make_plan(found).gpu.wait_timeout, note(found)) == (1800, "2x NVIDIA")
    elsewhere = make_plan(unit("all", options={**options, **OUTSIDE}, tsa=Tsa()))
    assert elsewhere.gpu.wait_timeout == 280


def test_a_worker_without_gpus_leaves_concourses_clock_and_queue_alone():
    worker = make_plan(unit(options={"gpu-wait-timeout": "30m"})).ci.own.worker
    assert (worker.request_timeout, worker.max_active_tasks) == (0, 0)


@pytest.mark.parametrize(
    ("gpus", "options", "tasks"),
    [
        (GPUS, {}, 2),
        (GPUS, {"gpu-device-ids": "1"}, 1),
        (GPUS, {"gpus-per-task": 2}, 1),
        ([*map(gpu, range(8))], {"gpus-per-task": 3}, 2),
        ([sliced(0, *["1g.10gb"] * 7), gpu(1)], {}, 8),
        ([sliced(0, *["1g.10gb"] * 7), gpu(1)], {"gpus-per-task": 4}, 2),
        (GPUS, {"gpus-per-task": 0}, 0),
        (GPUS, {"gpu-allocation": "shared"}, 0),
    ],
)
def test_the_scheduler_is_told_how_many_tasks_get_their_gpus_at_once(gpus, options, tasks):
    made = make_plan(gpu_unit(options, inventory=dataclasses.replace(READY, gpus=tuple(gpus))))
    assert planned(made).worker.max_active_tasks == tasks


@pytest.mark.parametrize(
    ("version", "tarball", "installed", "queues"),
    [
        ("8.3.0", "", "", True),
        # Another one than was asked for stands in for it.
        ("8.3.0", "", "8.2.5", False),
        ("8.2.5", "", "8.3.0", True),
        ("10.0.0", "", "", True),
        ("8.2.5", "/r/concourse.tgz", "8.3.0+dev", True),
        ("8.3.0", "/r/concourse.tgz", "8.2.5", False),
        # What is in it is known once it is unpacked.
        ("8.3.0", "/r/concourse.tgz", "", False),
    ],
)
def test_only_a_concourse_that_limits_each_worker_queues(version, tarball, installed, queues):
    options = {"concourse-version": f"{version}@sha256:{'ab' * 32}"}
    given = {"tarball": tarball, "installed": installed}
    tsa = dataclasses.replace(TSA, versions=())
    assert (
        make_plan(gpu_unit(options, tsa=tsa, **given)).ci.own.worker.max_active_tasks == 2 * queues
    )
    assert make_plan(unit("web", options=options, **given)).ci.own.web.queues_tasks is queues


def test_tasks_that_could_never_get_their_gpus_block_and_what_runs_goes_on():
    found = gpu_unit({"gpus-per-task": 3})
    made = make_plan(found)
    assert codes(found) == [("blocked", "gpus-per-task-too-large")]
    assert (made.gpu, planned(made).worker) == (Keep.AS_IS, Keep.AS_IS)
