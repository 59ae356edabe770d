# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A GPU dies under a job: what its author, the next job and the operator see, and the way back."""

import os
import subprocess
import time

import pytest

from tests.lab.leases import Tasks
from tests.lab.session import ROOT
from tests.lab.site import READY
from tests.lab.watching import SERVICE, Watch

RETESTS = "/var/lib/gpu-ci/retests"
SOAK = "GPUCI_SOAK" in os.environ
pytestmark = pytest.mark.usefixtures("watched")


@pytest.fixture(scope="module")
def mended(site):
    """The watch, where all is well; and again after this file, with the status others expect."""
    watch = Watch(site)
    # Other files' tests may have provoked faults.
    watch.begin()
    yield watch
    watch.begin()
    site.lab.model.run_action("worker/0", "gpu-selftest", {"level": "quick"})
    site.lab.settle()
    assert site.status() == READY


@pytest.fixture
def watch(mended):
    """The watch; what a test leaves out of use is well again afterwards."""
    yield mended
    if mended.reasons():
        mended.begin()


@pytest.fixture
def tasks(site):
    tasks = Tasks(site)
    yield tasks
    tasks.end()


def test_the_labs_status_shows_a_sick_gpu_without_another_command(site, watch):
    env = {**os.environ, "GPUCI_LAB_DIR": str(site.lab.state_dir)}

    def lab(*arguments):
        command = [str(ROOT / "lab"), *arguments]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    since = site.sh("date +%s").strip()
    begun = time.monotonic()
    lab("gpu", "xid", "worker/0", "0", "79")
    ended = time.monotonic()
    while "1 quarantined: GPU 0 (" not in (table := lab("status")):
        assert time.monotonic() - ended < 20, table
        time.sleep(0.5)
    print(f"the command took {ended - begun:.1f} s, status {time.monotonic() - ended:.1f} s more")
    said = site.sh(f"journalctl --since=@{since} -u {SERVICE} --no-pager; true")
    # Each wake that failed would have the watch ask more seldom: after 30, 60, 120 s.
    assert "cannot wake the charm" not in said


def test_a_gpu_dies_under_a_job(site, watch, tasks):
    victim = tasks.start("victim")
    (card,) = victim.cards()
    took = watch.faults(card, ("set", str(card), "field-230=1"), ("xid", str(card), "79"))
    print(f"no lease is granted on it after {took:.1f} s")
    # The author reads in the job's own log what it was.
    said = victim.build.line(rf"\[gpu-ci\] GPU {card} failed \(", 60).string
    # Whichever of its two signs was seen first.
    assert "Xid 79" in said or "its driver asks for a reset of the GPU" in said
    assert "hardware, not your change" in said
    # The next job gets the other GPU; a job that wants both fails with the reason.
    other = tasks.start("other")
    assert other.cards() == [1 - card]
    assert other.end() == 0
    refused = site.task("true", params={"GPU_COUNT": "2"})
    assert refused.returncode
    assert "gpu-ci-worker: too-few-gpus: " in refused.stdout
    assert f"GPU {card} is quarantined: " in refused.stdout
    # The operator: status without an event of Juju's, and what the alert is about.
    assert watch.status_says(f"1 quarantined: GPU {card} ("), site.status()
    assert sum(watch.metric(r"gpuci_gpu_quarantined\{")) == 1
    # The job itself is left alone.
    victim.answer()
    # A reset repairs the card, without an action. Its test waits for the job, and comes at its
    # end without an event of Juju's.
    watch.fake("reset", str(card))
    watch.until(lambda: site.sh(f"ls {RETESTS}/{watch.uuid(card)}.json 2>&-; true"))
    victim.answer()
    assert watch.out().keys() == {watch.uuid(card)}
    assert victim.end() == 0
    assert watch.status_says("2x NVIDIA, self-test of one GPU passed"), watch.journal()
    assert watch.out() == {}
    after = tasks.start("after", GPU_COUNT="2")
    assert after.cards() == [0, 1]
    assert after.end() == 0


def test_a_jobs_own_fault_takes_nothing_from_anybody(site, watch, tasks):
    culprit = tasks.start("culprit")
    (card,) = culprit.cards()
    watch.fake("xid", str(card), "13")
    said = culprit.build.line(rf"\[gpu-ci\] GPU {card}: Xid 13", 60).string
    assert "usually a program bug" in said
    assert culprit.end() == 0
    assert watch.reasons() == {}
    both = tasks.start("both", GPU_COUNT="2")
    assert both.cards() == [0, 1]
    assert both.end() == 0


def test_memory_that_a_job_leaves_behind_keeps_its_gpu_from_others_until_it_is_free(
    site, watch, tasks
):
    leaver = tasks.start("leaver")
    (card,) = leaver.cards()
    watch.fake("memory", str(card), "30000")
    assert leaver.end() == 0
    watch.until(lambda: watch.uuid(card) in watch.reasons())
    assert "taken without a process" in watch.reasons()[watch.uuid(card)]
    assert watch.out() == {}, "the GPU is not at fault"
    watch.until(lambda: sum(watch.metric(r"gpuci_gpu_external\{")) == 1)
    other = tasks.start("other")
    assert other.cards() == [1 - card]
    assert other.end() == 0
    watch.fake("set", str(card), "memory-used-mib=")
    watch.until(lambda: watch.reasons() == {})
    both = tasks.start("both", GPU_COUNT="2")
    assert both.cards() == [0, 1]
    assert both.end() == 0


# The unit as the charm wrote it, but that its watch waits for seconds in place of minutes.
IMPATIENT = f"""
mkdir -p /run/systemd/system/{SERVICE}.d
cat >/run/systemd/system/{SERVICE}.d/impatient.conf <<'END'
[Service]
ExecStart=
ExecStart=/usr/bin/python3 -B -c "import gpu_agent.health.__main__ as watch; \
import gpu_agent.reporting.joblog.idle_jobs as unused; \
unused.PATIENCE = 5.0; watch.main()"
END
systemctl daemon-reload; systemctl restart {SERVICE}
"""
PATIENT = f"""
rm -rf /run/systemd/system/{SERVICE}.d; systemctl daemon-reload; systemctl restart {SERVICE}
"""
SANDBOX = f"systemctl show -P ProtectSystem -P NoNewPrivileges -P CapabilityBoundingSet {SERVICE}"


@pytest.fixture
def ending(site, watch):
    """Steps that use no GPU are ended; in `make soak` after as long as an operator has it."""
    site.configure(idle_gpu_action="fail")
    site.sh("true" if SOAK else IMPATIENT)
    yield
    for card in ("0", "1"):
        watch.fake("busy", card, "0")
    site.sh(PATIENT)
    site.configure(reset=("idle-gpu-action",))


def test_a_step_that_uses_no_gpu_is_ended_from_within_the_watchs_sandbox(
    site, watch, ending, tasks
):
    sandbox = site.sh(SANDBOX).split()
    assert {"strict", "yes", "cap_kill"} <= {*sandbox}
    assert "cap_sys_admin" not in sandbox
    one = tasks.start("one")
    (used,) = one.cards()
    watch.fake("busy", str(used), "50")
    other = tasks.start("other")
    (unused,) = other.cards()
    said = other.build.line(rf"\[gpu-ci\] no process has used GPU {unused} in ", 900)
    assert "This step is killed for it (idle-gpu-action=fail)" in said.string
    assert other.build.wait(120) != 0
    # It is free at once, and computing jobs are left alone.
    one.answer()
    after = tasks.start("after")
    assert after.cards() == [unused]
    assert one.end() == 0
    # The receipt says who ended it.
    receipts = "grep -h gpu-unused /var/log/gpu-ci/receipts.log 2>&-; true"
    watch.until(lambda: '"outcome":"killed"' in site.sh(receipts))
    assert watch.reasons() == {}
