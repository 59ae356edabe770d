# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""From a machine with cards and nothing else to a worker whose tasks have their GPU, and back."""

import json
import os
import time

import pytest

from tests.fakes import nvidiapackages
from tests.lab import outfit, walk
from tests.lab.juju.agent import Agent
from tests.lab.leases import Tasks
from tests.lab.session import Lab, Progress
from tests.lab.site import OPENS, PROBE, READY, Site
from tests.lab.watching import Watch

NEWEST = nvidiapackages.DRIVERS[-1]
VULNERABLE, _, KNOWN_GOOD = nvidiapackages.TOOLKITS
TOOLKIT = [package.name for package in nvidiapackages.toolkit(KNOWN_GOOD)]
# What the charm gives back when the GPUs are given up.
APT = {
    "apt": "cd /etc/apt && find . -type f -exec sha256sum {} + | sort -k2",
    "holds": "apt-mark showhold",
}
# What it gives back when it goes. useradd and its kin leave the file of before beside each.
MACHINE = APT | {
    "packages": "dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n'",
    "files": "cd /etc && find . -xdev -type f ! -name '*-' ! -name .pwd.lock "
    "-exec sha256sum {} + | sort -k2; find . -type l -printf '%p %l\\n' | sort",
    "modules": "find /lib/modules/*/kernel /lib/modprobe.d 2>&-; true",
}


RECOVERY = "/var/lib/gpu-ci/gpu-recovery.json"


class Bare(Site):
    """A lab that began with a bare worker.

    Attributes:
        before: what the worker's machine was like before the charm came.
    """

    def __init__(self, lab, before):
        super().__init__(lab)
        self.before = before

    def look(self, what=MACHINE):
        return {name: self.sh(script).splitlines() for name, script in what.items()}

    def changed(self, what):
        """What differs from before, kind by kind."""
        was, now = self.before, self.look(what)
        return {name: sorted({*was[name]} ^ {*now[name]}) for name in what}

    def boot(self):
        """What names the machine's boot."""
        return self.sh("cat /proc/sys/kernel/random/boot_id").strip()

    def versions(self, *names):
        """The versions of these packages, which are all installed."""
        show = "dpkg-query -W -f '${db:Status-Status} ${Version}\\n' "
        status, versions = zip(
            *map(str.split, self.sh(show + " ".join(names)).splitlines()), strict=True
        )
        assert set(status) == {"installed"}
        return set(versions)


@pytest.fixture(scope="module")
def bare(machines_work, tmp_path_factory):
    """`lab up --bare`."""
    say, before, fit = Progress(), {}, outfit.fit
    lab = Lab(tmp_path_factory.mktemp("bare"), say)

    def fit_and_look(machine, wanted, shared):
        fit(machine, wanted, shared)
        if wanted.get("bare"):
            for name, script in MACHINE.items():
                done = machine.enter("/bin/bash", "-c", script)
                before[name] = done.stdout.splitlines()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outfit, "fit", fit_and_look)
        try:
            walk.up(lab, say, bare=True)
            yield Bare(lab, before)
        finally:
            lab.controller.destroy()


def test_a_deploy_brings_driver_and_toolkit(bare):
    assert bare.status() == READY
    assert bare.sh("cat /sys/module/nvidia/version").strip() == NEWEST
    assert bare.versions(*TOOLKIT) == {KNOWN_GOOD}
    assert bare.versions(f"libnvidia-compute-{nvidiapackages.BRANCH}") == {
        f"{NEWEST}-{nvidiapackages.UBUNTU}"
    }
    held = set(bare.look()["holds"])
    assert {*TOOLKIT, f"nvidia-headless-no-dkms-{nvidiapackages.BRANCH}"} <= held
    done = bare.task(PROBE)
    assert done.returncode == 0, done.stdout
    assert f"nvidia0 {OPENS}" in done.stdout


def test_a_second_run_changes_nothing(bare):
    before = bare.look()
    bare.lab.controller.fire("worker/0", "config-changed")
    assert bare.look() == before
    assert bare.status() == READY


def test_it_comes_back_after_a_reboot(bare):
    bare.machine().reboot()
    bare.lab.controller.fire("worker/0", "start")
    assert bare.status() == READY
    bare.worker("lab-worker-0", 60)
    assert f"nvidia0 {OPENS}" in bare.task(PROBE).stdout


def test_a_vulnerable_toolkit_is_refused_unless_it_is_allowed(bare):
    try:
        bare.configure(nvidia_container_toolkit_version=VULNERABLE)
        kind, message = bare.status()
        assert (kind, "CVE-2026-24260" in message) == ("blocked", True), message
        assert bare.versions(*TOOLKIT) == {KNOWN_GOOD}
        bare.configure(allow_vulnerable_toolkit="true")
        kind, message = bare.status()
        assert kind == "active", message
        assert "CVE-2026-24260" in message
        assert bare.versions(*TOOLKIT) == {VULNERABLE}
    finally:
        bare.configure(reset=("nvidia-container-toolkit-version", "allow-vulnerable-toolkit"))
    assert bare.status() == READY
    assert bare.versions(*TOOLKIT) == {KNOWN_GOOD}


@pytest.fixture
def recovering(bare):
    """The watch, where nothing is out of use; afterwards the GPUs are well and tested again."""
    watch = Watch(bare)
    bare.sh(f"rm -f {RECOVERY}")
    yield watch
    watch.fake("refuse-reset", "off")
    watch.mend()
    bare.configure(reset=("gpu-recovery", "auto-reboot"))
    bare.lab.model.run_action("worker/0", "gpu-selftest", {"level": "quick"})
    bare.lab.settle()
    assert bare.status() == READY
    bare.wait_for_tag("gpu-count=2")


@pytest.fixture
def tasks(bare):
    tasks = Tasks(bare)
    yield tasks
    tasks.end()


def made(bare):
    """What was done for sick GPUs, and for which."""
    record = json.loads(bare.sh(f"cat {RECOVERY} 2>&- || echo '{{\"made\": []}}'"))
    return [(one["step"], *one["uuids"]) for one in record["made"]]


def sicken(bare, watch, card):
    """The driver asks for a reset of a card; the watch takes it out and wakes the charm."""
    watch.faults(card, ("set", str(card), "field-230=1"), ("event", str(card), "0x8000"))
    assert watch.status_says(f"1 quarantined: GPU {card} ("), watch.journal()
    bare.lab.model.update_status("worker/0")
    bare.lab.settle()


def update_until(bare, condition):
    """Juju's events come, as each five minutes, until something is so."""
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, (made(bare), bare.status())
        bare.lab.model.update_status("worker/0")
        bare.lab.settle()


def test_a_sick_gpu_is_reset_when_its_job_is_over_and_comes_back_tested(bare, recovering, tasks):
    watch = recovering
    bare.configure(gpu_recovery="reset")
    victim = tasks.start("victim")
    (card,) = victim.cards()
    sicken(bare, watch, card)
    # None under a job: only the hardware's failure is reported to it.
    victim.build.line(rf"\[gpu-ci\] GPU {card} failed \(.*hardware, not your change", 60)
    assert made(bare) == []
    victim.answer()
    assert victim.end() == 0
    update_until(bare, lambda: made(bare))
    assert made(bare) == [("reset", watch.uuid(card))]
    assert "was successfully reset" in bare.sh("cat /var/log/gpu-ci/reset.log")
    # The watch was in the way of it, and is back.
    watch.until(lambda: len(watch.metric(r"gpuci_gpu_answers\{.* 1")) == 2)
    update_until(bare, lambda: watch.reasons() == {})
    assert "2x NVIDIA, self-test of one GPU passed" in bare.status()[1]
    both = tasks.start("both", GPU_COUNT="2")
    assert both.cards() == [0, 1]
    assert both.end() == 0
    assert made(bare) == [("reset", watch.uuid(card))]


@pytest.mark.skipif("GPUCI_SOAK" not in os.environ, reason="a machine reboots: make soak")
def test_where_no_reset_helps_the_machine_reboots_once_and_under_no_job(bare, recovering, tasks):
    watch, boot = recovering, bare.boot()
    # As where a monitor of the operator's has the GPU open.
    watch.fake("refuse-reset")
    bare.configure(gpu_recovery="reset", auto_reboot="gpu")
    job = tasks.start("job", GPU_COUNT="0")
    assert job.cards() == []
    sicken(bare, watch, 0)
    first = [("reset", watch.uuid(0))]
    update_until(bare, lambda: made(bare))
    bare.lab.model.update_status("worker/0")
    bare.lab.settle()
    assert (made(bare), bare.boot()) == (first, boot)
    assert "currently in use by another process" in bare.sh(f"cat {RECOVERY}")
    job.answer()
    assert job.end() == 0
    update_until(bare, lambda: bare.boot() != boot)
    boot = bare.boot()
    first.append(("reboot", watch.uuid(0)))
    # Once it is up, the GPU is tested, and is back.
    update_until(bare, lambda: watch.reasons() == {})
    assert (made(bare), bare.boot()) == (first, boot)
    assert "2x NVIDIA" in bare.status()[1]
    bare.worker("lab-worker-0", 60)
    assert f"nvidia0 {OPENS}" in bare.task(PROBE).stdout
    # One that is gone for good, on the same day, brings no second reboot.
    took = watch.faults(1, ("lose", "1"))
    assert took < 60
    for _ in range(2):
        bare.lab.model.update_status("worker/0")
        bare.lab.settle()
    assert (made(bare), bare.boot()) == (first, boot)
    assert [*watch.out()] == [watch.uuid(1)]


def test_giving_up_the_gpus_gives_back_sources_pins_and_holds_until_they_are_wanted_again(bare):
    kept = bare.changed(APT)
    assert all(kept.values())
    running = bare.start_task(f"sleep 8; {PROBE}")
    bare.configure(enable_gpu="false")
    try:
        assert bare.status() == ("active", outfit.IDLE)
        assert bare.changed(APT) == {name: [] for name in APT}
        output, _ = running.communicate(timeout=60)
        assert running.returncode == 0, output
        assert OPENS in output
    finally:
        bare.configure(enable_gpu="true")
    assert bare.status() == READY
    assert bare.changed(APT) == kept
    bare.wait_for_tag("gpu-count=2")


def test_a_unit_that_goes_leaves_the_machine_as_it_came(bare, monkeypatch):
    left, teardown = {}, Agent.teardown

    def look_first(self):
        left.update(bare.changed(MACHINE))
        teardown(self)

    monkeypatch.setattr(Agent, "teardown", look_first)
    bare.lab.model.remove_unit("worker/0")
    bare.lab.settle()
    assert left == {name: [] for name in MACHINE}, json.dumps(left, indent=1)
