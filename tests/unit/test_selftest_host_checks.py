# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The checks of a machine that is well, that has no use of its GPUs yet, or little room."""

import dataclasses
import shutil

import pytest

from ci.concourse.checks import launcher, worker
from ci.concourse.worker.volumes import VolumeError
from gpu_agent.availability import known_gpus as known
from gpu_agent.gpu.vendors import registry
from gpu_agent.model import errors
from gpu_agent.model.host import Driver, Toolkit
from gpu_agent.model.inventory import Inventory, State
from gpu_selftest import results
from gpu_selftest.check import Level, Outcome
from gpu_selftest.quick import host_checks
from machine import packages
from tests.unit.host_site import (
    ENVIRONMENT,
    IS_ROOT,
    KERNELS_LIMITS,
    SERVICE,
    Room,
    Site,
    named,
    red,
)
from tests.unit.situations import GPUS, RUNTIME

ONE, TWO = (gpu.uuid for gpu in GPUS)
FILES = ["gpu-runtime", "runtime-config", "launcher"]


# The beginning of NVIDIA's file, which has the version of each part.
VERSION_JSON = """{
   "cuda" : {
      "name" : "CUDA SDK",
      "version" : "12.4.1"
   },
   "cuda_cudart" : {
      "name" : "CUDA Runtime (cudart)",
      "version" : "12.4.127"
   }
}"""


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_a_healthy_worker_passes_every_check(site):
    results = site.run()
    assert {one.outcome for one in results} == {Outcome.PASSED, Outcome.SKIPPED}
    assert [one.check for one in results if one.outcome is Outcome.SKIPPED] == [
        *("driver-version", "cuda-toolkit", "host-cpus", "host-memory", "worker-ports"),
    ]
    ids = list(dict.fromkeys(one.check for one in results))
    own = [check.id for check in host_checks.CHECKS if check.id not in ("ci-checks", "disk")]
    known = [*own, launcher.CHECK.id, *(check.id for check in worker.CHECKS), "disk"]
    assert ids == [check for check in known if IS_ROOT or check in ids]
    assert all(one.level is Level.QUICK and one.text and not one.remedy for one in results)


STATES = [state for state in State if state not in (State.READY, State.NO_GPU)]


@pytest.mark.parametrize("state", STATES)
def test_an_unusable_driver_fails_and_what_needs_it_names_it(site, state):
    site.unusable(state)
    site.ask_for_a_newer_driver()
    results = site.run()
    failed = red(results)
    assert (failed.check, failed.gpu) == ("driver", "")
    assert failed.text.startswith(f"{state.value}: ")
    assert failed.remedy
    not_run = [("inventory", ""), ("driver-version", ""), ("device-nodes", "")]
    assert named(results, Outcome.NOT_RUN) == [
        one for one in not_run if IS_ROOT or one[0] != "device-nodes"
    ]
    assert {one.text for one in results if one.outcome is Outcome.NOT_RUN} == {"driver failed"}


def test_no_gpu_at_all_is_the_drivers_matter_where_none_was_known(site):
    known.forget(ONE, site.path("var/lib/gpu-ci/inventory.json"))
    known.forget(TWO, site.path("var/lib/gpu-ci/inventory.json"))
    site.unusable(State.NO_GPU)
    failed = red(site.run())
    assert failed.check == "driver"
    assert failed.remedy.endswith("or juju config worker enable-gpu=false")


def test_before_the_wrapper_is_there_its_checks_say_why(site):
    site.settings = dataclasses.replace(site.settings, files={}, gpus=())
    results = site.run()
    assert named(results, Outcome.NOT_RUN) == [(check, "") for check in FILES]
    assert named(results, Outcome.FAILED) == []
    site.machine = dataclasses.replace(site.machine, toolkit=None)
    results = site.run()
    assert {one.text for one in results if one.check in FILES[:2]} == {"toolkit failed"}


def looked(site, driver=Driver, machine=None):
    """What the production code sees of the site."""
    return host_checks.look(
        site.settings,
        site.root,
        inventory=lambda _: site.inventory,
        machine=machine or (lambda: site.machine),
        vendor=lambda name: dataclasses.replace(registry.find(name), driver=driver),
    )


def test_software_that_can_not_be_told_for_now_is_no_software_that_is_missing(site):
    def fail():
        raise errors.UnknownError("no time: nvidia-container-runtime --version")

    look = looked(site, machine=fail)
    results = site.judge(look)
    assert named(results, Outcome.FAILED) == []
    assert named(results, Outcome.NOT_RUN) == [("toolkit", "")]
    assert {one.text for one in results if one.outcome is Outcome.NOT_RUN} == {look.unknown}


@pytest.mark.parametrize(
    ("now", "outcome", "text"),
    [
        (Room(0.9), Outcome.FAILED, "disk full: 0.9 GB free for /var/lib/"),
        (Room(200, inodes=0), Outcome.FAILED, "disk full: 0.0 GB free for /var/lib/"),
        (Room(1.1), Outcome.WARNING, "1.1 GB free for /var/lib/"),
        (Room(49), Outcome.WARNING, "49.0 GB free for /var/lib/"),
        (Room(51), Outcome.PASSED, "51.0 GB free for /var/lib/"),
        (Room(51, files=0, inodes=0), Outcome.PASSED, "51.0 GB free for /var/lib/"),
    ],
)
def test_a_full_disk_fails_and_a_small_one_warns(site, now, outcome, text):
    site.room = now
    results = site.run()
    disk = results[-1]
    assert (disk.check, disk.outcome) == ("disk", outcome)
    assert disk.text.startswith(text)
    assert disk.cause == ("disk full" if outcome is Outcome.FAILED else "")
    assert bool(disk.remedy) == (outcome is not Outcome.PASSED)
    others = [one.check for one in results[:-1] if one.outcome in (Outcome.FAILED, outcome)]
    assert outcome is Outcome.PASSED or not others


@pytest.mark.parametrize(
    ("now", "outcome"),
    [(2.9, Outcome.FAILED), (3.1, Outcome.WARNING), (149, Outcome.WARNING), (151, Outcome.PASSED)],
)
def test_where_volumes_are_copies_the_disk_must_hold_them(site, now, outcome):
    site.put(ENVIRONMENT, "CONCOURSE_BAGGAGECLAIM_DRIVER=naive\n")
    site.room = Room(now)
    disk = site.run()[-1]
    assert (disk.check, disk.outcome) == ("disk", outcome)
    assert disk.threshold == "at least 3 GB, better 150 GB"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (VolumeError("overlay: Operation not permitted", refused=True), Outcome.FAILED),
        (VolumeError("overlay: Input/output error"), Outcome.FAILED),
        (VolumeError("overlay: No space left on device", starved=True), Outcome.NOT_RUN),
    ],
)
def test_a_worker_that_makes_no_volume_never_passes(site, error, outcome):
    def fail(driver, work_dir):
        raise error

    site.prove = fail
    report = site.run()
    (found,) = (one for one in report if one.check == "volumes")
    assert (found.outcome, str(error) in found.text) == (outcome, True)
    assert results.outcome(report) in ("failed", "incomplete")
    assert not results.condemns(found)


def test_without_a_worker_the_driver_is_tried_that_it_would_get(site):
    site.path(ENVIRONMENT).unlink()
    tried = []

    def prove(driver, work_dir):
        tried.append(driver)
        if driver == "overlay":
            raise VolumeError("Operation not permitted", refused=True)

    site.prove = prove
    (found,) = (one for one in site.run() if one.check == "volumes")
    assert tried == ["overlay", "naive"]
    assert (found.outcome, found.text) == (Outcome.PASSED, "copies (driver naive)")


@pytest.mark.parametrize(
    ("row", "words", "key"),
    [
        ("Max locked memory         8388608              8388608              bytes",
         "no more than 8388608 bytes of locked memory, not infinity", "limits.kernel.memlock,"),
        ("Max open files            20000                20000                files",
         "no more than 20000 open files, not 1048576", "limits.kernel.nofile,"),
        ("Max open files            2000000              2000000              files", "", ""),
    ],
)  # fmt: skip
def test_a_limit_that_systemd_could_not_set_is_said(site, row, words, key):
    name = row.partition("  ")[0]
    others = [one for one in KERNELS_LIMITS.splitlines() if not one.startswith(name)]
    site.put("proc/4711/limits", "\n".join([*others, row, ""]))
    (found,) = (one for one in site.run() if one.check == "limits")
    assert found.outcome is (Outcome.WARNING if words else Outcome.PASSED)
    assert words in found.text
    assert key in found.remedy
    site.put("run/systemd/container", "lxc")
    site.put("proc/sys/kernel/hostname", "juju-a1b2-0\n")
    (found,) = (one for one in site.run() if one.check == "limits")
    assert not words or "`lxc config set juju-a1b2-0 <key> unlimited`" in found.remedy


@pytest.mark.parametrize(
    ("driver", "wanted", "outcome"),
    [
        ("580.95.05", "", Outcome.SKIPPED),
        ("580.95.05", "535", Outcome.PASSED),
        ("580.95.05", "580.95.05", Outcome.PASSED),
        ("580.100.1", "580.95.05", Outcome.PASSED),
        ("99.1", "535", Outcome.FAILED),
        ("", "535", Outcome.SKIPPED),
    ],
)
def test_driver_versions_are_compared_as_numbers(site, driver, wanted, outcome):
    site.inventory = dataclasses.replace(site.inventory, driver=driver)
    site.settings = dataclasses.replace(site.settings, min_driver_version=wanted)
    (result,) = (one for one in site.run() if one.check == "driver-version")
    assert result.outcome is outcome


def test_a_worker_that_promises_no_gpu_yet_need_not_use_the_launcher(site):
    site.put(SERVICE, 'ExecStart=/opt/concourse/current/bin/concourse "worker" "--tag=gpu"\n')
    site.put(ENVIRONMENT, "CONCOURSE_RUNTIME=containerd\n")
    site.start_past_the_launcher()
    (result,) = (one for one in site.run() if one.check == "launcher")
    assert result.outcome is Outcome.PASSED
    assert result.text == "as installed; no worker with GPUs has started yet"


def test_a_worker_that_does_not_run_is_said(site):
    shutil.rmtree(site.path("proc/4711"))
    (result,) = (one for one in site.run() if one.check == "launcher")
    assert (result.outcome, result.text) == (
        Outcome.PASSED, "as installed, the worker is not running",
    )  # fmt: skip


def test_a_tasks_own_program_is_not_concourses_containerd(site):
    """It has any path in its container, which /proc shows, but process ids of its own."""
    forged = "/opt/concourse/x/containerd"
    site.process(4714, forged, "/usr/bin", namespace="pid:[4026532448]")
    (result,) = (one for one in site.run() if one.check == "launcher")
    assert (result.outcome, result.text) == (Outcome.PASSED, "as installed, in use")
    site.process(4714, forged, "/usr/bin")
    (result,) = (one for one in site.run() if one.check == "launcher")
    assert result.outcome is Outcome.FAILED


@pytest.mark.parametrize("vendor", ["amd", "intel"])
def test_other_vendors_need_no_toolkit(site, vendor):
    card = dataclasses.replace(GPUS[0], vendor=vendor, nodes=())
    site.machine = dataclasses.replace(site.machine, toolkit=None)
    files = {path: told for path, told in site.settings.files.items() if "nvidia" not in path}
    site.settings = dataclasses.replace(site.settings, gpus=(card,), files=files)
    site.inventory = Inventory(State.READY, (card,), vendor=vendor)
    known.forget(TWO, site.path("var/lib/gpu-ci/inventory.json"))
    results = site.run()
    skipped = {one.check: one.text for one in results if one.outcome is Outcome.SKIPPED}
    assert skipped["toolkit"] == skipped["runtime-config"] == "only NVIDIA's GPUs need it"
    assert named(results, Outcome.FAILED) == []


def test_a_machine_without_a_cuda_toolkit_is_well(site):
    (found,) = (one for one in site.run() if one.check == "cuda-toolkit")
    assert found.outcome is Outcome.SKIPPED
    assert found.text == "no CUDA toolkit on the machine; images have their own"


def test_the_cuda_toolkits_of_the_machine_each_once(site):
    """As the runfile of 12.4.1 leaves it, an old one, Debian's package, and a damaged one."""
    site.put("usr/local/cuda-12.4/version.json", VERSION_JSON)
    (site.root / "usr/local/cuda").symlink_to("cuda-12.4")
    site.put("usr/local/cuda-10.2/version.txt", "CUDA Version 10.2.89\n")
    site.put("usr/lib/cuda/version.txt", "CUDA Version 12.0.140\n")
    site.put("opt/cuda/version.json", "{")
    (found,) = (one for one in site.run() if one.check == "cuda-toolkit")
    assert found.outcome is Outcome.PASSED
    assert found.value == "12.0.140, 10.2.89, 12.4.1"
    assert found.text.endswith("CUDA 12.4.1 in /usr/local/cuda-12.4")


def test_a_vulnerable_toolkit_that_is_allowed_warns_and_names_its_cves(site):
    site.machine = dataclasses.replace(site.machine, toolkit=Toolkit(RUNTIME, "1.17.8"))
    assert red(site.run()).check == "toolkit"
    site.settings = dataclasses.replace(site.settings, allow_vulnerable_toolkit=True)
    results = site.run()
    assert named(results, Outcome.FAILED) == []
    (warned,) = (one for one in results if one.outcome is Outcome.WARNING)
    assert (warned.check, warned.value) == ("toolkit", "1.17.8")
    assert warned.text == ("toolkit vulnerable, and allowed: 1.17.8 has CVE-2026-24260 (CVSS 8.5)")
    assert warned.remedy == "juju config worker allow-vulnerable-toolkit=false"


def test_the_state_of_the_driver_is_that_of_the_table(site):
    site.unusable(State.MISMATCH)
    found = Driver(
        kernel="6.8", modules=(("6.8", "580.65.06"),), loaded="580.54.01", version="580.65.06"
    )
    failed = red(site.judge(looked(site, lambda: found)))
    assert failed.text == (
        "driver and library differ: Reboot needed (driver 580.65.06 installed, 580.54.01 loaded)"
    )
    assert failed.remedy == "sudo reboot when no build runs"
    found = dataclasses.replace(found, ours=True)
    failed = red(site.judge(looked(site, lambda: found)))
    assert failed.remedy.endswith(", or juju config worker auto-reboot=driver")
    rebooting = dataclasses.replace(site.settings, auto_reboot=True)
    site.settings = rebooting
    failed = red(site.judge(looked(site, lambda: found)))
    assert failed.remedy.startswith("the charm reboots the machine once")


def test_a_driver_that_can_not_be_looked_at_fails_nothing(site):
    def fail():
        raise packages.PackageError("dpkg-query ran out of time", passes=True)

    look = looked(site, fail)
    assert look.unknown == "dpkg-query ran out of time"
    results = site.judge(look)
    assert named(results, Outcome.FAILED) == []
