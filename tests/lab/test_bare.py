# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""From a machine with cards and nothing else to a worker whose tasks have their GPU, and back."""

import json

import pytest

from tests.fakes import nvidiapackages
from tests.lab import outfit, walk
from tests.lab.juju.agent import Agent
from tests.lab.session import Lab, Progress
from tests.lab.site import OPENS, PROBE, READY, Site

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
    bare.lab.controller.fire("worker/0", "update-status")
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


def test_giving_up_the_gpus_gives_back_sources_pins_and_holds_until_they_are_wanted_again(bare):
    kept = bare.changed(APT)
    assert all(kept.values())
    running = bare.start_task(f"sleep 8; {PROBE}")
    bare.configure(enable_gpu="false")
    try:
        assert bare.status() == ("active", "Worker ready")
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
