# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A driver's upgrade by the real apt, modprobe and a reboot, on a machine with simulated cards.

The self-test is the test's own: it asks NVML through the driver that is there, and takes out what
it is told to find bad. All else is the charm's.
"""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile

import pytest

from tests.fakes import aptrepo, nvidiapackages
from tests.functional.apt_machine import ALONE
from tests.functional.forked_calls import Calls
from tests.functional.selftest_machine import carried
from tests.lab import archive, outfit
from tests.lab.juju.agent import SHARED
from tests.lab.park import Park

ROOT = pathlib.Path(__file__).parents[2]
NEEDED = ("systemd-nspawn", "gcc", "gpg", "modprobe")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
OLD, NEW = nvidiapackages.DRIVERS
OTHER, BRANCH = "595.71.05", "595-server"
# Those of which a machine can have one branch at a time (Ubuntu's nvidia-graphics-drivers).
SINGLE = ("libnvidia-compute", "nvidia-compute-utils", "nvidia-kernel-common", "nvidia-utils")
UBUNTU_DRIVERS = "#!/bin/sh\n# Stands in for ubuntu-drivers.\n" + "".join(
    f"echo 'nvidia-driver-{branch}, (kernel modules provided by "
    f"linux-modules-nvidia-{branch}-generic)'\n"
    for branch in (nvidiapackages.BRANCH, BRANCH)
)
# One Python makes all calls of a boot, each in a child of its own.
CALLS = """
import datetime
from actions import driver_upgrade as action
from gpu_agent.gpu.vendors.nvidia import driver_state
from ci.concourse.worker.drainable import Worker
from lifecycle.drain import Drainer
from lifecycle.records import Records
from lifecycle.driver_upgrade import steps as walk
from lifecycle.driver_upgrade.machine import Machine
from gpu_agent.gpu.vendors import detect
from host import nvidia_driver as driver
from machine import packages
from gpu_agent.availability import quarantine
from plan.model import DriverPlan
from gpu_selftest import results, run, settings
from gpu_selftest.check import Check, Level, Outcome
from tests.functional.forked_calls import serve
bad, said = [], []
CHECK = Check("grant", Level.ISOLATION, "each task has its GPU", each_gpu=True)
def look():  # by the library of the driver that is there now
    found = detect.detect()
    return f"{found.state.value} {found.driver}"
def follow(name, seconds, progress):
    kept, text = settings.read(), look()
    good = text.startswith("ready ") and text.split()[-1] not in bad
    outcome = Outcome.PASSED if good else Outcome.FAILED
    found = tuple(CHECK.result(outcome, text, gpu=gpu.uuid) for gpu in kept.gpus)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    report = results.Report(
        name, "abc", Level.ISOLATION, "cuda", "", results.outcome(found), now, 1.0, found
    )
    run.conclude(kept, report)
    return report
machine = Machine(start=lambda level: results.new_run(), follow=follow)
drainer = Drainer(Worker(), Records.here())
def answer(given):
    global request
    bad.extend(given["bad"])
    request = action.Request("worker/0", branch=given["branch"])
    try:
        value = eval(given["code"], globals())
    except (action.UpgradeError, packages.PackageError) as error:
        value = {"error": str(error), **getattr(error, "results", {})}
    seen = driver_state.look()
    return {
        "value": value, "said": said, "branch": seen.branch, "version": seen.version,
        "loaded": seen.loaded, "look": look(),
        "out": [entry.check for entry in quarantine.read()], "note": walk.said(),
    }
serve(answer)
"""
BEGIN = "driver.ensure(DriverPlan(), said.append)"
# A self-test that needs a runc starts only if there is one.
SETTINGS = """
settings.write(
    settings.Settings('worker/0', gpus=detect.detect().gpus, runc='/usr/bin/true')
)
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines need root"),
    pytest.mark.skipif(
        not all(shutil.which(name, path=PATH) for name in NEEDED),
        reason=f"one of these is not installed: {', '.join(NEEDED)}",
    ),
    pytest.mark.skipif(bool(archive.obstacle()), reason=archive.obstacle()),
    # A machine's keeper is meant to outlive who started it.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


class Metal:
    def __init__(self, machine):
        self.machine = machine
        path = "/srv/repo/src:/srv/repo/lib:/srv/repo:/srv/packages"
        self._calls = Calls(machine, path, "-c", CALLS)

    def close(self):
        self._calls.close()

    def sh(self, script):
        return self.machine.enter("/bin/bash", "-e", stdin=script, timeout=180).stdout

    def call(self, code, branch="", bad=()):
        return self._calls.ask({"code": code, "branch": branch, "bad": [*bad]})

    def preview(self, **more):
        return self.call("action.preview(request, machine)", **more)["value"]

    def upgrade(self, **more):
        return self.call("action.upgrade(request, drainer, said.append, machine)", **more)

    def settle(self, **more):
        return self.call("walk.Upgrade(drainer, machine).settle(said.append)", **more)

    def packages(self):
        """Name, version and state of all of NVIDIA's, holds among them."""
        form = "${Package} ${Version} ${db:Status-Abbrev}\\n"
        shown = self.sh(f"dpkg-query -W -f '{form}' '*nvidia*' | grep -v ' un'")
        return sorted(line.strip() for line in shown.splitlines())


def fill(folder, version, built):
    """Have a driver in the archive, of which a machine can have one at a time, as of Ubuntu's."""
    for package in nvidiapackages.driver(version, built / version):
        kind = next((kind for kind in SINGLE if package.name.startswith(f"{kind}-")), "")
        single = dict.fromkeys(("Provides", "Conflicts", "Replaces"), kind)
        aptrepo.package(
            folder, package.name, package.version, package.depends,
            files=package.files, scripts=package.scripts, **single,
        )  # fmt: skip


@contextlib.contextmanager
def of_branch(branch, version):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvidiapackages, "BRANCH", branch)
        patch.setattr(nvidiapackages, "DRIVERS", (version,))
        yield


@pytest.fixture(scope="module")
def metal():
    """A machine whose driver the charm has installed; since then the archive has newer ones."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-test-") as name:
        folder = pathlib.Path(name)
        shared, park = folder / "shared", Park(folder / "lab")
        distribution = shared / archive.FOLDER / "distribution"
        mirror = shared / archive.FOLDER / "mirror"
        mirror.mkdir(parents=True)
        outfit.prepare(shared)
        key = aptrepo.Key.make(folder / "key")
        (mirror / "gpgkey").write_text(key.public)
        drivers = {"/usr/bin/ubuntu-drivers": UBUNTU_DRIVERS}
        aptrepo.package(distribution, "ubuntu-drivers-common", "1:0.10.10", files=drivers)
        fill(distribution, OLD, folder / "built")
        aptrepo.publish(distribution, key)
        try:
            binds = {SHARED: shared, "/srv/repo": ROOT, "/srv/packages": carried(folder / "venv")}
            machine = park.up("upgrade", binds_ro=binds)
            with contextlib.closing(Metal(machine)) as metal:
                outfit.fit(metal.machine, {"gpus": 2, "bare": True}, shared)
                metal.sh(f"{ALONE}\necho force-unsafe-io >/etc/dpkg/dpkg.cfg.d/quick")
                assert metal.call(BEGIN)["loaded"] == OLD
                metal.call(SETTINGS)
                fill(distribution, NEW, folder / "built")
                with of_branch(BRANCH, OTHER):
                    fill(distribution, OTHER, folder / "built")
                aptrepo.publish(distribution, key)
                yield metal
        finally:
            park.destroy()


def test_a_dry_run_changes_nothing_and_a_newer_driver_comes_without_a_reboot(metal):
    before = metal.packages()
    shown = metal.preview()
    assert (shown["from"], shown["to"]) == (f"{OLD} of 580-server", f"{NEW} of 580-server")
    assert "libnvidia-compute-580-server" in shown["packages"].partition(";")[0]
    assert shown["modules"] == "not in use: no reboot is needed"
    assert metal.packages() == before

    done = metal.upgrade()
    assert done["value"]["state"].startswith("self-test passed"), done
    assert (done["version"], done["look"]) == (NEW, f"ready {NEW}")
    assert (done["out"], done["note"]) == ([], "")
    assert all(line.endswith(" hi") for line in metal.packages()), "held, as before"
    assert [line.split()[0] for line in metal.packages()] == [line.split()[0] for line in before]
    again = metal.upgrade()["value"]["error"]
    assert again.startswith(f"{NEW} of 580-server is the newest")


def test_another_branch_that_fails_is_taken_back_with_all_its_packages(metal):
    before = metal.packages()
    done = metal.upgrade(branch=BRANCH, bad=[OTHER])
    words = f"The new driver, {OTHER} of {BRANCH}, failed: grant failed: ready {OTHER}. "
    words += f"Rolled back to {NEW} of"
    assert done["value"]["error"].startswith(words), json.dumps(done, indent=1)
    assert (done["version"], done["look"]) == (NEW, f"ready {NEW}")
    assert done["out"] == []
    assert metal.packages() == before
    assert f"rolled back: grant failed: ready {OTHER}" in done["note"]


def test_a_branch_that_is_none_is_refused_with_those_that_there_are(metal):
    refused = metal.upgrade(branch="999-server")["value"]["error"]
    assert "999-server" in refused
    assert "580-server, 595-server" in refused


def test_a_module_in_use_is_replaced_by_a_reboot_and_the_next_hook_ends_the_upgrade(metal):
    fakegpu = outfit.fakegpu
    fakegpu(metal.machine, "set", "0", "processes=4711")
    done = metal.upgrade(branch=BRANCH)
    assert (done["version"], done["loaded"]) == (OTHER, NEW)
    text = f"reboot needed: driver {OTHER} is installed, {NEW} is loaded"
    assert done["value"]["state"] == text
    assert done["value"]["next"].startswith("reboot the machine; ")
    assert done["out"] == ["driver-upgrade", "driver-upgrade"]
    assert metal.settle()["value"] is False

    fakegpu(metal.machine, "set", "0", "processes=")
    metal.machine.reboot()
    done = metal.settle()
    assert done["value"] is True, done
    assert (done["branch"], done["look"]) == (BRANCH, f"ready {OTHER}")
    assert (done["out"], done["note"]) == ([], "")
    assert not [line for line in metal.packages() if "580" in line]
    assert metal.settle()["value"] is False
