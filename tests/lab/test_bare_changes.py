# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Driver and toolkit of a bare worker that change, fail and are broken off, with the real apt."""

import contextlib
import dataclasses
import json
import os
import threading
import time

import pytest

from tests.fakes import aptrepo, nvidiapackages
from tests.lab import archive, outfit, walk
from tests.lab.errors import LabError
from tests.lab.session import Lab, Progress
from tests.lab.site import ALL, OPENS, PROBE, READY, Site

if "GPUCI_SOAK" not in os.environ:
    pytest.skip("minutes: `make soak` runs it", allow_module_level=True)

OLD, NEW = nvidiapackages.DRIVERS
BROKEN, NEWEST = "580.105.08", "580.126.09"
SAFE, KNOWN_GOOD = nvidiapackages.TOOLKITS[1:]
# Later than any that the charm knows, so that status says that too.
HARMFUL, DEAD, SLOW = "1.21.0-1", "1.21.1-1", "1.22.0-1"
TOOLKIT = [package.name for package in nvidiapackages.toolkit(KNOWN_GOOD)]
BASE = "nvidia-container-toolkit-base"
RUNTIME = "/usr/bin/nvidia-container-runtime"
COMPUTE = f"libnvidia-compute-{nvidiapackages.BRANCH}"
# What apt, dpkg and the charm's own notes have of packages.
PACKAGES = """
dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n'; apt-mark showhold
apt-mark showauto; cat /var/lib/gpu-ci/packages.json /sys/module/nvidia/version
"""
# The file by which a postinst tells that it lingers, at its first run alone.
BEGUN = "/run/begun-{package}"
LINGER = "#!/bin/sh\nif [ ! -e {begun} ]; then touch {begun}; sleep 60; fi\n"
# Another package manager, which holds dpkg's lock as long as it lives.
HOLD_LOCK = """
import fcntl, time
file = open("/var/lib/dpkg/lock-frontend", "w")
fcntl.lockf(file, fcntl.LOCK_EX)
time.sleep(900)
"""
FULL = "/var/cache/apt/archives"


class Changing(Site):
    """A lab with a bare worker, into whose archives new packages come."""

    def __init__(self, lab, key, built):
        super().__init__(lab)
        self.key, self.built = key, built

    def publish(self, **packages):
        archive.publish(self.lab.state_dir / "shared", self.key, **packages)

    def publish_driver(self, version, library=""):
        packages = nvidiapackages.driver(version, self.built / version, library)
        self.publish(distribution=packages)

    def publish_toolkit(self, version, change):
        """A toolkit whose package with the runtime is changed so."""
        packages = nvidiapackages.toolkit(version)
        self.publish(mirror=[change(one) if RUNTIME in one.files else one for one in packages])

    def act(self, name, **params):
        """Results of an action, and why it failed if it did."""
        action = self.lab.model.run_action("worker/0", name, params)
        self.lab.settle()
        row = self.lab.store.row("SELECT * FROM action WHERE id = ?", action)
        return json.loads(row["results"]), row["message"]

    def update(self):
        self.lab.controller.fire("worker/0", "update-status")

    def driver(self):
        """The driver's versions: that of the loaded module, and of the libraries' package."""
        loaded = self.sh("cat /sys/module/nvidia/version").strip()
        return loaded, self.version(COMPUTE).partition("-")[0]

    def version(self, package):
        show = "dpkg-query -W -f '${db:Status-Status} ${Version}'"
        status, version = self.sh(f"{show} {package}").split()
        assert status == "installed"
        return version

    def toolkit(self):
        """The one version of the toolkit's packages."""
        (version,) = {self.version(name) for name in TOOLKIT}
        return version

    def held(self):
        return set(self.sh("apt-mark showhold").split())

    def boots(self):
        return self.sh("cat /proc/1/stat | cut -d' ' -f22").strip()


def seen_gpus(site):
    """How many GPUs a task with all of them can open."""
    done = site.task(PROBE)
    assert done.returncode == 0, done.stdout
    return sum(f"nvidia{n} {OPENS}" in done.stdout for n in (0, 1))


def linger(package):
    """The package, whose first installation does not end."""
    script = LINGER.format(begun=BEGUN.format(package=package.name))
    script += package.scripts.get("postinst", "").partition("\n")[2]
    return dataclasses.replace(package, scripts={**package.scripts, "postinst": script})


@contextlib.contextmanager
def killed(lab, package):
    """The hook of worker/0 that installs a lingering package is killed with all of its own."""
    over, kills = threading.Event(), []
    look = ["/usr/bin/test", "-e", BEGUN.format(package=package)]

    def watch():
        while not kills and not over.wait(0.1):
            with contextlib.suppress(LabError):  # The machine may not be there yet.
                if not lab.model.machine("worker/0").enter(*look, check=False).returncode:
                    lab.controller.agent("worker/0").kill_hook()
                    kills.append(package)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    assert kills


@pytest.fixture(scope="module")
def site(machines_work, tmp_path_factory):
    """A bare lab in whose archive the older driver is, and nothing newer yet.

    The hook that brought it was killed in the middle of apt, at its first package's.
    """
    say, folder = Progress(), tmp_path_factory.mktemp("changes")
    lab = Lab(folder / "lab", say)
    key = aptrepo.Key.make(folder / "private")
    try:
        shared = lab.state_dir / "shared"
        shared.mkdir(parents=True, exist_ok=True)
        archive.prepare(shared, drivers=[OLD], key=key)
        packages = nvidiapackages.driver(OLD, folder / "built" / OLD)
        slow = [linger(one) for one in packages if one.name == COMPUTE]
        archive.publish(shared, key, distribution=slow)
        with killed(lab, COMPUTE):
            walk.up(lab, say, bare=True)
        yield Changing(lab, key, folder / "built")
    finally:
        lab.controller.destroy()


@pytest.fixture
def in_use(site):
    """A process has one of the cards, as NVML reports it, until the next boot."""
    pid = site.sh("systemd-run --quiet --unit=holder sleep 900; systemctl show -P MainPID holder")
    site.gpus("set", "0", f"processes={pid.strip()} 9")
    yield
    site.sh("systemctl stop holder 2>&-; true")
    site.gpus("set", "0", "processes=")


def test_a_dry_run_of_an_upgrade_changes_nothing(site):
    assert (site.status(), site.driver()) == (READY, (OLD, OLD))
    site.publish_driver(NEW)
    before = site.sh(PACKAGES)
    results, message = site.act("upgrade-driver", **{"dry-run": "true"})
    assert message == ""
    assert (OLD in results["from"], NEW in results["to"]) == (True, True), results
    assert COMPUTE in results["packages"]
    assert results["way-back"].startswith("the archives have")
    assert site.sh(PACKAGES) == before
    assert site.status() == READY


def test_an_upgrade_waits_for_a_job_and_names_it(site):
    site.configure(drain_timeout="0")
    running = site.start_task(f"sleep 8; {PROBE}", params=ALL)
    before = site.sh(PACKAGES)
    _, message = site.act("upgrade-driver", wait="0s")
    site.configure(reset=("drain-timeout",))
    assert "Builds did not end within 0m: container " in message, message
    assert site.sh(PACKAGES) == before
    output, _ = running.communicate(timeout=60)
    assert OPENS in output
    assert site.status() == READY
    assert seen_gpus(site) == 2


def test_an_upgrade_brings_the_newest_driver(site):
    results, message = site.act("upgrade-driver")
    assert message == ""
    assert results["state"].startswith("self-test passed, ")
    assert "next" not in results
    assert (site.status(), site.driver()) == (READY, (NEW, NEW))
    headless = f"nvidia-headless-no-dkms-{nvidiapackages.BRANCH}"
    assert {headless, COMPUTE} <= site.held()
    site.wait_for_tag(f"driver={NEW.partition('.')[0]}")
    assert seen_gpus(site) == 2


def test_a_driver_that_fails_is_taken_back(site):
    site.publish_driver(BROKEN, library=OLD)
    results, message = site.act("upgrade-driver")
    assert BROKEN in message, message
    assert (
        f"Rolled back to {NEW} of {nvidiapackages.BRANCH}, which passed the self-test" in message
    )
    assert BROKEN in results["to"]
    kind, said = site.status()
    assert (kind, "2x NVIDIA, self-test passed" in said) == ("active", True), said
    assert f"to {BROKEN} of {nvidiapackages.BRANCH} rolled back" in said
    assert site.driver() == (NEW, NEW)
    assert COMPUTE in site.held()
    assert seen_gpus(site) == 2


def test_the_machine_reboots_for_its_driver_once_no_job_runs(site, in_use):
    site.publish_driver(NEWEST)
    results, message = site.act("upgrade-driver")
    assert message == ""
    assert results["state"] == f"reboot needed: driver {NEWEST} is installed, {NEW} is loaded"
    assert results["next"].startswith("reboot the machine; ")
    kind, said = site.status()
    needed = f"Reboot needed (driver {NEWEST} installed, {NEW} loaded)"
    assert (kind, said.startswith(needed)) == ("blocked", True), said
    boot, cpu = site.boots(), {"GPU_COUNT": "0"}
    running = site.start_task("sleep 30; echo whole", params=cpu)
    site.configure(auto_reboot="driver")
    try:
        assert "the charm reboots the machine once" in site.status()[1]
        output, _ = running.communicate(timeout=90)
        assert (running.returncode, "whole" in output) == (0, True), output
        assert site.boots() == boot
        deadline = time.monotonic() + 120
        while site.boots() == boot:
            # A container that has just begun may have a step soon.
            assert time.monotonic() < deadline, site.status()
            time.sleep(5)
            site.update()
        assert (site.status(), site.driver()) == (READY, (NEWEST, NEWEST))
        boot = site.boots()
        site.worker("lab-worker-0", 60)
        assert seen_gpus(site) == 2
        site.update()
        assert site.boots() == boot
    finally:
        site.configure(reset=("auto-reboot",))


def test_a_toolkit_is_on_trial_until_containers_have_worked_with_it(site):
    site.configure(nvidia_container_toolkit_version=SAFE)
    assert (site.status(), site.toolkit()) == (READY, SAFE)
    site.configure(nvidia_container_toolkit_version=KNOWN_GOOD)
    assert (site.status(), site.toolkit()) == (READY, KNOWN_GOOD)
    record = json.loads(site.sh("cat /var/lib/gpu-ci/toolkit.json"))
    assert (record["previous"], record["bad"]) == ("", [])
    assert {*TOOLKIT} <= site.held()


def fail_creates(package):
    """The package with the runtime, which makes no container any more."""
    create = b'if "create" in arguments:'
    text = package.files[RUNTIME]
    assert create in text
    broken = text.replace(create, create + b' raise Refused("of no use")\n        if False:')
    return dataclasses.replace(package, files={RUNTIME: broken})


def say_nothing(package):
    """The package with the runtime, which does not start, as for want of a library."""
    return dataclasses.replace(package, files={RUNTIME: b"#!/bin/sh\nexit 127\n"})


def test_a_toolkit_that_no_container_works_with_is_taken_back(site):
    site.publish_toolkit(HARMFUL, fail_creates)
    running = site.start_task(f"sleep 25; {PROBE}", params={"GPU_COUNT": "1"})
    log = site.lab.controller.log_path("worker/0")
    try:
        site.configure(nvidia_container_toolkit_version=HARMFUL)
        note = f"toolkit {HARMFUL} was rolled back: no container started with it"
        kind, said = site.status()
        assert (kind, note in said, "quarantined" in said) == ("active", True, False), said
        assert site.toolkit() == KNOWN_GOOD
        assert {*TOOLKIT} <= site.held()
        output, _ = running.communicate(timeout=90)
        assert (running.returncode, OPENS in output) == (0, True), output
        assert seen_gpus(site) == 2
        size = log.stat().st_size
        site.update()
        assert "Installing" not in log.read_text()[size:]
        assert site.toolkit() == KNOWN_GOOD
        kind, said = site.status()
        assert (kind, note in said) == ("active", True), said
    finally:
        site.configure(reset=("nvidia-container-toolkit-version",))
    # The GPU that the task had was left out.
    site.act("gpu-selftest", level="isolation")
    assert (site.status(), site.toolkit()) == (READY, KNOWN_GOOD)


def test_a_toolkit_that_does_not_even_start_is_taken_back(site):
    site.publish_toolkit(DEAD, say_nothing)
    try:
        site.configure(nvidia_container_toolkit_version=DEAD)
        kind, said = site.status()
        assert (kind, f"toolkit {DEAD} was rolled back" in said) == ("active", True), said
        assert site.toolkit() == KNOWN_GOOD
        assert seen_gpus(site) == 2
    finally:
        site.configure(reset=("nvidia-container-toolkit-version",))
    assert (site.status(), site.toolkit()) == (READY, KNOWN_GOOD)


def test_an_apt_that_is_killed_is_finished_by_the_next_event(site):
    site.publish_toolkit(SLOW, linger)
    try:
        with killed(site.lab, BASE):
            site.configure(nvidia_container_toolkit_version=SLOW)
        kind, said = site.status()
        assert (kind, "self-test passed" in said) == ("active", True), said
        assert site.toolkit() == SLOW
        assert site.sh("dpkg --audit") == ""
        assert {*TOOLKIT} <= site.held()
    finally:
        site.configure(reset=("nvidia-container-toolkit-version",))
    assert (site.status(), site.toolkit()) == (READY, KNOWN_GOOD)


def test_a_full_disk_is_said_and_mended_by_the_next_event(site):
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "size=16k", "full", FULL]
    site.machine().run(mount)
    try:
        site.sh(f"mkdir {FULL}/partial")
        site.configure(nvidia_container_toolkit_version=SAFE)
        kind, said = site.status()
        assert (kind, "the disk is full" in said) == ("blocked", True), said
        assert site.toolkit() == KNOWN_GOOD
        assert seen_gpus(site) == 2
    finally:
        site.machine().run(["/bin/umount", FULL])
    site.update()
    assert (site.status(), site.toolkit()) == (READY, SAFE)


def test_another_apt_is_waited_for(site):
    folder = site.lab.controller.agent("worker/0").charm_dir
    # As it is packed, it waits for minutes.
    wait = f"sed -i 's/^\\(LOCK_WAIT: .* = \\).*/\\1%s/' {folder}/lib/machine/apt.py"
    site.sh(wait % 3)
    site.machine().write("/run/hold-lock.py", HOLD_LOCK)
    site.sh("systemd-run --quiet --unit=other-apt /usr/bin/python3 /run/hold-lock.py")
    try:
        site.configure(nvidia_container_toolkit_version=KNOWN_GOOD)
        kind, said = site.status()
        assert (kind, "is working on the machine's packages" in said) == ("waiting", True), said
        assert site.toolkit() == SAFE
        assert seen_gpus(site) == 2
    finally:
        site.sh("systemctl stop other-apt")
        site.sh(wait % 300)
    site.update()
    assert (site.status(), site.toolkit()) == (READY, KNOWN_GOOD)


def test_a_wrong_key_is_said_and_nothing_comes_by_it(site, tmp_path):
    right = site.lab.model.config("worker")["nvidia-toolkit-key"]
    wrong = aptrepo.Key.make(tmp_path / "private").public
    try:
        site.configure(nvidia_toolkit_key=wrong, nvidia_container_toolkit_version=SAFE)
        kind, said = site.status()
        assert (kind, "the signature of a repository was refused" in said) == ("blocked", True), (
            said
        )
        assert site.toolkit() == KNOWN_GOOD
        assert seen_gpus(site) == 2
    finally:
        site.configure(nvidia_toolkit_key=right, nvidia_container_toolkit_version=KNOWN_GOOD)
    assert (site.status(), site.toolkit()) == (READY, KNOWN_GOOD)


FOLDERS = ("/var/cache/apt", "/var/lib/apt", "/var/lib/dpkg", "/usr/bin")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_full_disk_of_apt_is_named_and_jobs_go_on(site, folder):
    """Arrange: a task, another toolkit to come. Act: no room, then room. Assert: it is there."""
    version = f"1.19.1-{2 + FOLDERS.index(folder)}"
    site.publish_toolkit(version, lambda package: package)
    go = f"{outfit.ROOTFS}/tmp/go-on"
    task = f"until [ -e /tmp/go-on ]; do sleep 0.2; done; {PROBE}"
    runtime = site.sh(f"sha256sum {RUNTIME}")
    running = site.start_task(task, params={"GPU_COUNT": "1"})
    try:
        with site.full(folder) as make_room:
            site.configure(nvidia_container_toolkit_version=version)
            kind, said = site.status()
            told, _, remedy = said.partition(": make room, ")
            seen = kind, " is full (" in told, folder in told, remedy[:10]
            assert seen == ("blocked", True, True, "see 'df -h"), said
            assert site.sh(f"sha256sum {RUNTIME}; find /usr/bin -name '*.dpkg-*'") == runtime
            make_room()
            site.update()
            kind, said = site.status()
            assert (kind, said[:30]) == ("active", "Worker ready (GPU: 2x NVIDIA, "), said
            assert site.toolkit() == version
            assert {*TOOLKIT} <= site.held()
            assert site.sh("dpkg --audit") == ""
        site.sh(f"touch {go}")
        output, _ = running.communicate(timeout=90)
        assert (running.returncode, OPENS in output) == (0, True), output
        assert seen_gpus(site) == 2
    finally:
        site.sh(f"touch {go}")
        running.communicate(timeout=90)
        site.sh(f"rm {go}")
        site.configure(nvidia_container_toolkit_version=KNOWN_GOOD)
        site.act("gpu-selftest", level="isolation")
    assert (site.status(), site.toolkit()) == (READY, KNOWN_GOOD)
