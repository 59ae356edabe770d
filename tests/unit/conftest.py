# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm with rooms that only note what they were asked for, and the wrapper with one GPU."""

import pytest
from ops import testing

import charm
from ci.concourse import release
from ci.concourse.web import local_postgresql, web
from ci.concourse.worker import rivals, worker
from gpu_agent import paths
from gpu_agent.availability import external_processes as foreign
from gpu_agent.availability import quarantine
from gpu_agent.diagnosis import machine as facts
from gpu_agent.gpu.vendors import detect
from gpu_agent.health import service as health_service
from gpu_runtime import holder_usage as usage
from gpu_selftest import verdict
from host import network
from lifecycle import machine_claim as owner
from lifecycle import unit_record as memory
from plan.state import RememberedIds
from relations import juju
from relations.model import WebSecrets
from tests.unit import drain_rig, recorded_trees
from tests.unit.situations import HOST_PEM, Rooms
from tests.unit.wrapper_caller import Caller
from tests.unit.wrapper_rig import GPUS, Rig


@pytest.fixture
def rooms(monkeypatch, tmp_path):
    rooms = Rooms(machine_folder=tmp_path)
    monkeypatch.setattr(paths, "STATE", tmp_path / "gpu-ci")
    monkeypatch.setattr(owner, "RECORD", tmp_path / "gpu-ci/owner.json")
    monkeypatch.setattr(memory, "forget", lambda: setattr(rooms, "leaving", False))
    monkeypatch.setattr(juju, "unit_id", lambda _: rooms.unit("unit/0"))
    rooms.own("unit/0")
    rooms.have_charm(monkeypatch)
    # The action remove-local-database calls it by itself.
    monkeypatch.setattr(local_postgresql, "remove", rooms.note("database.remove"))
    rooms.replace_release(monkeypatch, release)
    rooms.replace_keys(monkeypatch)
    monkeypatch.setattr(worker, "name", lambda: "")
    monkeypatch.setattr(web, "authorize", rooms.authorize)
    monkeypatch.setattr(worker, "healthy", lambda: rooms.worker is not None)
    drain_rig.replace(rooms, monkeypatch)
    monkeypatch.setattr(web, "peer_address", lambda: rooms.web.address if rooms.web else "")
    monkeypatch.setattr(network, "interfaces", lambda: rooms.interfaces)
    monkeypatch.setattr(web, "healthy", lambda: rooms.web is not None)
    monkeypatch.setattr(web, "url", lambda: rooms.web and rooms.web.external_url)
    monkeypatch.setattr(quarantine, "read", lambda: rooms.quarantined)
    monkeypatch.setattr(verdict, "verdict", lambda: rooms.verdict)
    monkeypatch.setattr(detect, "in_time", lambda _: rooms.inventory)
    monkeypatch.setattr(health_service, "is_running", lambda: rooms.watch_runs)
    monkeypatch.setattr(health_service, "suspect", lambda: rooms.suspect)
    rooms.replace_software(monkeypatch)
    monkeypatch.setattr(foreign, "look", lambda *_: rooms.external)
    monkeypatch.setattr(facts, "machine", lambda: rooms.machine)
    monkeypatch.setattr(rivals, "look", lambda: rooms.rivals)
    monkeypatch.setattr(facts, "architecture", lambda: "amd64")
    monkeypatch.setattr(memory, "remembered_ids", RememberedIds)
    monkeypatch.setattr(memory, "remember_ids", lambda _: False)
    monkeypatch.setattr(memory, "is_leaving", lambda: rooms.leaving)
    monkeypatch.setattr(memory, "set_leaving", lambda: setattr(rooms, "leaving", True))
    monkeypatch.setattr(
        web,
        "new_secrets",
        lambda: WebSecrets(rooms.new_password, HOST_PEM, HOST_PEM),
    )
    return rooms


@pytest.fixture
def context():
    # Given the tree as its root, it would write metadata.yaml there for as long as a test runs.
    return testing.Context(charm.GpuCiWorkerCharm, app_name="unit", unit_id=0)


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path, back_end=False)
    rig.policy(gpus=GPUS[:1])
    return rig


@pytest.fixture
def caller(rig):
    return Caller(rig)


@pytest.fixture
def watched(monkeypatch):
    """Has a process that is killed be gone from a recorded tree, whose time stands still."""

    def watch(tree):
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

    return watch


@pytest.fixture(params=["v1", "v2"])
def tree(tmp_path, request, watched):
    """A recorded tree of cgroup v1 or v2, in which a process that is killed is gone."""
    return watched(recorded_trees.Tree(tmp_path, request.param))
