# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm with rooms that only note what they were asked for, and the wrapper with one GPU."""

import pytest
from ops import testing

import charm
import found
from gpuci import usage
from tests.unit import recorded_trees
from tests.unit.situations import HOST_PEM, ROOT, WORKER_KEY, Release, Rooms
from tests.unit.wrapper_caller import Caller
from tests.unit.wrapper_rig import GPUS, Rig


@pytest.fixture
def rooms(monkeypatch):
    rooms = Rooms()
    for module, name, answer in (
        ("concourse_release", "ensure", Release()),
        ("concourse_release", "remove", None),
        ("concourse_worker", "remove", None),
        ("concourse_worker", "retire", None),
        ("concourse_web", "remove", None),
        ("automatic", "remove", None),
        ("wrapper", "remove", None),
        ("network", "ensure", None),
        ("network", "remove", None),
        ("packages", "remove_installed", None),
        ("files", "ensure_absent", None),
    ):
        monkeypatch.setattr(getattr(charm, module), name, rooms.note(f"{module}.{name}", answer))
    monkeypatch.setattr(charm.concourse_release, "installed", lambda: None)
    monkeypatch.setattr(charm.concourse_worker, "ensure_key", lambda _: WORKER_KEY)
    monkeypatch.setattr(charm.concourse_worker, "healthy", lambda: rooms.worker is not None)
    monkeypatch.setattr(charm.concourse_web, "healthy", lambda: rooms.web is not None)
    monkeypatch.setattr(
        charm.concourse_worker, "apply", rooms.keep("worker", "concourse_worker.apply")
    )
    monkeypatch.setattr(charm.concourse_web, "apply", rooms.keep("web", "concourse_web.apply"))
    monkeypatch.setattr(charm.wrapper, "apply", rooms.keep("gpu", "wrapper.apply"))
    monkeypatch.setattr(charm.cordons, "ensure", rooms.keep("kept_out", "cordons.ensure"))
    monkeypatch.setattr(charm.quarantine, "read", lambda: rooms.quarantined)
    monkeypatch.setattr(charm.automatic, "verdict", lambda: rooms.verdict)
    monkeypatch.setattr(charm.automatic, "ensure", rooms.test)
    monkeypatch.setattr(charm.detect, "detect", lambda _: rooms.inventory)
    monkeypatch.setattr(charm.foreign, "look", lambda *_: rooms.cordoned)
    monkeypatch.setattr(charm.facts, "machine", lambda: rooms.machine)
    monkeypatch.setattr(charm.facts, "architecture", lambda: "amd64")
    monkeypatch.setattr(charm.memory, "remembered_ids", found.RememberedIds)
    monkeypatch.setattr(charm.memory, "remember_ids", lambda _: False)
    monkeypatch.setattr(charm.memory, "is_leaving", lambda: rooms.leaving)
    monkeypatch.setattr(charm.memory, "set_leaving", lambda: setattr(rooms, "leaving", True))
    monkeypatch.setattr(
        charm.concourse_web,
        "new_secrets",
        lambda: found.WebSecrets("secret-password", HOST_PEM, HOST_PEM),
    )
    return rooms


@pytest.fixture
def context():
    return testing.Context(charm.GpuCiWorkerCharm, charm_root=ROOT, app_name="unit", unit_id=0)


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path, back_end=False)
    rig.policy(gpus=GPUS[:1])
    return rig


@pytest.fixture
def caller(rig):
    return Caller(rig)


@pytest.fixture(params=["v1", "v2"])
def tree(tmp_path, request, monkeypatch):
    """A recorded tree of cgroup v1 or v2, in which a process that is killed is gone."""
    tree = recorded_trees.Tree(tmp_path, request.param)

    class Killable:
        def __init__(self, pid):
            if pid not in tree.alive():
                raise ProcessLookupError
            self.pid = pid

        def kill(self):
            tree.killed.append(self.pid)
            tree.die(self.pid)

        def close(self):
            pass

    uptime = float(tree.read("/proc/uptime").split()[0])
    recorded_trees.UPTIME[tree.version] = uptime
    monkeypatch.setattr(usage, "Process", Killable)
    monkeypatch.setattr(usage.Host, "now", lambda _: uptime + tree.patience)
    return tree
