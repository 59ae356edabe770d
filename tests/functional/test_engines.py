# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The runtime gpu-ci under Debian's own podman and Docker: who asks gets a lease, nobody else.

Opening the node of a fake GPU tells what a container may do: ENXIO where it was given and the
device cgroup allows it, EPERM where that does not.
"""

import contextlib
import json

import pytest

from tests.fakes import DRIVER_VERSION
from tests.functional.containerd_worker import UUIDS
from tests.functional.engine_looks import (
    BOTH,
    CUDA,
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
from tests.functional.lease_site import alive, until

pytestmark = NEEDS


@pytest.fixture(scope="module")
def booted():
    with engine_machine() as machine:
        yield machine


@pytest.fixture
def machine(booted):
    booted.install(0, 1)
    yield booted
    booted.sweep()


@BOTH
def test_who_asks_gets_as_many_as_it_says(machine, engine):
    nodes, told = look(machine, engine, "-e", "GPU_COUNT=1", PLAIN)
    assert nodes == only(0)
    assert told["GPU_COUNT"] == "1"
    assert json.loads(told["GPU_CI_DEVICES"])[0]["uuid"] == UUIDS[0]
    assert look(machine, engine, "-e", "GPU_COUNT=all", PLAIN)[0] == only(0, 1)


@BOTH
def test_who_names_a_gpu_gets_that_one(machine, engine):
    for said in ("1", UUIDS[1]):
        assert look(machine, engine, "-e", f"NVIDIA_VISIBLE_DEVICES={said}", PLAIN)[0] == only(1)


@BOTH
def test_an_image_asks_for_nothing(machine, engine):
    """CUDA_VERSION, NVIDIA_VISIBLE_DEVICES and GPU_COUNT of its own; it runs without any GPU."""
    assert look(machine, engine, CUDA)[0] == NONE
    assert machine.leases()["holders"] == {}


@BOTH
@pytest.mark.parametrize("variables", [("X=1", "X=2", "GPU_COUNT=all"), (" GPU_COUNT=all",)])
def test_nor_does_an_odd_one(machine, engine, variables):
    """Docker drops the second of a name beside a person's variable, podman blanks before one."""
    machine.load("odd", *variables)
    assert look(machine, engine, "-e", "MINE=1", "lab.test/odd")[0] == NONE


@BOTH
def test_a_person_can_ask_with_such_an_image(machine, engine):
    assert look(machine, engine, "-e", "GPU_COUNT=1", CUDA)[0] == only(0)


def test_docker_tells_a_person_from_an_image_that_says_the_same(machine):
    words = ("-e", "NVIDIA_VISIBLE_DEVICES=all", CUDA)
    assert look(machine, DOCKER, *words)[0] == only(0, 1)
    # podman has no order among them, so what is as in the image is the image's.
    assert look(machine, PODMAN, *words)[0] == NONE


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (("--gpus", "1"), (0,)),
        (("--gpus", "all"), (0, 1)),
        (("--gpus", "device=1"), (1,)),
        (("--gpus", f"device={UUIDS[1]}"), (1,)),
    ],
)
def test_dockers_gpus(machine, words, gpus):
    """Its own hook, which would bring GPUs in beside the lease, is never run: it fails here."""
    assert look(machine, DOCKER, *words, CUDA)[0] == only(*gpus)


@BOTH
def test_a_device_is_a_wish_for_that_very_gpu(machine, engine):
    nodes, told = look(machine, engine, "--device", "/dev/nvidia1", PLAIN)
    assert (nodes, json.loads(told["GPU_CI_DEVICES"])[0]["uuid"]) == (only(1), UUIDS[1])
    mounted = ("-v", "/dev/nvidia1:/dev/nvidia1", PLAIN)
    assert look(machine, engine, *mounted)[0] == only(1)
    # What belongs to no GPU is no wish, and no way in.
    assert look(machine, engine, "--device", "/dev/nvidiactl", PLAIN)[0] == NONE


CDI = """
cdiVersion: "0.5.0"
kind: nvidia.com/gpu
devices:
- name: "1"
  containerEdits:
    deviceNodes: [{path: /dev/nvidia1}]
- name: all
  containerEdits:
    deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia1}]
containerEdits:
  deviceNodes: [{path: /dev/nvidiactl}, {path: /dev/nvidia-uvm}]
  env: ["NVIDIA_VISIBLE_DEVICES=void"]
  mounts: [{hostPath: /etc/hostname, containerPath: /etc/of-cdi, options: [ro, bind]}]
  hooks: [{hookName: createContainer, path: /usr/bin/nvidia-cdi-hook, args: [nvidia-cdi-hook]}]
"""


def test_podmans_cdi_names(machine):
    """Nodes, mounts and hooks of the CDI file are out: the hook does not even exist here."""
    machine._put("/etc/cdi/nvidia.yaml", CDI)
    for name, gpus in (("1", (1,)), ("all", (0, 1))):
        words = ("--device", f"nvidia.com/gpu={name}", PLAIN)
        done = machine.start(PODMAN, "--rm", *words, "sh", "-c", f"{LOOK}; cat /etc/of-cdi")
        assert seen(done.stdout)[0] == only(*gpus), done.stderr
        assert "of-cdi" in done.stderr
    machine.path("/etc/cdi/nvidia.yaml").unlink()


@BOTH
def test_a_mount_of_null_asks_as_for_nvkind(machine, engine):
    words = ("-v", "/dev/null:/var/run/nvidia-container-devices/1", PLAIN)
    assert look(machine, engine, *words)[0] == only(1)


@BOTH
def test_it_is_refused_in_words(machine, engine):
    def said(*words):
        return refused(machine, engine, *words, PLAIN)

    assert "too-few-gpus: " in said("-e", "GPU_COUNT=3")
    assert "gpu-count-invalid: " in said("-e", "GPU_COUNT=two")
    assert "gpu-not-offered: GPU 7 " in said("-e", "NVIDIA_VISIBLE_DEVICES=7")
    machine.install(1)
    assert "gpu-not-offered: /dev/nvidia0 " in said("--device", "/dev/nvidia0")
    machine.path("/etc/gpu-ci/policy.json").write_text('{"version": 3, "gpus": []}')
    assert "gpus-disabled: " in said("-e", "GPU_COUNT=1")
    machine.path("/etc/gpu-ci/policy.json").write_text("{")
    assert "policy-unreadable: " in said("-e", "GPU_COUNT=1")
    # None of that is a reason to stop who asks for nothing.
    assert look(machine, engine, PLAIN)[0] == NONE


@BOTH
def test_what_an_image_requires_of_the_driver_is_checked(machine, engine):
    """The kernel of this machine shows driver 580.95.05, and the charm has asked NVML for CUDA."""
    machine.install(0, 1, driver=DRIVER_VERSION, cuda="13.0")
    machine.load("needy", "NVIDIA_REQUIRE_CUDA=cuda>=13.1 driver>=590", "CUDA_VERSION=13.1.0")
    asks = ("-e", "GPU_COUNT=1")
    said = refused(machine, engine, *asks, "lab.test/needy")
    assert "gpu-ci-worker: requirement-unmet: " in said
    assert f"this worker has CUDA 13.0, NVIDIA's driver {DRIVER_VERSION}. " in said
    assert machine.leases()["holders"] == {}
    off = ("-e", "NVIDIA_DISABLE_REQUIRE=true")
    assert look(machine, engine, *asks, *off, "lab.test/needy")[0] == only(0)
    # A driver that came after the charm's last look can do no less than the kernel shows.
    machine.install(0, 1, driver="575.57.08", cuda="12.9")
    assert look(machine, engine, *asks, "lab.test/needy")[0] in (only(0), only(1))
    assert look(machine, engine, "lab.test/needy")[0] == NONE


def wait_for(machine, count):
    until(lambda: len(machine.leases()["holders"]) == count, 60)


@BOTH
def test_a_lease_lasts_as_long_as_its_container(machine, engine):
    """With a process in the background, a pause, an exec, a restart; then another gets the GPU."""
    other = the_other(engine)
    line = "setsid sleep 1000 & sleep 1000"
    done = machine.start(
        engine, "-d", "--name", "train", "-e", "GPU_COUNT=2", CUDA, "sh", "-c", line
    )
    assert done.returncode == 0, done.stderr
    ((name, holder),) = machine.leases()["holders"].items()
    assert name.startswith(done.stdout.strip()[:12])
    assert (holder["kind"], holder["who"]) == ("container", f'{engine[0][9:]} container "train"')
    machine.install(0, 1, wait_timeout=0)
    assert "wait-timeout: timed out after 0 s " in refused(
        machine, other, "-e", "GPU_COUNT=1", PLAIN
    )
    inside = machine.inside(*engine, "exec", "train", "sh", "-c", LOOK)
    nodes, told = seen(inside.stdout)
    assert (nodes, told["GPU_COUNT"]) == (only(0, 1), "2"), inside.stderr
    machine.inside(*engine, "pause", "train")
    assert "wait-timeout: timed out after 0 s " in refused(
        machine, other, "-e", "GPU_COUNT=1", PLAIN
    )
    machine.inside(*engine, "unpause", "train")
    assert machine.inside(*engine, "restart", "-t", "0", "train").returncode == 0
    assert seen(machine.inside(*engine, "exec", "train", "sh", "-c", LOOK).stdout)[0] == only(0, 1)
    machine.inside(*engine, "kill", "train")
    until(lambda: machine.inside(*engine, "exec", "train", "true").returncode != 0, 60)
    machine.install(0, 1)
    assert look(machine, other, "-e", "GPU_COUNT=2", PLAIN)[0] == only(0, 1)
    assert machine.inside(*engine, "exec", "train", "cat", "/dev/nvidia0").returncode != 0


@BOTH
def test_who_waits_is_served_when_a_gpu_comes_free(machine, engine):
    machine.start(
        engine, "-d", "--name", "one", "--device", "/dev/nvidia0", PLAIN, "sleep", "1000"
    )
    waits = machine.begin_start(
        engine, "--rm", "--device", "/dev/nvidia0", PLAIN, "sh", "-c", LOOK
    )
    try:
        until(lambda: machine.leases()["waiters"], 60)
        # The other GPU is free all the time.
        assert look(machine, engine, "-e", "GPU_COUNT=1", PLAIN)[0] == only(1)
        assert waits.poll() is None
        machine.inside(*engine, "kill", "one")
        assert seen(waits.communicate(timeout=60)[0])[0] == only(0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            waits.kill()
        waits.communicate()


def test_a_podman_that_is_killed_while_it_waits_leaves_nothing(machine):
    """Its monitor would have the container made, with GPUs, and nobody would know it."""
    machine.start(PODMAN, "-d", "--name", "one", "-e", "GPU_COUNT=2", PLAIN, "sleep", "1000")
    waits = machine.begin_start(PODMAN, "--name", "two", "-e", "GPU_COUNT=1", PLAIN, "true")
    until(lambda: machine.leases()["waiters"], 60)
    (waiter,) = machine.leases()["waiters"]
    waits.kill()
    waits.communicate()
    until(lambda: not alive(waiter["call"][0]), 60)
    assert [*machine.leases()["holders"]] != [waiter["container"]]


def test_it_is_registered_with_both_and_taken_away(machine):
    """Docker takes it over under a container that runs, which it would lose by a restart."""
    conf, daemon = "/etc/containers/containers.conf", "/etc/docker/daemon.json"
    machine._put(conf, machine.path(conf).read_text().partition("[engine.runtimes]")[0])
    former = machine.path(daemon).read_text()
    machine.register()
    before = {path: machine.path(path).read_text() for path in (conf, daemon)}
    assert "runtimes" not in json.loads(before[daemon])
    before[""] = machine.inside("ls", "-R", "/etc/containers", "/etc/docker").stdout
    stays = machine.inside(*DOCKER, "run", "-d", PLAIN, "sleep", "1000").stdout.strip()
    machine.install(0, 1)
    assert machine.register("podman", "docker", default=True) == "True"
    assert machine.register("podman", "docker", default=True) == "False"
    more = (f"--cgroup-parent={machine.parent}",)
    for engine, words in ((PODMAN, more), (DOCKER, ())):
        asks = ("--rm", "-e", "GPU_COUNT=1", PLAIN, "sh", "-c", LOOK)
        done = machine.inside(*engine, "run", *words, *asks)
        assert seen(done.stdout)[0] in (only(0), only(1)), done.stderr
    assert stays in machine.inside(*DOCKER, "ps", "-q", "--no-trunc").stdout
    # A container that it has started can be stopped when it is gone.
    machine.start(DOCKER, "-d", "--name", "late", PLAIN, "sleep", "1000")
    assert machine.register() == "True"
    assert machine.path("/opt/gpu-ci/engines/gpu-ci").is_symlink()
    assert machine.inside(*DOCKER, "rm", "-f", "late").returncode == 0
    assert machine.register() == "True"
    assert not machine.path("/opt/gpu-ci/engines").exists()
    assert machine.inside(*DOCKER, "run", "--rm", PLAIN, "true").returncode == 0
    assert "gpu-ci" not in machine.inside(*DOCKER, "info", "-f", "{{json .Runtimes}}").stdout
    assert {path: machine.path(path).read_text() for path in (conf, daemon)} == {
        path: before[path] for path in (conf, daemon)
    }
    assert machine.inside("ls", "-R", "/etc/containers", "/etc/docker").stdout == before[""]
    machine._put(daemon, former)
    machine.register("podman", "docker")
