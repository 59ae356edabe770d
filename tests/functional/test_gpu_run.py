# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-run under a real systemd, with simulated GPUs: what people get of it."""

import json
import pathlib
import re
import shlex

import pytest

from tests.functional import lease_site, run_machine, selftest_machine
from tests.functional.run_machine import GROUP, SEES, SERVES, SLICE

pytestmark = selftest_machine.NEEDS

PAGE = pathlib.Path(__file__).parents[2] / "docs/how-to/share-a-gpu-machine.md"
# How GitLab's runner starts a job with its shell executor: a login shell in a process group of its
# own, which reads a script that takes no input; by su where the runner is root's service, as its
# package has it. To cancel it, it signals the group (gitlab-runner shells/bash.go,
# executors/shell/shell.go, helpers/process/killer_unix.go).
SU = "su -s /bin/bash gitlab-runner -c".split()
RUNNER = """
import os, pathlib, subprocess, sys
folder = pathlib.Path("/srv/said")
with open(folder / "job", "w") as log:
    job = subprocess.Popen(sys.argv[1:], stdin=-1, stdout=log, stderr=log, preexec_fn=os.setpgrp)
    (folder / "group").write_text(str(job.pid))
    job.communicate((folder / "script").read_bytes())
(folder / "ended").write_text(str(job.returncode))
"""
SCRIPT = """set -eo pipefail
trap 'exit 1' TERM
: | eval $'cd builds\\necho {0}\\n{0}\\n'
exit 0
"""
FIRST = ["/dev/nvidia0", "/dev/nvidiactl", "/dev/null"]
SECOND = ["/dev/nvidia1", "/dev/nvidiactl", "/dev/null"]


@pytest.fixture(scope="module")
def installed():
    with run_machine.started("gpurun") as box:
        yield box


@pytest.fixture
def box(installed):
    yield installed
    installed.settle()


def test_a_command_has_its_gpus_and_no_others_and_is_its_callers_own(box):
    script = f"{SEES}\nid -un; id -Gn; pwd; umask; ulimit -n; cat /proc/self/cgroup; env; exit 7"
    before = 'umask 027; ulimit -n 99; exec gpu-run --gpus 1 -- sh -c "$0"'
    done = box.machine.run(
        box.command("alice", "LC_ALL=", "MINE=yes", "sh", "-c", before, script), check=False
    )
    assert (done.returncode, done.stderr) == (7, "")
    told = done.stdout.splitlines()
    assert told[:3] == FIRST
    assert told[3:8] == ["alice", f"alice {GROUP}", "/home/alice", "0027", "99"]
    groups = [line for line in told if line.partition(":")[0].isdecimal()]
    assert SLICE in next((one for one in groups if ":devices:" in one), groups[-1])
    told_of = dict(line.split("=", 1) for line in told if "=" in line and ":" not in line[:4])
    assert told_of["MINE"] == "yes"
    assert "LC_CTYPE" not in told_of
    (device,) = json.loads(told_of["GPU_CI_DEVICES"])
    assert (device["index"], told_of["GPU_COUNT"]) == (0, "1")
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        assert told_of[name] == device["uuid"]


def test_two_have_one_each_and_the_third_waits_for_its_turn_and_is_told_so(box):
    first = box.wait_runs(box.begin("first", "sleep", "1000"), "alice: sleep")
    box.begin("second", "sh", "-c", f"{SEES}; sleep 1000", user="bob")
    box.wait_runs("second", "bob: sh")
    lease_site.until(lambda: len(box.said("second.out").split()) == 3, 60)
    assert box.said("second.out").split() == SECOND
    box.begin("third", "sh", "-c", SEES)
    box.wait_said("third", "waiting")
    assert box.said("third").startswith(
        "gpu-run: waiting for 1 GPU: position 1 in the queue; gpu-run of alice: sleep holds GPU 0"
    )
    assert "gpu-run of bob: sh holds GPU 1" in box.said("third")
    listed = box.run("--list").stdout
    assert "queue: 1 request\n" in listed
    assert len(json.loads(box.run("--list", "--json").stdout)["queue"]) == 1
    box.sh(f"systemctl stop {first}")
    lease_site.until(lambda: len(box.said("third.out").split()) == 3, 60)
    assert box.said("third.out").split() == FIRST
    assert "got GPU 0 after" in box.said("third")


@pytest.mark.parametrize("signal", ["INT", "TERM", "KILL"])
def test_who_ends_while_it_waits_leaves_nothing(box, signal):
    box.wait_runs(box.begin("all", "--gpus", "all", "sleep", "1000"), "alice: sleep")
    box.begin("waits", "true", user="bob")
    box.wait_said("waits", "position 1 in the queue")
    box.sh(f"kill -{signal} {box.pid('waits')}")
    lease_site.until(lambda: not box.leases()["waiters"], 60)
    box.wait(f"! {SERVES}")


def test_a_background_process_keeps_the_gpu_and_its_end_gives_it_back(box):
    done = box.run("--gpus", "2", "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & exit 3")
    assert done.returncode == 3
    unit = box.holder("alice: sh")
    refused = box.run("--timeout", "0", "true", user="bob")
    assert refused.returncode == 124
    assert refused.stderr.startswith("gpu-run: wait-timeout: ")
    assert "GPU 0 by gpu-run of alice: sh" in refused.stderr
    box.sh(f"systemctl kill {unit}")
    assert box.run("--gpus", "2", "true", user="bob").returncode == 0


def test_signals_while_it_runs_are_the_commands_own(box):
    box.wait_runs(
        box.begin("one", "sh", "-c", "trap 'exit 5' INT; echo up; while :; do sleep 0.1; done"),
        "alice: sh",
    )
    lease_site.until(lambda: "up" in box.said("one.out"), 60)
    box.sh(f"kill -INT {box.pid('one')}")
    box.wait("! systemctl -q is-active test-one")
    assert "status=5" in box.sh("journalctl -u test-one -o cat").stdout
    itself = "gpu-run python3 -c 'import os; os.kill(os.getpid(), 15)'; exit $?"
    assert box.machine.run(box.command("bob", "sh", "-c", itself), check=False).returncode == 143


def test_which_and_how_many(box):
    named = box.run("--gpu", "1", "sh", "-c", SEES)
    assert named.stdout.split() == SECOND
    uuid = json.loads(box.run("--json", "--gpu", "1", "true").stderr)["gpus"][0]["uuid"]
    assert box.run("--gpu", uuid.upper(), "sh", "-c", SEES).stdout.split() == SECOND
    both = box.run("--gpus", "all", "sh", "-c", SEES).stdout.split()
    assert both == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/null"]
    box.wait_runs(box.begin("one", "--gpu", "0", "sleep", "1000"), "alice: sleep")
    some = box.run("--gpus", "2", "--any", "sh", "-c", SEES, user="bob")
    assert some.stdout.split() == SECOND
    box.begin("very", "--gpu", "0", "true", user="bob")
    box.wait_said("very", "position 1 in the queue; gpu-run of alice: sleep holds GPU 0")


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--gpus", "3", "true"], 125, "too-few-gpus: "),
        (["--gpu", "7", "true"], 125, "gpu-not-offered: "),
        (["/no/such/thing"], 127, "/no/such/thing: No such file"),
        (["/etc/passwd"], 126, "/etc/passwd: Permission denied"),
    ],
)
def test_what_cannot_be_done_is_said(box, words, status, text):
    done = box.run(*words)
    assert done.returncode == status
    assert text in done.stderr
    lease_site.until(lambda: box.run("--gpus", "2", "true").returncode == 0, 60)


def test_its_page_is_found_and_has_no_fault(box):
    page = " ".join(box.sh("man -P cat gpu-run").stdout.split())
    assert "its request is next" in page
    assert (
        box.sh("man --warnings -l /usr/local/share/man/man1/gpu-run.1 2>&1 >/dev/null").stdout
        == ""
    )


def begin_job(box, train, *, by_root=True):
    """Have the runner start the job of the page, with that as its train.sh."""
    (line,) = re.findall(r"^ +- (gpu-run .*)$", PAGE.read_text(), re.M)
    box.sh(
        f"id gitlab-runner || useradd --system -m -G {GROUP} gitlab-runner; "
        "mkdir -p -m 1777 /srv/said; install -d -o gitlab-runner ~gitlab-runner/builds"
    )
    box.machine.write("/home/gitlab-runner/builds/train.sh", train)
    box.machine.write("/srv/said/script", SCRIPT.format(line))
    box.machine.write("/srv/said/runner.py", RUNNER)
    user = "" if by_root else "-p User=gitlab-runner"
    shell = [*SU, "bash -l"] if by_root else ["bash", "-l"]
    box.sh(
        "chmod 755 ~gitlab-runner/builds/train.sh; systemd-run --quiet --unit=test-runner "
        f"--working-directory=/home/gitlab-runner --collect -p KillMode=process {user} "
        f"python3 /srv/said/runner.py {shlex.join(shell)}"
    )


def cancel(box):
    box.sh("env kill -TERM -- -$(cat /srv/said/group)")
    lease_site.until(lambda: box.said("ended"), 60)


def test_a_job_of_gitlabs_shell_executor(box):
    begin_job(box, f"#!/bin/sh\n{SEES}\nid -un; exit 3\n")
    lease_site.until(lambda: box.said("ended"), 60)
    # Any failure is a 1: GitLab's script has all commands evaluated in a pipe.
    assert (box.said("ended"), box.said("job").splitlines()) == (
        "1",
        ["gpu-run --gpus 1 --timeout 1h -- ./train.sh", *FIRST, "gitlab-runner"],
    )


def test_a_job_that_a_runner_of_its_own_user_cancels_gives_its_gpu_or_its_place_back(box):
    begin_job(box, "#!/bin/sh\nsleep 1000\n", by_root=False)
    box.wait_runs("runner", "gitlab-runner: train.sh")
    cancel(box)
    lease_site.until(lambda: box.run("--gpus", "2", "--timeout", "0", "true").returncode == 0, 60)
    box.wait_runs(box.begin("all", "--gpus", "all", "sleep", "1000"), "alice: sleep")
    box.sh("rm /srv/said/ended")
    begin_job(box, "#!/bin/sh\nsleep 1000\n", by_root=False)
    box.wait_said("job", "position 1 in the queue; gpu-run of alice: sleep holds")
    cancel(box)
    lease_site.until(lambda: not box.leases()["waiters"], 60)


def test_what_a_runner_of_roots_leaves_of_a_cancelled_job_is_named_and_can_be_ended(box):
    begin_job(box, "#!/bin/sh\nsleep 1000\n")
    unit = box.wait_runs("runner", "gitlab-runner: train.sh")
    cancel(box)
    assert "gpu-run of gitlab-runner: train.sh" in box.run("--list").stdout
    assert f"─{unit}" in box.sh("systemctl status gpurun.slice").stdout
    box.sh(f"systemctl stop {unit}")
    assert box.run("--gpus", "2", "--timeout", "30s", "true").returncode == 0


def test_a_cron_job(box):
    """The page's own line, by a timer, with what crontab(5) says that Debian's cron gives it."""
    (line,) = re.findall(r"^ +30 2 \* \* \* (.*)$", PAGE.read_text(), re.M)
    box.machine.write("/home/alice/nightly.sh", f"#!/bin/sh\n{SEES}\n")
    box.sh("chmod 755 /home/alice/nightly.sh; mkdir -p -m 1777 /srv/said")

    def start(name, line):
        box.machine.write(f"/srv/{name}", f"{line}; echo status $?\n")
        box.sh(
            f"systemd-run --quiet --unit=test-{name} --on-active=0 --collect "
            "--timer-property=AccuracySec=1ms --uid=alice --working-directory=/home/alice "
            f"-p StandardOutput=truncate:/srv/said/{name} -p StandardError=inherit "
            "env -i HOME=/home/alice LOGNAME=alice SHELL=/bin/sh PATH=/usr/bin:/bin "
            f"/bin/sh /srv/{name}"
        )
        box.wait_said(name, "status")
        return box.said(name)

    assert start("cron", line).split() == [*FIRST, "status", "0"]
    box.wait_runs(box.begin("all", "--gpus", "all", "sleep", "1000"), "alice: sleep")
    said = start("late", line.replace("--timeout 10m", "--timeout 1s"))
    assert "gpu-run: wait-timeout: timed out after 1 s" in said
    assert said.endswith("status 124\n")
