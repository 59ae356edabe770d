# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A second run, restarts, and hooks killed half-way under a job."""

import itertools
import os
import pathlib
import re
import shutil
import zipfile

import pytest

from tests.lab import leases, outfit
from tests.lab.juju.agent import STRACE, Agent, Interruption
from tests.lab.site import PROBE, READY

# `make soak` kills a hook at more places.
SOAK = "GPUCI_SOAK" in os.environ

# When hooks are killed: at a hook command, after some seconds, and at a call by which a hook
# changes something, or starts what does.
KILLS = [(6, 0.6, ("rename", 2))]
if SOAK:
    CALLS = [
        (name, number)
        for name, last, step in (
            ("vfork", 80, 9), ("unlink", 28, 7), ("connect", 15, 5), ("rename", 5, 1),
            ("fsync", 5, 2), ("fchown", 6, 2), ("kill", 4, 1), ("flock", 2, 1),
        )
        for number in range(1, last + 1, step)
    ]  # fmt: skip
    TIMES = itertools.product((2, 6, 10, 14), (0.35, 0.6, 0.9, 1.3))
    KILLS = [(*times, call) for times, call in zip(itertools.cycle(TIMES), CALLS, strict=False)]
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
# Everything that a reconcile writes or starts, as it shows from outside; not what the watch
# remembers, which writes when it likes.
STATE = """
find /etc /opt/concourse /opt/gpu-ci /usr/local /var/lib/gpu-ci /root -xdev \
    -path /var/lib/gpu-ci/health -prune -o -printf '%p %y %m %U %C@ %s\\n' | sort
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
        site.lab.controller.fire(unit, "config-changed")
        before, log = site.sh(STATE, unit), site.lab.controller.log_path(unit)
        said = len(log.read_text())
        site.lab.controller.fire(unit, "update-status")
        lines = re.findall(r"juju-log (.*)", log.read_text()[said:])
        assert site.sh(STATE, unit) == before
        assert len(lines) == 2, lines


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


@pytest.mark.usefixtures("untested")  # A job's GPU would not be tested.
@pytest.mark.skipif(not os.path.exists(STRACE), reason="there is no strace: scripts/setup soak")
@pytest.mark.parametrize(("command", "seconds", "call"), KILLS)
def test_hooks_killed_half_way_end_in_the_same_state_and_a_job_keeps_its_gpu(
    site, command, seconds, call
):
    """The first restarts the worker under it, the others take all GPUs from tasks and back."""
    before, tasks = what_runs(site), leases.Tasks(site)
    try:
        task = tasks.start("kill", GPU_COUNT="1")
        since = task.lease()["since"]
        killed(site, Interruption(at_call=call), {"extra-tags": "x"})
        assert site.status() == READY
        task.answer()  # If the hook has left it frozen, it goes on within 19 s.
        assert site.sh(FROZEN) == ""

        off = {"enable-gpu": "false", "gpu-device-ids": "1"}
        killed(site, Interruption(after_seconds=seconds), off)
        assert site.status() == ("active", outfit.IDLE)
        assert_tasks_get_no_gpu(site)
        task.answer()

        on = {"enable-gpu": "true", "gpu-device-ids": "all", "extra-tags": ""}
        killed(site, Interruption(at_command=command), on)
        site.wait_for_tag("gpu-count=2")
        task.answer()
        assert task.lease()["since"] == since
    finally:
        tasks.end()
    assert what_runs(site) == before


def assert_tasks_get_no_gpu(site):
    logs = site.sh("ls /var/log/gpu-ci 2>&-; true").split()
    assert {*logs} <= {"receipts.log"}, "usage is kept as long as the unit exists"
    assert "CONTAINERD_BIN" not in site.sh("cat /etc/concourse/worker.env")
    assert site.wait_for_tag("x") == ["x"]
    done = site.task(PROBE, "x")
    assert done.returncode == 0, done.stdout
    assert "nvidia0 absent" in done.stdout
    assert "nvidia1 absent" in done.stdout
    assert site.sh("ls /opt/gpu-ci /etc/gpu-ci /usr/local/bin/runc-gpu-wrapper 2>&-; true") == ""


def killed(site, interruption, values):
    """Kill the hook that hears of these options; the next one does all of it."""
    site.lab.model.set_config("worker", values, times=1)
    site.lab.controller.agent("worker/0").interruption = interruption
    site.lab.settle()


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
