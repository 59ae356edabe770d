# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Steps stand still while the worker's process is restarted, and go on whatever is killed."""

import pathlib

import pytest

from tests.lab import leases, standing
from tests.lab.test_layout_refresh import AGENT, DYING, LOOK, changed

pytestmark = pytest.mark.usefixtures("untested")

CODE = "/var/lib/juju/agents/unit-worker-0/charm"
RUN = f"PYTHONPATH={CODE}/src:{CODE}/lib:{CODE}/venv /usr/bin/python3 -c"
# A hook that is killed right after it froze the steps.
KILLED = f"""
{RUN} '
import os, signal
from ci.concourse.restart import running_steps as steps
from ci.concourse.restart import cgroup_freezer as freezer
frozen = freezer.Freezer(SECONDS)
frozen.begin()
for one in steps.containers():
    if one.step:
        frozen.freeze(freezer.switch(one.init, one.step, one.name))
        print(one.name, flush=True)
# AND
os.kill(os.getpid(), signal.SIGKILL)
'
systemctl is-active gpu-ci-thaw.service
"""
# The same, right after it ended the worker's process too, and before it could start it.
ENDED = KILLED.replace(
    "# AND",
    """
from ci.concourse.worker import worker
from machine import process_cleanup as leftovers
leftovers.end_processes([worker.main_pid()], 2)
""",
)
THAW = f"""
{RUN} 'from ci.concourse.restart import cgroup_freezer as freezer; freezer.Freezer(1).begin()'
systemctl stop gpu-ci-thaw.service
"""


def ended_well(site, build):
    """Return the task's output; if it failed, with the logs of its machine."""
    standing.end(site)
    told = "journalctl --no-pager --since -2min; tail -n 20 /var/log/gpu-ci/oci.log; dmesg | tail"
    assert build.wait(90) == 0, build.output + site.sh(f"{told}; true")
    return build.output


def test_a_step_stands_still_while_the_worker_restarts_for_new_tags(site):
    running = standing.begin(site)
    before = site.sh("systemctl show -P MainPID concourse-worker")
    site.configure(extra_tags="rack-8")
    try:
        output = ended_well(site, running)
        assert 1.5 < standing.longest_pause(output) < 20
        assert site.sh("systemctl show -P MainPID concourse-worker") != before
        assert site.sh("systemctl is-active gpu-ci-thaw.service; true") == "inactive\n"
    finally:
        site.configure(reset=("extra-tags",))
    site.wait_for_tag("gpu-count=2")


def test_nobody_gets_into_a_step_that_stands_still_and_it_keeps_its_session_to_come(site):
    build = standing.begin(site)
    site.sh(KILLED.replace("SECONDS", "600"))
    hijack = (
        "hijack",
        "-b",
        build.number,
        "-s",
        "one-off",
        "--",
        "sh",
        "-c",
        "echo in $GPU_COUNT",
    )
    status, output = site.fly.on_terminal(*hijack)
    site.sh(THAW)
    assert status, output
    assert "in 1" not in output
    status, output = site.fly.on_terminal(*hijack)
    assert status == 0, output
    assert "in 1" in output
    standing.longest_pause(ended_well(site, build))


def test_a_build_lives_though_the_hook_was_killed_between_the_workers_end_and_its_start(site):
    """systemd starts the worker, web attaches, and the guard lets the step go on."""
    running = standing.begin(site)
    before = site.sh("systemctl show -P MainPID concourse-worker")
    said = site.sh(ENDED.replace("SECONDS", "19")).split()
    assert said[-1] == "active", said
    output = ended_well(site, running)
    assert 1.5 < standing.longest_pause(output) < 25
    assert site.sh("systemctl show -P MainPID concourse-worker") not in (before, "0\n")
    site.tags()


def test_a_task_keeps_its_gpu_though_the_charm_is_refreshed_and_a_hook_of_that_killed(
    site, tmp_path
):
    """To another version, whose first hook dies once the agent has changed, and back."""
    model, tasks = site.lab.model, leases.Tasks(site)
    packed = pathlib.Path(model.application("worker")["charm"])
    dying = changed(packed, tmp_path / packed.name, {AGENT: DYING})
    log = site.lab.controller.log_path("worker/0")
    said = len(log.read_text())
    try:
        task = tasks.start("stays", GPU_COUNT="1")
        before = task.process(), task.lease()["since"]
        for charm in (dying, packed):
            model.refresh("worker", charm)
            site.lab.settle()
            assert site.status()[0] == "active"
            assert (task.process(), task.lease()["since"]) == before
            task.answer()
    finally:
        tasks.end()
    assert 'hook "upgrade-charm" failed' in log.read_text()[said:]
    look = site.sh(f"cat {LOOK}; rm {LOOK} /run/killed").split()
    # Of the agent's services this unit has the first alone.
    assert (look[0], look[-1]) == ("active", "0"), look
    site.worker("lab-worker-0", 60)
