# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Packages by the real apt in a machine, from a repository of its own: what came for us goes."""

import json
import os
import pathlib
import shutil
import tempfile

import pytest

from tests.lab.park import Park

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines need root"),
    pytest.mark.skipif(not shutil.which("systemd-nspawn"), reason="not installed: systemd-nspawn"),
    # A machine's keeper is meant to outlive who started it.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

# Name and dependencies. "before" is on the machine already.
PACKAGES = {
    "gpuci-tool": "gpuci-library, gpuci-before",
    "gpuci-library": "",
    "gpuci-before": "",
    "gpuci-other": "",
    "gpuci-theirs": "gpuci-library",
    "gpuci-extra": "",
}
MAKE = """
set -eu
mkdir -p /srv/debs && cd /srv/debs
: >Packages
make() {
    mkdir -p "$1/DEBIAN"
    printf 'Package: %s\\nVersion: 1\\nArchitecture: all\\nMaintainer: x <x@y.z>\\n' "$1" \\
        >"$1/DEBIAN/control"
    [ -z "$2" ] || echo "Depends: $2" >>"$1/DEBIAN/control"
    [ "$1" != gpuci-tool ] || echo "Recommends: gpuci-extra" >>"$1/DEBIAN/control"
    echo "Description: x" >>"$1/DEBIAN/control"
    dpkg-deb --build --root-owner-group "$1" >/dev/null
    cat "$1/DEBIAN/control" >>Packages
    sum=$(sha256sum <"$1.deb")
    printf 'Filename: ./%s.deb\\nSize: %s\\nSHA256: %s\\n\\n' \\
        "$1" "$(stat -c %s "$1.deb")" "${sum%% *}" >>Packages
}
"""
APT = """
mv /etc/apt/sources.list.d /etc/apt/sources.list.d.off 2>/dev/null || :
mkdir -p /etc/apt/sources.list.d
echo 'deb [trusted=yes] file:/srv/debs ./' >/etc/apt/sources.list
apt-get -qq update && apt-get -qqy install gpuci-before >/dev/null
"""
CALL = """
import json, sys
from machine import packages, process
commands, run = [], process.run
process.run = lambda argv, **more: commands.append(argv) or run(argv, **more)
print(json.dumps([getattr(packages, sys.argv[1])(*sys.argv[2:]), len(commands)]))
"""


class Host:
    def __init__(self, machine):
        self.machine = machine

    def sh(self, script):
        return self.machine.run(["/bin/sh"], stdin=script).stdout

    def call(self, name, *arguments):
        path = "PYTHONPATH=/srv/repo/src"
        python = ["/usr/bin/env", path, "/usr/bin/python3", "-c", CALL, name, *arguments]
        return json.loads(self.machine.run(python).stdout)

    def have(self):
        shown = self.sh("dpkg-query -W -f '${Package} ${db:Status-Status}\n' 'gpuci-*'")
        return {line.split()[0] for line in shown.splitlines() if line.endswith(" installed")}


@pytest.fixture(scope="module")
def host():
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-test-") as folder:
        park = Park(pathlib.Path(folder))
        try:
            host = Host(park.up("apt", binds_ro={"/srv/repo": ROOT}))
            host.sh(MAKE + "".join(f"make {name} '{PACKAGES[name]}'\n" for name in PACKAGES) + APT)
            yield host
        finally:
            park.destroy()


@pytest.fixture(autouse=True)
def as_at_first(host):
    yield
    host.call("remove_installed")
    host.sh("apt-get -qqy purge gpuci-theirs gpuci-library gpuci-other gpuci-tool >/dev/null")
    assert host.have() == {"gpuci-before"}


def test_missing_ones_are_installed_without_what_is_only_recommended(host):
    assert host.call("ensure_installed", "gpuci-tool", "gpuci-before")[0] is True
    assert host.have() == {"gpuci-tool", "gpuci-library", "gpuci-before"}
    # A second time, one look is all.
    assert host.call("ensure_installed", "gpuci-tool", "gpuci-before") == [False, 1]


def test_what_came_for_us_goes_and_what_was_there_stays(host):
    host.call("ensure_installed", "gpuci-tool", "gpuci-before")
    assert host.call("remove_installed")[0] is True
    assert host.have() == {"gpuci-before"}
    assert host.sh("ls /var/lib/gpu-ci").split() == []
    assert host.call("remove_installed") == [False, 0]


def test_what_somebody_else_needs_by_now_stays(host):
    host.call("ensure_installed", "gpuci-tool")
    host.sh("apt-get -qqy install gpuci-theirs >/dev/null")
    host.call("remove_installed")
    assert host.have() == {"gpuci-before", "gpuci-library", "gpuci-theirs"}


def test_one_of_two_installations_can_go_alone(host):
    host.call("ensure_installed", "gpuci-tool")
    host.call("ensure_installed", "gpuci-other")
    assert host.call("remove_installed", "gpuci-other")[0] is True
    assert host.have() == {"gpuci-before", "gpuci-library", "gpuci-tool"}


def test_half_installed_package_of_a_killed_hook_is_finished(host):
    host.sh("dpkg --unpack /srv/debs/gpuci-library.deb >/dev/null")
    assert host.call("ensure_installed", "gpuci-library", "gpuci-other")[0] is True
    assert host.have() == {"gpuci-before", "gpuci-library", "gpuci-other"}


def test_what_a_killed_removal_has_begun_is_finished(host):
    host.call("ensure_installed", "gpuci-tool")
    # What dpkg writes down first; apt does nothing while that is there.
    host.sh("dpkg-query -s gpuci-library >/var/lib/dpkg/updates/0001")
    assert host.call("remove_installed")[0] is True
    assert host.have() == {"gpuci-before"}
