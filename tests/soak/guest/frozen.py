# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A step that stands still while its worker is restarted, by the charm's own freezer."""

import os
import pathlib
import signal
import subprocess
import time

import looks
from worker import V1, finish, until

from ci.concourse.restart import cgroup_freezer as freezer

COUNTING = "n=0; while :; do n=$((n+1)); echo $n >/tmp/count; sleep 0.1; done"


def stands_still(switch, count):
    """A control group is frozen, and what counts in it does not."""
    told = switch.with_name("cgroup.events") if switch.name == "cgroup.freeze" else switch
    until(10, "it is frozen", lambda: {"FROZEN", "frozen 1"} & {*told.read_text().splitlines()})
    before = count.read_text()
    time.sleep(1)
    assert count.read_text() == before


def goes_on(count):
    before = count.read_text()
    until(10, "it goes on", lambda: count.read_text() != before)


def a_step_that_stands_still_keeps_its_gpu_and_goes_on_by_the_guard(worker):
    """As for a restart of the worker. Nobody gets in meanwhile: runc refuses that at once."""
    pathlib.Path("/run/gpu-ci").mkdir(exist_ok=True)
    worker.policy(0)
    worker.create("a")
    step, count = worker.launch("a", "sh", "-c", COUNTING), worker.rootfs / "tmp/count"
    until(30, "it counts", count.exists)
    path = freezer.switch(worker.init("a"), worker.init("a"), "a")
    assert path, "its control group has no switch"
    assert path.name == ("freezer.state" if V1 else "cgroup.freeze"), path
    frozen = freezer.Freezer(1.0)
    assert frozen.freeze(path)
    stands_still(path, count)
    said, code = worker.exec("a", "echo inside", name="session")
    assert code, said
    assert "paused" in said, said
    waiting = worker.creating("b")
    until(30, "b waits", lambda: worker.waiters() == ["b"])
    time.sleep(2)
    assert waiting.poll() is None, finish(waiting)
    frozen.thaw(path)
    goes_on(count)
    # Whoever froze it is killed now.
    assert frozen.freeze(path)
    stands_still(path, count)
    argv = ["/bin/sh", "-ec", freezer._GUARD, "sh", "0.1", str(freezer._LIST)]
    subprocess.run(argv, check=True, timeout=30)
    goes_on(count)
    os.kill(step, signal.SIGKILL)
    looks.gets_it(worker, waiting, "b", after="a")
    count.unlink()
