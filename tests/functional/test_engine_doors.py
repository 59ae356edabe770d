# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Ways to a GPU without a lease, or to keep one, tried with Debian's own podman and Docker.

`--gpus`, `--device`, CDI and an image's variables are in test_engines.py, beside what they give.
"""

import contextlib
import os
import pathlib
import signal

import pytest

from tests.functional.containerd_worker import NODES
from tests.functional.engine_looks import (
    BOTH,
    CLOSED,
    CUDA,
    GIVEN,
    LOOK,
    NONE,
    PLAIN,
    look,
    only,
    refused,
    seen,
    the_other,
)
from tests.functional.engine_machine import DOCKER, NEEDS, PODMAN, engine_machine
from tests.functional.lease_site import until

pytestmark = NEEDS

# Nothing else on this machine sleeps so long.
MARK = "87654321"


@pytest.fixture(scope="module")
def booted():
    with engine_machine() as machine:
        yield machine


@pytest.fixture
def machine(booted):
    booted.install(0, 1)
    yield booted
    for pid in marked():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    booted.sweep()


def marked():
    """The processes that sleep for MARK seconds."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes() == f"sleep\0{MARK}\0".encode():
                found.append(int(folder.name))
    return found


def begin(machine, engine, name, *words):
    """Start a container in the background; the last words are image and command."""
    done = machine.start(engine, "-d", "--name", name, *words)
    assert done.returncode == 0, done.stderr


@BOTH
def test_a_privileged_container_has_no_gpu(machine, engine):
    """The host's nodes are not in it, and to make them anew helps no more than a way around."""
    line = f"mknod /dev/nvidia0 c 195 0; {LOOK}"
    done = machine.start(engine, "--rm", "--privileged", PLAIN, "sh", "-c", line)
    assert seen(done.stdout)[0] == {**NONE, "nvidia0": CLOSED}, done.stderr
    asks = ("--privileged", "--device", "/dev/nvidia1", "-e", "GPU_COUNT=1", PLAIN)
    assert "privileged-not-allowed: " in refused(machine, engine, *asks)
    machine.install(1, privileged_tasks="gpu")
    done = machine.start(engine, "--rm", *asks, "sh", "-c", line)
    assert seen(done.stdout)[0] == {**only(1), "nvidia0": CLOSED}, done.stderr
    machine.install(0, 1, privileged_tasks="gpu")
    both = ("--privileged", "-e", "GPU_COUNT=all", PLAIN)
    assert look(machine, engine, *both)[0] == only(0, 1)


def test_a_privileged_container_that_docker_is_asked_gpus_for(machine):
    asks = ("--privileged", "--gpus", "device=1", PLAIN)
    assert "privileged-not-allowed: " in refused(machine, DOCKER, *asks)
    machine.install(0, 1, privileged_tasks="gpu")
    line = f"mknod /dev/nvidia0 c 195 0; {LOOK}"
    done = machine.start(DOCKER, "--rm", *asks, "sh", "-c", line)
    assert seen(done.stdout)[0] == {**only(1), "nvidia0": CLOSED}, done.stderr


@BOTH
def test_a_privileged_process_in_a_container_opens_no_more_than_that(machine, engine):
    begin(machine, engine, "one", "--device", "/dev/nvidia0", PLAIN, "sleep", "1000")
    line = f"mknod /dev/nvidia1 c 195 1; {LOOK}"
    done = machine.inside(*engine, "exec", "--privileged", "one", "sh", "-c", line)
    assert seen(done.stdout)[0] == {**only(0), "nvidia1": CLOSED}, done.stderr


@BOTH
def test_the_hosts_dev_is_no_way_in(machine, engine):
    line = "for node in " + " ".join(NODES) + "; do cat /host/$node 2>&1; done; true"
    done = machine.start(engine, "--rm", "-v", "/dev:/host", PLAIN, "sh", "-c", line)
    assert seen(done.stdout)[0] == dict.fromkeys(NODES, CLOSED), done.stderr


@BOTH
def test_who_is_privileged_opens_no_card_either_that_comes_later(machine, engine):
    line = "mknod /later c 195 77 && cat /later"
    done = machine.start(engine, "--rm", "--privileged", PLAIN, "sh", "-c", line)
    assert "later: Operation not permitted" in done.stderr.replace("can't open '/later'", "later")


@BOTH
def test_a_rule_of_its_own_opens_no_gpu(machine, engine):
    """A container that may make nodes, as Docker's may, could do with a rule alone."""
    makes = ("--cap-add", "MKNOD", "--device-cgroup-rule")
    line = f"mknod /dev/nvidia0 c 195 0; {LOOK}"
    done = machine.start(engine, "--rm", *makes, "c 195:* rwm", PLAIN, "sh", "-c", line)
    assert seen(done.stdout)[0] == {**NONE, "nvidia0": CLOSED}, done.stderr
    # The kind a is every device, whatever numbers come with it.
    for rule in ("c *:* rwm", "c 4294967295:0 rwm", "a *:* rwm", "a 1:3 rm"):
        said = refused(machine, engine, *makes, rule, PLAIN)
        assert "gpu-ci-worker: device-rule-too-wide: " in said


@BOTH
def test_another_runtime_is_agreement(machine, engine):
    """Who may name runc is root: said in the docs, and not stopped, but found.

    Nobody else has what it opens taken for theirs: it has no lease.
    """
    assert look(machine, engine, "--runtime=runc", PLAIN)[0] == NONE
    around = look(machine, engine, "--runtime=runc", "--device", "/dev/nvidia0", PLAIN)[0]
    assert around == {**NONE, "nvidia0": GIVEN}
    assert machine.leases()["holders"] == {}


def test_podmans_gpus_is_a_lease_or_nothing(machine):
    """podman before 5 takes the word and does nothing; from then on it is CDI's `all`."""
    nodes, told = look(machine, PODMAN, "--gpus", "all", PLAIN)
    assert nodes == (only(0, 1) if "GPU_CI_DEVICES" in told else NONE)


@BOTH
def test_what_a_container_leaves_behind_is_gone_before_another_has_its_gpu(machine, engine):
    """Among the host's processes: its own first one takes the others along by no kernel's rule."""
    line = f"setsid sleep {MARK} & sleep 1; exit 0"
    asks = ("--pid=host", "-e", "GPU_COUNT=2", PLAIN, "sh", "-c", line)
    done = machine.start(engine, *asks)
    assert done.returncode == 0, done.stderr
    nodes, _ = look(machine, the_other(engine), "-e", "GPU_COUNT=2", PLAIN)
    assert nodes == only(0, 1)
    assert marked() == []


@BOTH
def test_a_background_process_keeps_the_gpu_no_longer_than_the_first(machine, engine):
    line = f"setsid sleep {MARK} & until [ -e /tmp/end ]; do sleep 0.1; done"
    begin(machine, engine, "train", "-e", "GPU_COUNT=2", CUDA, "sh", "-c", line)
    until(marked, 60)
    machine.install(0, 1, wait_timeout=0)
    assert "gpu-ci-worker: wait-timeout: " in refused(
        machine, the_other(engine), "-e", "GPU_COUNT=1", PLAIN
    )
    machine.install(0, 1)
    machine.inside(*engine, "exec", "train", "sh", "-c", ": >/tmp/end")
    assert look(machine, the_other(engine), "-e", "GPU_COUNT=2", PLAIN)[0] == only(0, 1)
    assert marked() == []


@BOTH
def test_nobody_gets_into_a_container_that_has_ended(machine, engine):
    begin(machine, engine, "train", "-e", "GPU_COUNT=2", PLAIN, "sleep", "1000")
    machine.inside(*engine, "kill", "train")
    line = ("exec", "train", "cat", "/dev/nvidia0")
    until(lambda: GIVEN not in machine.inside(*engine, *line).stderr, 60)
    begin(machine, the_other(engine), "next", "-e", "GPU_COUNT=2", PLAIN, "sleep", "1000")
    done = machine.inside(*engine, *line)
    assert done.returncode != 0
    assert GIVEN not in done.stderr
    assert [one["who"].split()[0] for one in machine.leases()["holders"].values()] == [
        the_other(engine)[0][9:]
    ]


@BOTH
def test_a_restart_goes_to_the_end_of_the_line(machine, engine):
    begin(machine, engine, "train", "-e", "GPU_COUNT=2", PLAIN, "sleep", "1000")
    asks = ("--rm", "-e", "GPU_COUNT=2", PLAIN, "sh", "-c", LOOK)
    waits = machine.begin_start(the_other(engine), *asks)
    try:
        until(lambda: machine.leases()["waiters"], 60)
        done = machine.inside(*engine, "restart", "-t", "0", "train")
        assert done.returncode == 0, done.stderr
        # It came to an end before the container was there again.
        assert waits.wait(0) == 0
        assert waits.stdout
        assert seen(waits.stdout.read())[0] == only(0, 1)
    finally:
        waits.kill()
        waits.communicate()
    again = machine.inside(*engine, "exec", "train", "sh", "-c", LOOK)
    assert seen(again.stdout)[0] == only(0, 1)


def test_a_restart_by_dockerd_itself_is_a_new_lease(machine):
    """`--restart` starts a container anew that has ended: each time by its turn."""
    asks = ("--restart", "always", "--device", "/dev/nvidia1", PLAIN, "sh", "-c", "sleep 1")
    begin(machine, DOCKER, "again", *asks)
    first = {one["since"] for one in machine.leases()["holders"].values()}
    until(lambda: {one["since"] for one in machine.leases()["holders"].values()} - first, 60)
    assert machine.inside(*DOCKER, "rm", "-f", "again").returncode == 0
    assert look(machine, PODMAN, "--device", "/dev/nvidia1", PLAIN)[0] == only(1)


@BOTH
def test_a_pause_for_ever_keeps_the_gpu_until_the_container_is_removed(machine, engine):
    begin(machine, engine, "still", "-e", "GPU_COUNT=2", PLAIN, "sleep", MARK)
    assert machine.inside(*engine, "pause", "still").returncode == 0
    machine.install(0, 1, wait_timeout=0)
    said = refused(machine, the_other(engine), "-e", "GPU_COUNT=1", PLAIN)
    assert f'GPU 0 by {engine[0][9:]} container "still"' in said
    machine.install(0, 1)
    assert machine.inside(*engine, "rm", "-f", "still").returncode == 0
    assert look(machine, the_other(engine), "-e", "GPU_COUNT=2", PLAIN)[0] == only(0, 1)
    assert marked() == []


@BOTH
def test_an_image_with_every_door_open_has_no_gpu(machine, engine):
    """What NVIDIA's own runtime heeds in an image: none of it is a wish, or a way in."""
    doors = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all", "GPU_COUNT=all")
    doors += ("NVIDIA_IMEX_CHANNELS=0", "NVIDIA_MIG_CONFIG_DEVICES=all", "AMD_VISIBLE_DEVICES=all")
    doors += ("DOCKER_RESOURCE_GPU=all", "NVIDIA_GDS=enabled", "NVIDIA_MOFED=enabled")
    machine.load("doors", *doors)
    assert look(machine, engine, "lab.test/doors")[0] == NONE
    nodes, told = look(machine, engine, "--device", "/dev/nvidia1", "lab.test/doors")
    assert nodes == only(1)
    assert not {name for name in told if name.startswith(("NVIDIA_IMEX", "DOCKER_RESOURCE"))}
