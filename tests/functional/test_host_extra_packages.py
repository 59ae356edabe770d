# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The operator's further packages by the real apt in a machine, from a repository of its own."""

import json
import pathlib
import tempfile

import pytest

from tests.fakes import aptrepo
from tests.functional.apt_machine import ALONE, NEEDS, SITE_PACKAGES
from tests.lab.park import Park

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = NEEDS

# Name and dependencies, as of Ubuntu 22.04. htop is on the machine already.
PACKAGES = {
    "ccache": "gpuci-hash",
    "gpuci-hash": "",
    "htop": "",
    "hwloc-nox": "gpuci-missing",
    "lshw": "",
    "nvtop": "libnvidia-compute-510",
    "libnvidia-compute-510": "",
    "strace": "",
}
PREPARE = f"""
{ALONE}
dpkg --purge --force-all {" ".join(PACKAGES)} 2>&1
rm -rf /etc/apt/sources.list.d/*
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/test
echo 'deb [signed-by=/srv/key.asc] file:/srv/archive /' >/etc/apt/sources.list
apt-get -qq update && apt-get -qqy install htop >/dev/null
"""
CALL = """
import json, sys
from host import extra_packages
from machine import apt
apt.LOCK_WAIT = 2
told = []
try:
    changed = extra_packages.ensure(sys.argv[1:], told.append)
except extra_packages.packages.PackageError as error:
    changed = str(error)
print(json.dumps([changed, told]))
"""


class Host:
    def __init__(self, machine):
        self.machine = machine
        self.told = []

    def sh(self, script, check=True):
        return self.machine.enter("/bin/sh", stdin=script, check=check).stdout

    def ensure(self, *names):
        path = "PYTHONPATH=/srv/repo/src:/srv/repo/lib:/srv/packages"
        python = ["/usr/bin/env", path, "/usr/bin/python3", "-B", "-c", CALL, *names]
        changed, self.told = json.loads(self.machine.enter(*python, timeout=180).stdout)
        return changed

    def have(self):
        names = " ".join(PACKAGES)
        shown = self.sh(
            f"dpkg-query -W -f '${{Package}} ${{db:Status-Status}}\n' {names} 2>&1", check=False
        )
        return {line.split()[0] for line in shown.splitlines() if line.endswith(" installed")}


@pytest.fixture(scope="module")
def booted():
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-test-") as folder:
        key = aptrepo.Key.make(pathlib.Path(folder, "gpg"))
        archive = pathlib.Path(folder, "archive")
        for name, depends in PACKAGES.items():
            more = {"Conflicts": "libnvidia-compute-510"} if name == "strace" else {}
            aptrepo.package(archive, name, "1", depends, **more)
        aptrepo.publish(archive, key)
        park = Park(pathlib.Path(folder, "park"))
        binds = {"/srv/repo": ROOT, "/srv/packages": SITE_PACKAGES, "/srv/archive": archive}
        try:
            host = Host(park.up("packages", binds_ro=binds))
            host.machine.write("/srv/key.asc", key.public)
            host.sh(PREPARE)
            yield host
        finally:
            park.destroy()


@pytest.fixture
def host(booted):
    yield booted
    booted.ensure()
    assert booted.have() == {"htop"}
    assert not booted.sh("ls /var/lib/gpu-ci", check=False)


def test_they_come_unheld_and_go_when_they_are_taken_off_the_list(host):
    assert host.ensure("ccache", "htop", "lshw") is True
    assert host.told == ["Installing ccache, lshw (3 packages)"]
    assert host.have() == {"ccache", "gpuci-hash", "htop", "lshw"}
    assert host.sh("apt-mark showhold") == ""
    assert host.ensure("ccache", "htop", "lshw") is False
    assert host.told == []
    assert host.ensure("lshw") is True
    assert host.have() == {"htop", "lshw"}
    assert host.ensure() is True
    assert host.ensure() is False


def test_one_that_was_there_before_stays_and_is_not_ours(host):
    assert host.ensure("htop") is False
    assert host.ensure() is False
    assert host.have() == {"htop"}


def test_one_that_somebody_has_taken_away_comes_again(host):
    host.ensure("lshw")
    host.sh("dpkg --purge lshw")
    assert host.ensure("lshw") is True
    assert "lshw" in host.have()


def test_one_that_brings_a_driver_is_refused_in_words(host):
    said = host.ensure("lshw", "nvtop")
    assert said == (
        "package nvtop would change libnvidia-compute-510, which belongs to a driver or the "
        "kernel: take nvtop off the option host-packages"
    )
    assert host.have() == {"htop"}
    # With that very driver there it is welcome.
    host.sh("apt-get -qqy install libnvidia-compute-510 >/dev/null")
    try:
        assert host.ensure("nvtop") is True
        assert host.ensure() is True
        said = "package strace would change libnvidia-compute-510"
        assert host.ensure("strace").startswith(said)
        assert "libnvidia-compute-510" in host.have()
    finally:
        host.sh("dpkg --purge nvtop libnvidia-compute-510 2>&1")


def test_lists_that_are_not_there_yet_are_fetched(host):
    host.sh("rm -rf /var/lib/apt/lists/*")
    assert host.ensure("lshw") is True


def test_one_that_can_not_be_installed_is_told(host):
    assert host.ensure("hwloc-nox").startswith("can't install hwloc-nox: apt said 'hwloc-nox : ")
    said = "the archives of this machine have no package numactl: run "
    assert host.ensure("numactl").startswith(said)
    assert host.have() == {"htop"}
