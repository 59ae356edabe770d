# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Restarts, a second run, hooks killed half-way, units that come and go."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import time
import zipfile

import pytest

from tests.lab import leases, outfit
from tests.lab.errors import WrongUse
from tests.lab.juju.agent import STRACE, Agent, Interruption
from tests.lab.site import ALL, OPENS, PROBE, READY

# `make soak` kills a hook at more places.
SOAK = "GPUCI_SOAK" in os.environ

# Calls by which a hook changes something, or starts what does, and which of each to kill it at.
CALLS = [("rename", 2)]
if SOAK:
    CALLS = [
        (name, number)
        for name, last, step in (
            ("vfork", 80, 9), ("unlink", 28, 7), ("connect", 15, 5), ("rename", 5, 1),
            ("fsync", 5, 2), ("fchown", 6, 2), ("kill", 4, 1), ("flock", 2, 1),
        )
        for number in range(1, last + 1, step)
    ]  # fmt: skip
# Of each hook in the life of a unit: about how many of which calls it makes.
HOOKS = {
    "install": {
        "vfork": 110, "rename": 440, "chown": 110, "mkdir": 150, "unlink": 90, "fsync": 50,
        "chmod": 850, "sendfile": 1500, "symlink": 3,
    },
    "worker-tsa-relation-changed": {
        "vfork": 65, "unlink": 28, "rename": 8, "fsync": 8, "fchown": 8, "connect": 12,
    },
    "upgrade-charm": {
        "vfork": 55, "rename": 380, "chown": 90, "unlink": 25, "fsync": 3, "sendfile": 1500,
        "symlink": 1,
    },
    "worker-tsa-relation-departed": {
        "vfork": 95, "unlink": 60, "unlinkat": 3000, "rmdir": 14, "kill": 2, "rename": 2,
    },
    "worker-tsa-relation-broken": {"vfork": 35, "unlink": 60},
    "stop": {"vfork": 5, "unlink": 2},
    "remove": {"vfork": 13, "unlink": 75, "unlinkat": 1300, "rmdir": 3},
}  # fmt: skip
# How many units have their hooks killed, and how many of them at once.
LIVES, AT_ONCE = 24, 3
FROZEN = """
find /sys/fs/cgroup -name freezer.state -exec grep -l -E 'FROZEN|FREEZING' {} + ;
find /sys/fs/cgroup -name cgroup.freeze -exec grep -l 1 {} + ; true
"""

# The names of all that the charm has on a worker's machine, but for what a refresh leaves there.
OURS = """
cd /; find etc/concourse etc/gpu-ci etc/systemd/system/*gpu-ci* etc/systemd/system/concourse* \
    etc/sysctl.d opt/concourse opt/gpu-ci usr/local/bin usr/local/lib/concourse* \
    usr/local/lib/gpu-ci* var/lib/gpu-ci -path var/lib/gpu-ci/selftest -prune \
    -o -path 'opt/gpu-ci/app/[0-9a-f]*' -prune -o -print | sort
"""
# Everything that a reconcile writes or starts, as it shows from outside.
STATE = """
find /etc /opt/concourse /opt/gpu-ci /usr/local /var/lib/gpu-ci /root -xdev \
    -printf '%p %y %m %U %C@ %s\\n' | sort
for unit in concourse-worker concourse-web; do
  systemctl show -p MainPID,NRestarts,ActiveEnterTimestampMonotonic $unit
done
"""


def what_runs(site):
    """Files and their contents, services and tags: what must be equal after a hook ran again.

    Not what self-tests have found out, each of which writes a report of its own, nor what the
    watch remembers, which has times in it.
    """
    return (
        site.sh(
            "cd /; find etc/concourse etc/gpu-ci opt/gpu-ci/bin etc/systemd/system/*-ci-* "
            "etc/systemd/system/concourse* var/lib/gpu-ci -path var/lib/gpu-ci/selftest -prune "
            "-o -path var/lib/gpu-ci/health -prune -o -type f -exec sha256sum {} + | sort; "
            "readlink opt/gpu-ci/lib/gpuci "
            "opt/concourse/current; systemctl is-active concourse-worker; true"
        ),
        site.tags(),
        site.status(),
    )


def test_a_second_run_changes_nothing(site):
    """It says nothing either, for each line of a hook is a process of Juju's; two are ops' own."""
    for unit in ("worker/0", "web/0"):
        site.lab.controller.fire(unit, "update-status")
        before, log = site.sh(STATE, unit), site.lab.controller.log_path(unit)
        said = len(log.read_text())
        site.lab.controller.fire(unit, "update-status")
        lines = re.findall(r"juju-log (.*)", log.read_text()[said:])
        site.lab.controller.fire(unit, "config-changed")
        assert site.sh(STATE, unit) == before
        assert len(lines) == 2, lines


def test_a_build_lives_through_a_worker_restart(site):
    running = site.start_task(f"sleep 6\n{PROBE}\necho finished", params=ALL)
    site.machine().enter("/bin/systemctl", "restart", "concourse-worker")
    site.tags()
    output, _ = running.communicate(timeout=90)
    assert running.returncode == 0, output
    assert "finished" in output
    assert f"nvidia0 {OPENS}" in site.task(PROBE).stdout


def test_restarts_do_not_pile_up_mounts(site):
    # As Concourse does with each of its volumes, at every start.
    volume = "/var/lib/concourse/worker/volumes/of-this-test"
    count = "grep -c /var/lib/concourse/worker/volumes /proc/self/mountinfo; true"
    site.sh(f"mkdir {volume}; mount --bind {volume} {volume}")
    counts = []
    for _ in range(3):
        site.machine().enter("/bin/systemctl", "restart", "concourse-worker")
        site.tags()
        assert site.sh(f"mountpoint {volume}; true") == f"{volume} is not a mountpoint\n"
        counts.append(int(site.sh(count)))
    assert counts[1] >= counts[2]
    assert site.task(PROBE).returncode == 0
    site.sh(f"rmdir {volume}")


def test_a_build_lives_through_new_tags(site):
    running = site.start_task("sleep 6; echo finished")
    site.configure(extra_tags="rack-7")
    try:
        output, _ = running.communicate(timeout=90)
        assert running.returncode == 0, output
        assert site.wait_for_tag("rack-7")[-1] == "rack-7"
    finally:
        site.configure(reset=("extra-tags",))
    site.wait_for_tag("gpu-count=2")


def test_web_restarts_and_the_worker_comes_back(site):
    site.machine("web/0").enter("/bin/systemctl", "restart", "concourse-web")
    site.lab.controller.fire("web/0", "update-status")
    assert site.status("web/0") == ("active", "Web ready")
    site.worker("lab-worker-0", 60)
    assert site.task(PROBE).returncode == 0


def test_both_come_back_after_a_reboot(site):
    """Arrange: a step that heeds SIGTERM. Act: reboot. Assert: it has time, and all is up again.

    Containers' first processes heed no SIGTERM: systemd would wait 90 seconds for them.
    """
    heard = f"{outfit.ROOTFS}/home/ci/heard"
    save = "trap 'sleep 1; echo heard >/home/ci/heard; exit' TERM"
    step = site.start_task(f"{save}; while :; do sleep 0.1; done")
    site.machine().reboot(timeout=45)
    step.kill()
    step.communicate(timeout=30)
    assert site.sh(f"cat {heard}; rm {heard}") == "heard\n"
    site.lab.controller.fire("worker/0", "start")
    assert site.status() == READY
    site.worker("lab-worker-0", 60)
    assert f"nvidia0 {OPENS}" in site.task(PROBE).stdout


@pytest.mark.parametrize("at_command", [2, 6, 10, 14] if SOAK else [6])
def test_a_hook_killed_half_way_ends_in_the_same_state(site, at_command):
    before = what_runs(site)
    site.lab.model.set_config("worker", {"gpu-device-ids": "1"})
    site.lab.controller.agent("worker/0").interruption = Interruption(at_command=at_command)
    site.lab.settle()
    assert site.status() == ("active", "Worker ready (GPU: 1x NVIDIA, self-test passed)")
    site.wait_for_tag("gpu-count=1")
    site.lab.model.set_config("worker", {"gpu-device-ids": "all"})
    site.lab.controller.agent("worker/0").interruption = Interruption(at_command=at_command)
    site.lab.settle()
    site.wait_for_tag("gpu-count=2")
    assert what_runs(site) == before


@pytest.mark.parametrize("seconds", [0.35, 0.6, 0.9, 1.3] if SOAK else [0.6])
def test_a_hook_killed_at_any_time_ends_in_the_same_state(site, seconds):
    before = what_runs(site)
    for values in ({"enable-gpu": "false", "extra-tags": "x"}, {"extra-tags": ""}):
        site.lab.model.set_config("worker", values)
        site.lab.controller.agent("worker/0").interruption = Interruption(after_seconds=seconds)
        site.lab.settle()
        assert site.status() == ("active", outfit.IDLE)
    site.lab.model.set_config("worker", {"enable-gpu": "true"})
    site.lab.controller.agent("worker/0").interruption = Interruption(after_seconds=seconds)
    site.lab.settle()
    site.wait_for_tag("gpu-count=2")
    assert what_runs(site) == before


@pytest.mark.skipif(not os.path.exists(STRACE), reason="there is no strace: scripts/setup soak")
@pytest.mark.parametrize("call", CALLS)
def test_a_hook_killed_at_a_system_call_ends_in_the_same_state(site, call):
    """The worker restarts under a task that has a GPU; what the hook has started goes on."""
    before, tasks = what_runs(site), leases.Tasks(site)
    try:
        task = tasks.start("kill", GPU_COUNT="1")
        task.begun()
        for tag in ("killed", ""):
            site.lab.model.set_config("worker", {"extra-tags": tag}, times=1)
            site.lab.controller.agent("worker/0").interruption = Interruption(at_call=call)
            site.lab.settle()
            assert site.status() == READY
            task.answer()  # If the hook has left it frozen, it goes on within 19 s.
            assert site.sh(FROZEN) == ""
    finally:
        tasks.end()
    site.wait_for_tag("gpu-count=2")
    assert what_runs(site) == before


def test_a_unit_is_added_works_and_leaves_without_a_trace(site, monkeypatch):
    (unit,) = site.lab.model.add_units("worker")
    site.lab.settle()
    assert site.status(unit) == READY
    site.worker(f"lab-{unit.replace('/', '-')}", 60)
    assert_both_say_that_they_share_a_card(site, unit)
    site.configure(extra_tags="both")
    try:
        for _ in range(2):
            assert site.task(PROBE).returncode == 0
    finally:
        site.configure(reset=("extra-tags",))
    keys = "cat /etc/concourse/keys/authorized_worker_keys"
    assert len(site.sh(keys, "web/0").splitlines()) == 2

    there = site.traces(unit)
    assert all(there[kind] for kind in ("processes", "cgroups", "units", "files"))
    left = traces_at_teardown(site, monkeypatch)
    site.lab.model.remove_unit(unit)
    site.lab.settle()
    assert left == {unit: {}}
    assert [worker["name"] for worker in site.fly.workers()] == ["lab-worker-0"]
    assert len(site.sh(keys, "web/0").splitlines()) == 1


def assert_both_say_that_they_share_a_card(site, unit):
    """Card 1 of the one is card 0 of the other, as where LXD passes it to both."""
    fakegpu = "/usr/local/lib/fake-gpu/fakegpu"
    card, own = (
        json.loads(site.sh(f"{fakegpu} status", each))["gpus"][number]["uuid"]
        for each, number in (("worker/0", 0), (unit, 1))
    )
    site.sh(f"{fakegpu} set 1 uuid={card}", unit)
    site.lab.controller.fire(unit, "update-status")
    site.lab.settle()
    assert "; GPU 1 also given to tasks by worker/0: " in site.status(unit)[1]
    assert f"; GPU 0 also given to tasks by {unit}: " in site.status()[1]
    site.sh(f"{fakegpu} set 1 uuid={own}", unit)
    site.lab.controller.fire(unit, "update-status")
    site.lab.settle()
    assert site.status(unit) == site.status() == READY


@pytest.mark.skipif(not SOAK, reason="minutes: `make soak` runs it")
@pytest.mark.skipif(not os.path.exists(STRACE), reason="there is no strace: scripts/setup soak")
@pytest.mark.parametrize("first", range(0, LIVES, AT_ONCE))
def test_hooks_killed_all_life_long_end_in_the_same_state(site, tmp_path, monkeypatch, first):
    """Arrange: a task. Act: kill each hook once. Assert: a unit is as ever, and goes wholly."""
    controller, model, tasks = site.lab.controller, site.lab.model, leases.Tasks(site)
    packed = pathlib.Path(model.application("worker")["charm"])
    refreshed = pathlib.Path(shutil.copy(packed, tmp_path / packed.name))
    with zipfile.ZipFile(refreshed, "a") as archive:
        archive.writestr("src/of_this_test.py", f"# {first}\n")
    task = tasks.start("life", GPU_COUNT="1")
    try:
        task.begun()
        units = dict(zip(model.add_units("worker", AT_ONCE), range(first, LIVES), strict=False))
        for unit, life in units.items():
            controller.agent(unit).interruptions = kills(life)
        site.lab.settle()
        assert_as_ever(site, units)
        model.refresh("worker", refreshed)
        site.lab.settle()
        assert_as_ever(site, units)
        left = traces_at_teardown(site, monkeypatch)
        for unit in units:
            model.remove_unit(unit)
        site.lab.settle()
        assert left == {unit: {} for unit in units}
        for unit, life in units.items():
            said = controller.log_path(unit).read_text()
            assert [hook for hook in kills(life) if f'hook "{hook}" failed' not in said] == []
        assert [worker["name"] for worker in site.fly.workers()] == ["lab-worker-0"]
        task.answer()
    finally:
        tasks.end()
        model.refresh("worker", packed)
        site.lab.settle()
    assert site.status() == READY


def kills(life):
    """Where each hook of a unit is killed: in each life another call, and later in the hook."""
    share = (life + 0.5) / LIVES
    found = {}
    for hook, calls in HOOKS.items():
        name, last = [*calls.items()][life % len(calls)]
        found[hook] = Interruption(at_call=(name, 1 + int(last * share)))
    return found


def assert_as_ever(site, units):
    """They have the same files as a unit of which no hook was killed, and no others."""
    for unit in units:
        assert site.status(unit) == READY
        site.worker(f"lab-{unit.replace('/', '-')}", 60)
        assert site.sh(OURS, unit).splitlines() == site.sh(OURS).splitlines()


def traces_at_teardown(site, monkeypatch):
    """What is left of each unit when its machine goes; filled as they go."""
    left = {}
    teardown = Agent.teardown

    def look_first(self):
        found = site.traces(self._unit)
        left[self._unit] = {kind: lines for kind, lines in found.items() if lines}
        teardown(self)

    monkeypatch.setattr(Agent, "teardown", look_first)
    return left


def test_web_forgets_a_worker_whose_relation_goes_under_a_build(site):
    """Web takes its key no more from that second on, so the worker can't sign off."""
    running = site.start_task("sleep 900")
    ends, integrations = ("web:web-tsa", "worker:worker-tsa"), site.lab.model.integrations
    listed = None

    def states():
        return {one["name"]: one["state"] for one in site.fly.workers()}

    try:
        integrations.remove(*ends)
        site.lab.settle()
        deadline = time.monotonic() + 150
        while (listed := states()) != {"lab-worker-0": "stalled"}:
            assert time.monotonic() < deadline, listed
            time.sleep(1)
        site.lab.controller.fire("web/0", "update-status")
        assert states() == {}
        # Web notices that the build's container is gone.
        output, _ = running.communicate(timeout=120)
        assert running.returncode, output
    finally:
        running.kill()
        deadline = time.monotonic() + 60
        while not integrations.related(*ends) and time.monotonic() < deadline:
            with contextlib.suppress(WrongUse):  # while the former relation is dying
                integrations.integrate(*ends)
            time.sleep(1)
        site.lab.settle()
        site.tags(seconds=60)
    assert site.status() == READY
    assert site.task(PROBE).returncode == 0
