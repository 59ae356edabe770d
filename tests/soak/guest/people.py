# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-run, podman and Docker under systemd: the cases, one after the other.

A service of the virtual machine runs it, and tests/soak/test_people_v2.py reads what it tells.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess

import looks
from doors import (
    a_descriptor_sent_to_the_other_engines_container_ends_that,
    a_storm_at_the_door_and_its_death_leave_gpus_to_who_has_them,
    only_the_workers_own_group_reaches_garden,
)
from gpu_run_host import LOOK, POLICY, STORE, Host, answers
from looks import ABSENT, DENIED, GIVEN, systemd_has_made_the_control_groups_and_they_are_v2
from worker import CGROUPS, until

from gpu_agent.availability import lease_report as leases
from gpu_agent.engines import registry as registration
from gpu_agent.engines.engine import EnginesPlan

IMAGE = "lab.test/plain"
SLEEP = ("sleep", "1000")


class Machine(Host):
    """A machine with podman, Docker, and gpu-run for alice."""

    def __init__(self):
        super().__init__()
        names = ("docker", "podman")
        registration.ensure(EnginesPlan(names, names, socket_taken=True))
        self.ok("systemctl", "start", "docker")
        for engine in ("podman", "docker"):
            self.ok(engine, "load", "-i", "/soak/plain.tar")

    @staticmethod
    def sees():
        return json.loads(leases.as_json())["containers"]

    def holder(self):
        """The only one: its name, and what the table and gpu-leases say of it."""
        ((name, seen),) = self.sees().items()
        return name, json.loads(STORE.read_text())["holders"][name], seen

    @staticmethod
    def pid_files():
        if not STORE.exists():
            return []
        holders = json.loads(STORE.read_text())["holders"].values()
        return [pathlib.Path(one["pid_file"]) for one in holders]

    def clear(self):
        """End all that has a GPU."""
        POLICY.write_text(json.dumps(self.policy))
        if not self.sees():
            return
        self.do("systemctl", "stop", "gpu-run-*.scope", "gpu-ci-run@*.service")
        self.do("podman", "rm", "-f", "-t", "0", "-a")
        names = self.do("docker", "ps", "-aq").stdout.split()
        self.do("docker", "rm", "-f", *names) if names else None
        # The leases of what is over, which the next one would find so.
        shutil.rmtree(STORE.parent)


def group_of(pid):
    """The only control group of a process."""
    (line,) = pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return line.removeprefix("0::")


def a_command_sees_its_gpu_and_no_other(machine):
    done = machine.gpu_run("--gpu", "1", "--", "sh", "-c", f"{LOOK}; cat /proc/self/cgroup")
    *said, group = done.stdout.splitlines()
    assert group.startswith("0::/gpurun.slice/gpu-run-"), done
    # Where it could not be confined it would say so in a line before.
    assert answers("\n".join(said)) == [DENIED, GIVEN], done
    machine.both_are_free()


def what_is_left_in_the_background_keeps_its_gpus(machine):
    command = "setsid sleep 1000 >/dev/null 2>&1 & echo $!"
    done = machine.gpu_run("--gpus", "2", "--", "sh", "-c", command)
    pid = int(done.stdout)
    name, noted, seen = machine.holder()
    assert seen["in_use"], seen
    assert noted["cgroup"] == group_of(pid) == f"/gpurun.slice/{name}", noted
    below = CGROUPS / "gpurun.slice" / name / "below"
    below.mkdir()
    (below / "cgroup.procs").write_text(str(pid))
    machine.both_are_taken()
    (below.parent / "cgroup.freeze").write_text("1")
    machine.both_are_taken()
    (below.parent / "cgroup.freeze").write_text("0")
    os.kill(pid, signal.SIGKILL)
    machine.both_are_free()


def a_daemon_reload_opens_nothing(machine):
    """systemd loads its rules on devices anew then."""
    rest = "until [ -e /tmp/go ]; do sleep 0.2; done"
    waiting = subprocess.Popen(
        ["setpriv", "--reuid", "alice", "--regid", "alice", "--init-groups", "--"]
        + ["gpu-run", "--gpu", "0", "--", "sh", "-c", f"{rest}; {LOOK}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    until(60, "it runs", lambda: machine.sees() and machine.holder()[1]["execs"])
    machine.ok("systemctl", "daemon-reload")
    machine.ok("systemctl", "daemon-reexec")
    pathlib.Path("/tmp/go").touch()
    said = waiting.communicate(timeout=60)[0]
    assert answers(said) == [GIVEN, DENIED], said


def a_container_holds(machine, *command):
    """It sees its GPU, paused it keeps that, and its end gives it back. Its control group.

    Where that was to be was known before it was there: else a start that hangs could not be ended.
    """
    engine = "docker" if "docker" in command else "podman"
    wish = ("--gpus", "device=1") if engine == "docker" else ("--device", "/dev/nvidia1")
    machine.ok(*command, *wish, "--name", "holds", IMAGE, *SLEEP)
    until(120, "it is there", lambda: any(map(pathlib.Path.exists, machine.pid_files())))
    _, noted, seen = machine.holder()
    assert seen["who"] == f'{engine} container "holds"', seen
    assert seen["in_use"], seen
    real = group_of(pathlib.Path(noted["pid_file"]).read_text())
    assert noted["cgroup"] == real, (noted["cgroup"], real)
    said = machine.do(engine, "exec", "holds", "sh", "-c", LOOK).stdout
    assert answers(said) == [ABSENT, GIVEN], said
    machine.ok(engine, "pause", "holds")
    machine.both_are_taken()
    machine.ok(engine, "unpause", "holds")
    machine.ok(engine, "kill", "holds")
    machine.both_are_free()
    machine.do(engine, "rm", "-f", "holds")
    return real


def podmans_container_in_a_scope_of_systemds_is_known(machine):
    group = a_container_holds(machine, "podman", "run", "-d")
    assert group.startswith("/machine.slice/libpod-"), group


def podmans_container_in_a_group_of_its_own_is_known(machine):
    group = a_container_holds(machine, "podman", "--cgroup-manager=cgroupfs", "run", "-d")
    assert "libpod_parent/libpod-" in group, group


def podmans_container_in_a_service_is_known(machine):
    """As systemd's units for podman have it: container and monitor in groups of the unit's."""
    unit = ("systemd-run", "--quiet", "--collect", "--unit=quadlet", "-p", "Delegate=yes")
    group = a_container_holds(machine, *unit, "podman", "run", "--cgroups=split", "--rm")
    assert group.startswith("/system.slice/quadlet.service/libpod-payload-"), group


def dockers_container_in_a_scope_of_systemds_is_known(machine):
    group = a_container_holds(machine, "docker", "run", "-d")
    assert group.startswith("/system.slice/docker-"), group


def dockers_container_in_a_slice_is_known(machine):
    group = a_container_holds(machine, "docker", "run", "-d", "--cgroup-parent=lab-some.slice")
    assert group.startswith("/lab.slice/lab-some.slice/docker-"), group


def all_nodes_of_the_machine_open_none_but_the_leases(machine):
    words = ("run", "--rm", "-v", "/dev:/dev", "-e", "GPU_COUNT=1", IMAGE, "sh", "-c", LOOK)
    for engine in ("podman", "docker"):
        said = machine.do(engine, *words).stdout
        # runc warns of nodes without a device.
        lines = [line for line in said.splitlines() if not line.startswith("time=")]
        assert sorted(answers("\n".join(lines))) == [GIVEN, DENIED], said


def a_privileged_container_opens_none_but_its_leases(machine):
    """Its rules allow all devices, so what it may not have is forbidden one by one."""
    make = "for n in 0 1; do mknod /tmp/n$n c 195 $n; cat /tmp/n$n; done"
    for engine in ("podman", "docker"):
        said = machine.do(engine, "run", "--rm", "--privileged", IMAGE, "sh", "-c", make).stdout
        assert answers(said) == [DENIED, DENIED], said
    POLICY.write_text(json.dumps({**machine.policy, "privileged_tasks": "gpu"}))
    wish = ("--privileged", "-e", "GPU_COUNT=1")
    for engine in ("podman", "docker"):
        said = machine.do(engine, "run", "--rm", *wish, IMAGE, "sh", "-c", make).stdout
        assert sorted(answers(said)) == [GIVEN, DENIED], said


CASES = [
    systemd_has_made_the_control_groups_and_they_are_v2,
    a_command_sees_its_gpu_and_no_other,
    what_is_left_in_the_background_keeps_its_gpus,
    a_daemon_reload_opens_nothing,
    podmans_container_in_a_scope_of_systemds_is_known,
    podmans_container_in_a_group_of_its_own_is_known,
    podmans_container_in_a_service_is_known,
    dockers_container_in_a_scope_of_systemds_is_known,
    dockers_container_in_a_slice_is_known,
    all_nodes_of_the_machine_open_none_but_the_leases,
    a_privileged_container_opens_none_but_its_leases,
    a_descriptor_sent_to_the_other_engines_container_ends_that,
    a_storm_at_the_door_and_its_death_leave_gpus_to_who_has_them,
    only_the_workers_own_group_reaches_garden,
]

looks.run(CASES, Machine())
