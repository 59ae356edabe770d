# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runners of Gitea under systemd: the cases, one after the other.

A service of the virtual machine runs it, and tests/soak/test_runners_v2.py reads what it tells.
"""

import json
import pathlib
import subprocess

import looks
from gpu_run_host import LOOK, STORE, Host, answers
from looks import DENIED, GIVEN, systemd_has_made_the_control_groups_and_they_are_v2
from runners_machine import ANY, GPU, Site, slice_of

from ci.runners import daemon_unit
from ci.runners.units import PRIVATE
from gpu_agent.engines import registry as registration
from gpu_agent.engines.engine import EnginesPlan

# How many times as long as elsewhere things may take here.
PATIENCE = 5
# Users that systemd makes are between these (systemd.exec(5), DynamicUser=).
FIRST_USER, LAST_USER = 61184, 65519


class Box(Host):
    """The machine in the words of tests/functional/run_machine.py."""

    def __init__(self):
        super().__init__()
        self.machine = self
        self.ok("systemctl", "start", "dbus.socket")

    @staticmethod
    def enter(*argv, stdin=None, check=True):
        return subprocess.run(
            argv, input=stdin or "", capture_output=True, text=True, timeout=240, check=check
        )

    def sh(self, script, check=True):
        return self.enter("/bin/sh", "-c", script, check=check)

    @staticmethod
    def read(path):
        return pathlib.Path(path).read_text()

    @staticmethod
    def write(path, text, mode=0o644):
        file = pathlib.Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    @staticmethod
    def leases():
        return json.loads(STORE.read_text()) if STORE.exists() else {}

    def end_all(self):
        self.sh("systemctl stop 'gpu-ci-run@*.service' 'gpu-run-*.scope'; true")


class Runners(Site):
    """The machine, a stand-in for Gitea, and the daemon that keeps runners."""

    def __init__(self):
        super().__init__(Box(), PATIENCE)
        # Without the distribution's containerd Docker has one of its own.
        registration.ensure(EnginesPlan(("docker",), ("docker",), socket_taken=True))
        self.sh("mkdir -p /opt/gpu-ci/app; ln -s /srv/charm /opt/gpu-ci/app/current")
        self.sh("systemctl start docker; docker load -i /soak/plain.tar")
        self.configure(rests=True)

    def evidence(self):
        return f"{self.look()}\n{self.box.evidence()}"

    def clear(self):
        self.settle()
        self.wait(self.is_ready)

    def hold(self, script="/srv/job hold go"):
        """A job that holds a GPU, and the index of that."""
        run = self.push(one=(GPU, script))
        self.wait(lambda: "uuids" in self.told(run, "one"))
        (uuid,) = self.told(run, "one")["uuids"]
        return run, self.uuids.index(uuid)

    def people_get(self, *words):
        """What a command of gpu-run's with these options sees of both GPUs."""
        done = self.box.gpu_run(*words, "--", "sh", "-c", f"echo begins; {LOOK}")
        # gpu-run itself says before that it has waited.
        return answers(done.stdout.partition("begins\n")[2])


def the_charms_own_unit_begins_where_systemd_has_made_no_user_yet(site):
    """The other cases are in it: it keeps much from the daemon."""
    assert not PRIVATE.exists()
    assert daemon_unit.rest(rests=False)


def assert_opens_its_own(site, seen):
    """A job, its shell and its child in a session of its own open its GPUs and no others."""
    mine = {f"nvidia{site.uuids.index(uuid)}" for uuid in seen["uuids"]}
    wanted = {node: "ENXIO" if node in mine else "EPERM" for node in ("nvidia0", "nvidia1")}
    assert seen["nodes"] == seen["shell"] == seen["child"] == wanted, seen
    assert FIRST_USER <= seen["uid"] <= LAST_USER, seen


def jobs_open_their_own_gpus_and_no_others(site):
    look = "/srv/job look; /srv/job hold go"
    run = site.push(a=(GPU, look), b=(GPU, look))
    site.wait_for(run, a="in_progress", b="in_progress")
    # Both runners with a GPU are busy: this one is for the runner without.
    without = site.result(site.push(one=(ANY, "/srv/job look")), "one")
    assert without["uuids"] == [], without
    site.let_go("go")
    seen = [site.result(run, job) for job in "ab"]
    assert sorted(one["uuids"] for one in seen) == [[uuid] for uuid in site.uuids], seen
    for one in (without, *seen):
        assert_opens_its_own(site, one)


def a_daemon_reload_opens_nothing(site):
    """systemd loads its rules on devices again then."""
    run, _ = site.hold("/srv/job hold go; /srv/job look")
    site.sh("systemctl daemon-reload; systemctl daemon-reexec")
    site.let_go("go")
    assert_opens_its_own(site, site.result(run, "one"))


def what_a_job_leaves_in_the_background_ends_with_it_and_its_gpu_is_free(site):
    # It goes on for much longer than this case waits.
    leave = """setsid /srv/job claim 10000 >said 2>&1 &
        until grep TOLD said; do sleep 0.2; done"""
    run = site.push(one=(GPU, leave))
    assert len(site.result(run, "one")["uuids"]) == 1
    site.wait(lambda: not site.see("pgrep -f '[/]srv/job claim'"))
    # The runners that have taken the place of the job's give way.
    assert site.people_get("--gpus", "2") == [GIVEN, GIVEN]


def a_killed_runners_gpu_is_free_and_until_then_nobody_elses(site):
    run, mine = site.hold()
    unit = site.runner_of(run, "one")
    site.box.both_are_taken()
    theirs = [DENIED if index == mine else GIVEN for index in (0, 1)]
    assert site.people_get() == theirs
    assert site.holders()
    site.sh(f"systemctl kill -s KILL {unit}")
    assert site.people_get("--gpus", "2") == [GIVEN, GIVEN]
    assert not site.holders()
    site.wait(lambda: unit not in site.units())


BOX = "docker run --network none {} lab.test/plain"


def a_container_of_a_job_has_the_jobs_gpu_and_lies_in_its_slice(site):
    """Docker's driver here is systemd's, and makes a scope for each container."""
    site.configure(engine="docker", rests=True)
    daemon_unit.rest(rests=False)
    site.wait(site.is_ready)
    look = "cat /dev/nvidia0; cat /dev/nvidia1; cat /proc/self/cgroup"
    script = (
        f"{BOX.format('--rm --gpus all --cgroupns host')} sh -c '{look}' 2>&1 || true",
        f"{BOX.format('--rm --gpus 2')} true 2>&1 || true",
        f"{BOX.format('-d --restart always --gpus all')} sleep 10000",
        "/srv/job hold go",
    )
    run = site.push(one=(GPU, "; ".join(script)))
    site.wait(lambda: "uuids" in site.told(run, "one"))
    (uuid,) = site.told(run, "one")["uuids"]
    mine = site.uuids.index(uuid)
    seen = "\n".join(site.log(run, "one"))
    assert f"/dev/nvidia{mine}: No such device" in seen.replace("'", ""), seen
    assert f"/dev/nvidia{1 - mine}: No such file" in seen.replace("'", ""), seen
    assert "not-in-job" in seen, seen
    its = slice_of(site.runner_of(run, "one"))
    assert f"0::/gpucirunner.slice/{its}/docker-" in seen, seen
    site.let_go("go")
    site.result(run, "one")
    site.wait(lambda: not site.see("docker ps -aq"))
    assert site.people_get("--gpus", "2") == [GIVEN, GIVEN]


CASES = [
    the_charms_own_unit_begins_where_systemd_has_made_no_user_yet,
    systemd_has_made_the_control_groups_and_they_are_v2,
    jobs_open_their_own_gpus_and_no_others,
    a_daemon_reload_opens_nothing,
    what_a_job_leaves_in_the_background_ends_with_it_and_its_gpu_is_free,
    a_killed_runners_gpu_is_free_and_until_then_nobody_elses,
    a_container_of_a_job_has_the_jobs_gpu_and_lies_in_its_slice,
]

looks.run(CASES, Runners())
