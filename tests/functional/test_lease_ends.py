# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What keeps a GPU longer than its lease, and how that ends: real containerd, runc, processes."""

import json
import os
import pathlib
import shutil
import signal
import sys
import time

import pytest

from tests.functional.containerd_worker import NEEDS, ROOT, worker_in_a_namespace
from tests.functional.lease_site import act, alive, site, until, with_rights_of_the_watch

# s, from the death of a holder to the next one's: less than a second where the machine is quiet
HANDOVER = 10.0
SESSION = "4b825dc6-42cb-4eb9-a060-e54bf8d69288"

pytestmark = NEEDS

AS_THE_WATCH = pytest.mark.skipif(not shutil.which("setpriv"), reason="needs util-linux's setpriv")
TURN = """
import threading, time
from gpu_agent.health import lease_reader as leased
from gpu_agent.health.gone_leases import Returned
from gpu_agent.model.observations import Moment
store = "/run/gpu-ci/leases"
part = Returned(store, "/var/log/gpu-ci/oci.log")
part.turn(Moment(1.0, 1.0, (), holdings=leased.holdings(store)), ())
while threading.active_count() > 1:
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def started():
    with worker_in_a_namespace() as worker:
        worker.charm(0, 1)
        worker.start()
        yield worker


@pytest.fixture
def two(started):
    yield from site(started, 0, 1, wait_timeout=60)


@pytest.fixture
def one(started):
    yield from site(started, 1, wait_timeout=60)


def test_a_session_keeps_the_gpu_no_longer_than_its_limit_after_the_step(one):
    one.worker.charm(1, wait_timeout=60, hijack_limit=3)
    one.create("t1")
    step = one.step("t1")
    session = one.step("t1", name=SESSION)
    waiting = one.wait("t2")
    time.sleep(3.5)
    assert not one.gpus("t2"), "the step goes on"
    os.kill(step, signal.SIGKILL)
    took = until(lambda: one.gpus("t2"))
    assert 2.9 < took < 3 + HANDOVER
    assert not alive(session)
    assert waiting.communicate(timeout=30)


@pytest.mark.skipif("GPUCI_SOAK" not in os.environ, reason="a minute and more: make soak")
def test_a_start_that_hangs_is_ended_after_a_minute_for_who_comes_next(one):
    call = one.keep(hanging_create(one, "t1"))
    until(lambda: one.gpus("t1"))
    ((pid, _),) = one.worker.leases()["holders"]["t1"]["calls"]
    one.worker.charm(1, wait_timeout=90)
    waiting = one.wait("t2")
    assert 55 < until(lambda: one.gpus("t2"), 70) < 65
    assert not alive(pid)
    said, _ = call.communicate(timeout=30)
    assert call.returncode != 0, said
    assert waiting.communicate(timeout=30)


def test_the_makers_of_a_start_that_hangs_end_by_force(one):
    """containerd has no init.pid for it yet, so nothing but its spec tells its group."""
    call = one.keep(hanging_create(one, "t1"))
    until(lambda: one.gpus("t1"))
    holder = one.worker.leases()["holders"]["t1"]
    ((pid, _),) = holder["calls"]
    group = pathlib.Path(f"/sys/fs/cgroup/devices{holder['cgroup']}/cgroup.procs")
    if not group.parent.parent.exists():
        group = pathlib.Path(f"/sys/fs/cgroup{holder['cgroup']}/cgroup.procs")
    until(lambda: group.exists() and len(group.read_text().split()) > 1)
    act(one.worker, "reclaim", "1", "it hangs", "force")
    assert not alive(pid)
    assert not group.exists() or not group.read_text()
    said, _ = call.communicate(timeout=30)
    assert call.returncode != 0, said
    assert one.create("t2").returncode == 0


def hanging_create(site, handle):
    """A create in which a hook waits for ever, as NVIDIA's do for what is no file."""
    spec = site.task(handle)
    hang = {"path": "/bin/sleep", "args": ["sleep", "1000"]}
    spec["hooks"] = {"createContainer": [hang]}
    return site.worker.begin_create(spec)


def rewrite(site, handle, change):
    """Change a lease as it is written down."""
    table = site.worker.leases()
    change(table["holders"][handle])
    path = "/run/gpu-ci/leases/leases.json"
    site.worker.inside("sh", "-c", f"printf %s '{json.dumps(table)}' >{path}")


def open_elsewhere(one, handle):
    """A process in another container that has a node of the holder's GPU open; its pid.

    The simulated cards can't be opened, so /dev/random stands for the node: what counts is a
    device's number.
    """
    return one.step(handle, "exec sleep 1000 <>/dev/random")


def test_a_descriptor_in_another_container_does_not_outlive_the_lease(two):
    """It can be sent through a socket, and rules on devices are asked at open alone."""
    for handle in ("t1", "t2"):
        two.create(handle)
    step = two.step("t1")
    innocent = two.step("t2")
    two.worker.create(two.task("accomplice", "GPU_COUNT=0"))
    intruder = open_elsewhere(two, "accomplice")
    rewrite(two, "t1", lambda holder: holder.update(nodes=["/dev/random"]))
    waiting = two.wait("t3")
    os.kill(step, signal.SIGKILL)
    assert until(lambda: two.gpus("t3")) < HANDOVER
    assert not alive(intruder)
    assert alive(innocent)
    (line,) = [one for one in two.decisions() if one["kind"] == "intruder ended"]
    assert line["container"] == "accomplice"
    assert two.gpus("t3")[0] in line["reason"]
    assert waiting.communicate(timeout=30)


def turn(one):
    """A turn of the watch, with no more rights than its unit has."""
    path = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib", "PATH": os.environ["PATH"]}
    done = one.worker.inside(*with_rights_of_the_watch(sys.executable, "-c", TURN), env=path)
    assert done.returncode == 0, done.stderr


def holders(one):
    return {*one.worker.leases()["holders"]}


@AS_THE_WATCH
def test_the_watch_ends_the_lease_of_a_container_that_is_gone_and_no_other(two):
    for handle in ("t1", "t2"):
        two.create(handle)
    first, second = two.step("t1"), two.step("t2")
    turn(two)
    assert holders(two) == {"t1", "t2"}, "both steps go on"
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(first))
    turn(two)
    assert holders(two) == {"t1", "t2"}, "people look into a container whose step is over"
    assert alive(two.pid("t1", "init"))
    two.worker.remove("t1")
    turn(two)
    assert holders(two) == {"t2"}
    assert alive(second)


@AS_THE_WATCH
def test_the_watch_ends_who_was_sent_the_gpu_of_a_container_that_is_gone(two):
    two.create("t1")
    two.step("t1")
    two.worker.create(two.task("friend", "GPU_COUNT=0"))
    intruder = open_elsewhere(two, "friend")
    rewrite(two, "t1", lambda holder: holder.update(nodes=["/dev/random"]))
    two.worker.remove("t1")
    turn(two)
    assert not holders(two)
    assert not alive(intruder)
    lines = [one for one in two.decisions() if one["kind"] == "intruder ended"]
    assert lines[-1]["container"] == "friend"
