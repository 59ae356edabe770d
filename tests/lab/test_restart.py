# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Steps stand still while the worker's process is restarted, and go on whatever is killed."""

import itertools
import re

CODE = "/var/lib/juju/agents/unit-worker-0/charm"
# A hook that is killed right after it froze the steps; its guard's time is two seconds.
KILLED = f"""
PYTHONPATH={CODE}/src:{CODE}/lib:{CODE}/venv /usr/bin/python3 -c '
import os, signal
from ci.concourse import steps
from machine import freezer
frozen = freezer.Freezer(2)
frozen.begin()
for one in steps.containers():
    if one.step:
        frozen.freeze(freezer.switch(one.init, one.name))
        print(one.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
'
systemctl is-active gpu-ci-thaw.service
"""
LINES = 60
# `start_task` reads ahead of the line that it waits for.
TASK = f"""
from=$(cut -d' ' -f1 /proc/uptime)
sleep 1
echo "from $from"
for number in $(seq {LINES}); do
  echo "line $number at $(cut -d' ' -f1 /proc/uptime)"
  sleep 0.1
done
"""


def longest_pause(output):
    """The longest from its start or a line to the next, in seconds; no line may be missing."""
    lines = re.findall(r"line (\d+) at ([\d.]+)", output)
    assert [int(number) for number, _ in lines] == [*range(1, LINES + 1)], output
    begun = re.findall(r"from ([\d.]+)", output)
    times = [float(at) for at in (*begun, *(at for _, at in lines))]
    return max(after - before for before, after in itertools.pairwise(times))


def test_a_step_stands_still_while_the_worker_restarts_for_new_tags(site):
    running = site.start_task(TASK, params={"GPU_COUNT": "1"})
    before = site.sh("systemctl show -P MainPID concourse-worker")
    site.configure(tag="rack-8")
    try:
        output, _ = running.communicate(timeout=90)
        assert running.returncode == 0, output
        assert 1.5 < longest_pause(output) < 20
        assert site.sh("systemctl show -P MainPID concourse-worker") != before
        assert site.sh("systemctl is-active gpu-ci-thaw.service; true") == "inactive\n"
    finally:
        site.configure(reset=("tag",))
    site.wait_for_tag("gpu-count=2")


def test_steps_go_on_though_who_froze_them_was_killed(site):
    running = site.start_task(TASK, params={"GPU_COUNT": "0"})
    said = site.sh(KILLED).split()
    assert len(said) >= 2, said
    assert said[-1] == "active", said
    output, _ = running.communicate(timeout=90)
    assert running.returncode == 0, output
    assert 1.5 < longest_pause(output) < 20
