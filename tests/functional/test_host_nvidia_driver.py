# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""NVIDIA's driver from a signed archive, by a machine's real apt, dpkg, modprobe and systemd."""

import contextlib
import os
import pathlib
import shutil
import tempfile

import pytest
import tenacity

from tests.functional import driver_machine
from tests.functional.driver_machine import KERNEL, LISTED, NEW, NEXT, OLD, RECOMMENDED, UBUNTU
from tests.lab.park import Park

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines need root"),
    pytest.mark.skipif(not shutil.which("systemd-nspawn"), reason="not installed: systemd-nspawn"),
    # A machine's keeper is meant to outlive who started it.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

BRANCH = "580-server"
MODULES = f"linux-modules-nvidia-{BRANCH}-{KERNEL}"
NEXT_MODULES = f"linux-modules-nvidia-{BRANCH}-{NEXT}"
LOOK, OWNED, RELEASE = ("look", {}), ("owned", {}), ("release", {})
END_RELOAD = ("end_reload", {})


def of_driver(version, branch=BRANCH):
    """The packages of a driver on a machine."""
    packed, built = f"{version}-{UBUNTU}", driver_machine.BUILT[version]
    server = branch.removesuffix("-open")
    names = ("libnvidia-compute", "nvidia-kernel-common", "nvidia-utils")
    return {
        **{f"{name}-{server}": packed for name in names},
        f"nvidia-headless-no-dkms-{branch}": packed,
        f"linux-modules-nvidia-{branch}-{KERNEL}": built,
        f"linux-modules-nvidia-{branch}-generic": built,
    }


def ensure(**plan):
    return "ensure", plan


@pytest.fixture(scope="module")
def machine():
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-test-") as folder:
        made = pathlib.Path(folder, "archive")
        made.mkdir()
        driver_machine.archives(made)
        park = Park(pathlib.Path(folder, "park"))
        packages = pathlib.Path(tenacity.__file__).parents[1]
        binds = {"/srv/repo": driver_machine.ROOT, "/srv/archive": made, "/srv/packages": packages}
        try:
            machine = park.up("driver", binds_ro=binds)
            with contextlib.closing(driver_machine.DriverMachine(machine)) as host:
                yield host
        finally:
            park.destroy()


@pytest.fixture
def host(machine):
    """The machine with nothing of NVIDIA's on it, and an archive with both drivers."""
    machine.sh(driver_machine.CLEAN)
    machine.machine.write("/srv/recommended", RECOMMENDED)
    machine.machine.write("/srv/listed", LISTED)
    machine.archive("all")
    assert machine.have() == {}
    return machine


def test_bare_machine_gets_the_recommended_driver_and_its_module_loaded(host):
    before, changed, found, owned = host.calls(LOOK, ensure(), LOOK, OWNED)
    assert [before[name] for name in ("branch", "loaded", "modules", "container")] == [
        "", "", [], False,
    ]  # fmt: skip
    assert changed is True
    assert host.have() == owned == of_driver(NEW)
    assert host.held() == set(owned)
    assert found == {
        **before,
        "modules": [[KERNEL, NEW]],
        "loaded": NEW,
        "library": NEW,
        "version": NEW,
        "branch": BRANCH,
        "ours": True,
    }
    assert host.said[0] == "looking for the NVIDIA driver that fits"
    assert f"installing NVIDIA driver {BRANCH}" in host.said
    assert host.said[-1] == "loading NVIDIA's kernel module"
    # A second time, looks are all.
    assert host.call("ensure") is False
    assert host.said == []
    assert host.commands <= 8
    # What it has no packages for is an error, and leaves it alone.
    lacking = host.call("ensure", fabric_manager=True)
    assert f"have nvidia-fabricmanager-580 {OLD}, and the driver here is {NEW}" in lacking
    # Given up, it goes on, and others may move it; it goes with the unit.
    assert host.calls(RELEASE, RELEASE) == [True, False]
    assert (host.have(), host.held()) == (of_driver(NEW), set())
    assert host.sh("ls /sys/module").split() == ["nvidia", "nvidia_uvm"]
    assert host.call("remove") is True
    assert host.have() == {}
    assert host.sh("ls /var/lib/gpu-ci").split() == []


def test_driver_stays_at_its_version_and_what_is_missing_of_it_comes_back(host):
    host.archive("old")
    host.call("ensure", branch="580-server-open")
    host.archive("all")
    there = of_driver(OLD, "580-server-open")
    assert host.call("ensure") is False
    assert host.have() == there
    # As a hook that is killed half-way leaves it.
    modules = "linux-modules-nvidia-580-server-open"
    gone = f"nvidia-utils-{BRANCH} {modules}-generic {modules}-{KERNEL}"
    host.sh(f"dpkg --purge --force-all {gone}; apt-mark unhold libnvidia-compute-{BRANCH}")
    assert host.call("ensure") is True
    del there[f"{modules}-generic"]
    assert host.have() == there
    # All is unpacked, and nothing set up.
    names = " ".join(f"{name}={has}" for name, has in there.items())
    host.sh(f"mkdir /tmp/d; cd /tmp/d; apt-get -qq download {names}; dpkg --unpack *.deb")
    assert host.have() == {}
    assert host.call("ensure") is True
    assert there.items() <= host.have().items()
    assert host.held() == set(host.have())


def test_what_is_not_offered_is_an_error_that_names_what_is(host):
    said = host.call("ensure", branch="570-server")
    assert said == (
        "error: 570-server is not an NVIDIA driver in this machine's archives for its GPUs: "
        "they have 590, 580-server, 580-server-open, 535-server; with gpu-driver=auto the charm "
        "takes the recommended one"
    )
    host.archive("none")
    assert f"no module of NVIDIA's driver 535-server for kernel {KERNEL}" in host.call(
        "ensure", branch="535-server"
    )
    host.machine.write("/srv/recommended", "")
    host.machine.write("/srv/listed", "")
    assert "archives have no NVIDIA driver for its GPUs" in host.call("ensure")
    assert host.have() == {}


def test_nouveau_goes_where_nothing_uses_it(host):
    host.sh("mkdir /sys/module/nouveau; echo 1 >/sys/module/nouveau/refcnt")
    changed, found = host.calls(ensure(), LOOK)
    assert (changed, found["loaded"], found["refused"]) == (True, "", "")
    blacklist = "/etc/modprobe.d/gpu-ci-nouveau.conf"
    assert "blacklist nouveau" in host.machine.read(blacklist)
    assert host.call("ensure") is False
    host.sh("echo 0 >/sys/module/nouveau/refcnt")
    changed, found = host.calls(ensure(), LOOK)
    assert (changed, found["loaded"]) == (True, NEW)
    assert host.sh("ls /sys/module").split() == ["nvidia", "nvidia_uvm"]
    assert host.calls(RELEASE, RELEASE) == [True, False]
    assert host.sh(f"ls {blacklist} 2>&1 || :").endswith("No such file or directory\n")


def test_module_that_secure_boot_refuses_is_said_and_no_other_branch_replaces_it(host):
    said = "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"
    host.machine.write("/srv/refuses", f"{said}\n")
    changed, found, again = host.calls(ensure(), LOOK, ensure())
    assert (changed, found["loaded"], again) == (True, "", False)
    assert said in found["refused"]
    host.sh("rm /srv/refuses")
    changed, found = host.calls(ensure(branch="535-server"), LOOK)
    assert (changed, found["refused"], found["loaded"]) == (True, "", NEW)
    assert host.have() == of_driver(NEW)


def test_module_in_use_is_not_reloaded_and_what_stood_in_its_way_comes_back(host):
    host.call("ensure")
    unit = driver_machine.SERVICE.format(name="nvidia-persistenced")
    host.machine.write("/run/systemd/system/nvidia-persistenced.service", unit)
    host.sh("systemctl daemon-reload; systemctl start nvidia-persistenced")
    pid = "systemctl show -p MainPID --value nvidia-persistenced"
    first = host.sh(pid)
    # One more than nvidia_uvm: a job.
    host.sh("echo 2 >/sys/module/nvidia/refcnt")
    assert host.call("reload") is False
    assert host.sh("ls /sys/module").split() == ["nvidia", "nvidia_uvm"]
    assert host.sh(pid) not in (first, "0\n")
    # One that comes while they go.
    host.sh("echo 1 >/sys/module/nvidia/refcnt; touch /srv/busy")
    assert host.call("reload") is False
    host.sh("rm /srv/busy")
    host.machine.write("/srv/refuses", "modprobe: ERROR: Key was rejected by service\n")
    assert "can't be loaded again: modprobe: ERROR: Key was rejected" in host.call("reload")
    assert host.sh(pid) != "0\n"
    # A hook that is killed in the middle leaves this.
    host.sh("rm /srv/refuses; systemctl stop nvidia-persistenced")
    record = '{"services": ["nvidia-persistenced.service"], "modules": ["nvidia", "nvidia_uvm"]}'
    host.machine.write("/var/lib/gpu-ci/driver-reload.json", record)
    assert host.calls(END_RELOAD, END_RELOAD) == [True, False]
    assert host.sh("ls /sys/module").split() == ["nvidia", "nvidia_uvm"]
    assert host.sh("systemctl is-active nvidia-persistenced") == "active\n"
    host.sh("systemctl stop nvidia-persistenced")


def test_driver_that_somebody_else_installed_is_left_alone(host):
    names = " ".join(f"{name}={has}" for name, has in of_driver(OLD).items())
    host.sh(f"apt-get -qqy install {names} >/dev/null; apt-mark hold nvidia-utils-{BRANCH}")
    before = host.sh("ls /etc/modprobe.d")
    changed, found = host.calls(ensure(branch="535-server"), LOOK)
    assert (changed, found["loaded"], found["ours"]) == (False, "", False)
    assert host.calls(ensure(), RELEASE, ("remove", {})) == [False, False, False]
    assert host.sh("ls /etc/modprobe.d") == before
    assert host.have() == of_driver(OLD)
    assert host.held() == {f"nvidia-utils-{BRANCH}"}


def test_kernel_of_the_next_boot_gets_the_module_of_the_driver_that_is_there(host):
    host.archive("old")
    host.call("ensure")
    host.archive("all")
    host.sh(f"touch /boot/vmlinuz-{KERNEL} /boot/vmlinuz-{NEXT}")
    before, first, second, after = host.calls(LOOK, ensure(), ensure(), LOOK)
    assert (before["next_kernel"], before["modules"]) == (NEXT, [[KERNEL, OLD]])
    assert (first, second) == (True, False)
    assert after["modules"] == [[KERNEL, OLD], [NEXT, OLD]]
    assert host.have() == {**of_driver(OLD), NEXT_MODULES: driver_machine.BUILT[OLD]}
    # One that the archive has nothing for is no error.
    host.sh("touch /boot/vmlinuz-999.1.0-1-generic")
    assert host.call("ensure") is False


def test_nvswitches_get_the_fabric_manager_of_exactly_the_drivers_version(host):
    manager = "nvidia-fabricmanager-580"
    state = "systemctl is-enabled nvidia-fabricmanager; systemctl is-active nvidia-fabricmanager"
    host.sh(f"touch /boot/vmlinuz-{NEXT}")
    first, second = host.calls(ensure(fabric_manager=True), ensure(fabric_manager=True))
    assert (first, second) == (True, False)
    # The newer driver has none in this archive. Both kernels get their modules at once.
    both = {manager: f"{OLD}-{UBUNTU}", NEXT_MODULES: driver_machine.BUILT[OLD]}
    assert host.have() == {**of_driver(OLD), **both}
    assert host.sh(state).split() == ["enabled", "active"]
    # Given up, it goes on for those that use it, and does not come back with the next boot.
    assert host.call("release") is True
    assert host.sh(f"{state} || :").split() == ["disabled", "active"]
    assert host.held() == set()
    # Wanted again, it is as it was; after that, looks are all.
    assert host.call("ensure", fabric_manager=True) is True
    assert host.sh(state).split() == ["enabled", "active"]
    assert host.held() == set(host.have())
    assert host.call("ensure", fabric_manager=True) is False
    assert host.commands <= 11
    # One that fits no module which is loaded before the next boot has to wait for that.
    host.sh(f"systemctl stop nvidia-fabricmanager; echo {NEW} >/sys/module/nvidia/version")
    assert host.call("ensure", fabric_manager=True) is False
    host.sh(f"echo {OLD} >/sys/module/nvidia/version")
    assert host.call("ensure", fabric_manager=True) is True
    assert host.sh(state).split() == ["enabled", "active"]
    host.call("remove")
    assert host.have() == {}


def test_module_of_another_version_is_loaded_when_it_is_asked_for(host):
    host.archive("old")
    host.call("ensure")
    host.archive("all")
    newer, found, again, out, after = host.calls(
        ("have", of_driver(NEW)), LOOK, ensure(), ("reload", {}), LOOK
    )
    assert (newer, found["version"], found["loaded"]) == (True, NEW, OLD)
    assert (again, out, after["loaded"]) == (False, True, NEW)
    assert host.said[-1] == "reloading NVIDIA's kernel module"
    assert host.have() == of_driver(NEW)


@pytest.fixture
def container(host):
    host.sh("mkdir -p /run/systemd; echo lxc >/run/systemd/container; mkdir /sys/module/nvidia")
    return host


def libraries(version):
    server = f"{version.partition('.')[0]}-server"
    names = (f"libnvidia-compute-{server}", f"nvidia-utils-{server}")
    return dict.fromkeys(names, f"{version}-{UBUNTU}")


def test_container_gets_the_libraries_of_its_hosts_driver_and_follows_it(container):
    assert container.calls(ensure(userspace=OLD), ensure(userspace=OLD)) == [True, False]
    assert container.have() == libraries(OLD)
    assert container.held() == set(libraries(OLD))
    for version in (NEW, "535.1.2"):
        changed, found = container.calls(ensure(userspace=version), LOOK)
        assert (changed, found["library"], found["ours"]) == (True, version, True)
        assert container.have() == libraries(version)
    # Without a version it is no business of ours, and never a module.
    assert container.calls(ensure(), ensure(branch=BRANCH)) == [False, False]
    assert container.calls(RELEASE, ("remove", {})) == [True, True]
    assert container.have() == {}


def test_version_that_the_archive_has_no_more(container):
    said = container.call("ensure", userspace="580.54.03")
    assert said == (
        "error: the archives have no NVIDIA libraries of version 580.54.03, which the host's "
        f"driver has (they have {NEW}, {OLD}): let LXD bind the host's, 'lxc config device "
        "set INSTANCE DEVICE id=nvidia.com/gpu=0', or install one of those versions on the host"
    )
    assert "(they have none of 610)" in container.call("ensure", userspace="610.1.2")
    assert container.have() == {}


def test_libraries_in_a_container_that_did_not_come_by_the_charm(container):
    container.sh("touch /etc/ld.so.conf.d/00-lxdcdi.conf")
    assert container.call("ensure", userspace=OLD) is False
    container.sh("rm /etc/ld.so.conf.d/00-lxdcdi.conf")
    packed = f"{OLD}-{UBUNTU}"
    container.sh(f"apt-get -qqy install libnvidia-compute-{BRANCH}={packed} >/dev/null")
    assert container.calls(ensure(userspace=OLD), ensure(userspace=NEW)) == [False, False]
    assert container.have() == {f"libnvidia-compute-{BRANCH}": packed}
    # One that is nobody's.
    container.sh(f"dpkg --purge libnvidia-compute-{BRANCH}")
    folder = driver_machine.LIBRARIES
    name = "libnvidia-ml.so.550.1.2"
    container.sh(f"cd {folder}; touch {name}; ln -s {name} libnvidia-ml.so.1")
    assert container.call("ensure", userspace=NEW) is False
    assert container.have() == {}
    container.sh(f"rm {folder}/libnvidia-ml.so.*")


def test_half_installed_libraries_are_completed(container):
    container.call("ensure", userspace=NEW)
    names = f"libnvidia-compute-{BRANCH} nvidia-utils-{BRANCH}"
    container.sh(f"mkdir /tmp/e; cd /tmp/e; apt-get -qq download {names}; dpkg --unpack *.deb")
    assert container.have() == {}
    assert container.call("ensure", userspace=NEW) is True
    assert container.have() == libraries(NEW)
