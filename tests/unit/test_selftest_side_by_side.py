# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which checks of isolation are made at once, and that none of them takes another's GPU."""

import contextlib
import json
import re
import threading
import types

import pytest

from gpu_agent.model.inventory import Gpu
from gpu_runtime.refusal import Refused
from gpu_selftest.check import Obstacle, Outcome
from gpu_selftest.isolation import containers
from gpu_selftest.isolation import escape_attempts as doors
from gpu_selftest.isolation import level as isolation
from gpu_selftest.isolation.container_view import Node, View
from gpu_selftest.isolation.containers import ContainerError
from tests.unit.grants import TASKS

UUIDS = [f"GPU-0000000{index}-1111-2222-3333-444444444444" for index in (0, 1)]
GPUS = tuple(
    Gpu(index, uuid, "nvidia", "NVIDIA L4", 23034, f"0000:0{index}:00.0", index)
    for index, uuid in enumerate(UUIDS)
)
PATIENCE = 30


class Worker:
    """A worker whose containers are all well, but for what a test has it do in `see`."""

    nodes = tuple(Node(f"/dev/nvidia{gpu.minor}", (195, gpu.minor), gpu.uuid) for gpu in GPUS)
    nested = False

    def __init__(self):
        self.looks, self.leaked, self.said = [], {}, []
        self.held, self.most, self.line = {}, 0, ""
        self.see = lambda name, step: self.look(name)

    @contextlib.contextmanager
    def alone(self, container, devices):
        (device,) = devices
        assert device not in self.held.values(), f"{container} takes what another check has"
        self.held[container] = device
        self.most = max(self.most, len(self.held))
        try:
            yield None
        finally:
            del self.held[container]

    @contextlib.contextmanager
    def in_line(self, container):
        self.line = container
        yield
        self.line = ""

    def id(self, name):
        return name

    def look(self, container, exec_id="task"):
        """What a container sees: the GPU that is reserved for it, or none."""
        assert self.line, f"an idle runner may take the GPU of {container}"
        self.looks.append(container)
        gpus = [gpu for gpu in GPUS if gpu.uuid == self.held.get(container)]
        return View(
            nodes={f"/dev/nvidia{gpu.minor}": ((195, gpu.minor), 0) for gpu in gpus},
            planted={},
            made={},
            nvml=[gpu.uuid for gpu in gpus] or None,
            nvml_error="",
            environment=[
                f"NVIDIA_VISIBLE_DEVICES={gpus[0].uuid if gpus else 'void'}",
                f"GPU_COUNT={len(gpus)}",
                f"GPU_CI_DEVICES={json.dumps([{'uuid': gpu.uuid} for gpu in gpus])}",
            ],
        )

    @contextlib.contextmanager
    def create(self, name, step):
        yield name

    def failed(self, check, text, **named):
        return check.result(Outcome.FAILED, text, **named)

    def disjoint(self):
        assert not self.held
        assert self.line
        return doors.DISJOINT.result(Outcome.PASSED, "")

    def reclaim(self):
        assert not self.held
        assert self.line
        return doors.RECLAIM.result(Outcome.PASSED, "")

    def test(self, gpus=GPUS):
        device = types.SimpleNamespace
        allowed = device(devices=[device(id=gpu.uuid) for gpu in gpus])
        settings = types.SimpleNamespace(gpus=gpus, runc="")
        site = isolation.Site(
            missing=lambda runc: "",
            allowed=lambda: allowed,
            tasks=lambda: TASKS,
            inspector=lambda *_: contextlib.nullcontext(self),
            allocation=lambda *_: self,
            alone=self.alone,
            in_line=self.in_line,
        )
        return isolation.run(settings, gpus, self.said.append, site)


@pytest.fixture
def worker():
    return Worker()


def together(worker, *names):
    """Have those containers be looked into at the same time, or fail after a while."""
    meeting = threading.Barrier(len(names))

    def see(name, step):
        if name in names:
            meeting.wait(PATIENCE)
        return worker.look(name)

    worker.see = see


@pytest.mark.parametrize(
    "names",
    [
        ("lease-0-0", "lease-1-0"),
        ("no-lease-get", "image-all-0"),
        ("no-lease-task", "image-all-0"),
    ],
)
def test_two_checks_are_made_at_once_and_told_in_their_order(worker, names):
    together(worker, *names)
    found = worker.test()
    assert [one.check for one in found] == ["lease", *(check.id for check in doors.CHECKS)]
    assert [one.gpu for one in found[:2]] == UUIDS
    assert {one.outcome for one in found} == {Outcome.PASSED}, found
    assert worker.said[-2:] == [
        "Isolation: containers without a lease, or that ask for more than theirs",
        "Isolation: two tasks at once, and a killed one",
    ]


def test_of_one_gpu_one_check_at_a_time_has_it_and_what_needs_none_goes_on_beside(worker):
    together(worker, "no-lease-get", "image-all-0")
    found = worker.test(GPUS[:1])
    assert {one.outcome for one in found} == {Outcome.PASSED}, found
    assert worker.most == 1


def test_of_two_gpus_two_checks_have_one_each(worker):
    slow, began = threading.Event(), threading.Event()

    def see(name, step):
        if name == "image-all-0":
            began.set()
            assert slow.wait(PATIENCE)
        elif name == "cuda-version-only-0":
            assert began.wait(PATIENCE)
            slow.set()
        return worker.look(name)

    worker.see = see
    assert {one.outcome for one in worker.test()} == {Outcome.PASSED}
    assert worker.most == 2


def test_a_gpu_that_a_job_has_leaves_the_other_for_both(worker):
    alone = worker.alone

    def taken(container, devices):
        if not container.startswith("lease-") and devices[0] == UUIDS[0]:
            return contextlib.nullcontext(Obstacle("GPU 0 is in use by a job"))
        return alone(container, devices)

    worker.alone = taken
    found = worker.test()
    assert {one.outcome for one in found} == {Outcome.PASSED}, found


def test_what_fails_on_one_gpu_is_its_own_and_what_ends_one_check_ends_all(worker):
    def refuse(name, step):
        if name == "lease-0-0":
            raise ContainerError("no such device")
        return worker.look(name)

    worker.see = refuse
    found = worker.test()
    outcomes = {one.check: one.outcome for one in found if one.gpu != UUIDS[0]}
    assert [one.outcome for one in found if one.gpu == UUIDS[0]] == [Outcome.FAILED]
    assert outcomes.pop("disjoint") is outcomes.pop("reclaim") is Outcome.NOT_RUN
    assert {*outcomes.values()} == {Outcome.PASSED}

    def damaged(name, step):
        raise Refused("lease-table-damaged", "the store is damaged")

    worker.see = damaged
    assert {(one.outcome, one.text) for one in worker.test()} == {
        (Outcome.NOT_RUN, "the store is damaged")
    }


def test_what_two_threads_make_is_not_beside_each_other(monkeypatch):
    groups = []

    def create(self, config, timeout):
        assert config["hostname"] == self.id
        groups.append(config["linux"]["cgroupsPath"])

    monkeypatch.setattr(containers.Container, "create", create)
    monkeypatch.setattr(containers.Containers, "_folders", lambda self, name: ("/root", "/work"))
    made = containers.Containers("/usr/bin/runc", TASKS)
    made.create("gpu-selftest-a")
    made.create("gpu-selftest-b")
    other = threading.Thread(target=made.create, args=("gpu-selftest-c",))
    other.start()
    other.join()
    folders = [re.fullmatch("(/gpu-ci-selftest/[0-9]+)/gpu-selftest-[abc]", one) for one in groups]
    assert folders[0][1] == folders[1][1] != folders[2][1]


class Called(containers.Container):
    """A container that was made, of which the runtime refuses some calls."""

    def __init__(self, *refused):
        super().__init__("gpu-selftest-x", "/usr/bin/runc", "/work", [])
        self.refused, self.calls = refused, []

    def _call(self, *words, **_):
        self.calls.append(words)
        if words in self.refused:
            raise ContainerError("it is not stopped")


def test_what_is_deleted_is_deleted_once_and_else_by_force(monkeypatch):
    monkeypatch.setattr(containers, "_forget", lambda name: None)
    name = "gpu-selftest-x"
    made = Called()
    made.remove()
    assert made.calls == [("kill", name, "9"), ("delete", name)]
    stuck = Called(("kill", name, "9"), ("delete", name))
    stuck.remove()
    assert stuck.calls == [*made.calls, ("delete", "--force", name)]
