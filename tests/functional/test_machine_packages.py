# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Packages by the real apt in a machine, from signed repositories: what came for us goes."""

import json
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from machine import polling as waiting
from tests.fakes import aptrepo
from tests.functional.apt_machine import NEEDS, ROOT, apt_machine
from tests.functional.apt_packages import KIT, MODULES, all_at, ensure, fill

pytestmark = NEEDS

# A disk of its own for a folder, which has no room left.
FILL = """
set -e
mkdir -p {folder} /run/full
mount -t tmpfs -o size=1g,mode=755 full /run/full
cp -a {folder}/. /run/full
mount -o remount,size=$(($(du -sk /run/full | cut -f1) + 64))k /run/full
mount --bind /run/full {folder}
cat /dev/zero >{folder}/filler 2>&- || true
"""
OLD_RECORD = [{"asked": ["gpuci-tool"], "new": ["gpuci-tool", "gpuci-library"]}]


@pytest.fixture(scope="module")
def host():
    with apt_machine(fill) as machine:
        machine.sh("apt-get -qqy install gpuci-before >/dev/null")
        yield machine


@pytest.fixture(autouse=True)
def as_at_first(host):
    yield
    host.reset()


def names(host):
    return set(host.have())


def test_missing_ones_come_without_what_is_only_recommended_and_what_came_for_us_goes(host):
    call = "packages.ensure_installed('gpuci-tool', 'gpuci-before')"
    assert host.value(call) is True
    assert names(host) == {"gpuci-tool", "gpuci-library", "gpuci-before"}
    # A second time, one look is all.
    again = host.do(call)
    assert (again["value"], len(again["commands"])) == (False, 1)
    # What was there stays.
    assert host.value("packages.remove_installed()") is True
    assert names(host) == {"gpuci-before"}
    assert host.sh("ls /var/lib/gpu-ci").split() == []
    again = host.do("packages.remove_installed()")
    assert (again["value"], again["commands"]) == (False, [])


def test_one_of_two_installations_goes_alone_and_what_somebody_else_needs_stays(host):
    host.value("packages.ensure_installed('gpuci-tool')")
    host.value("packages.ensure_installed('gpuci-other')")
    assert host.value("packages.remove_installed('gpuci-other')") is True
    assert names(host) == {"gpuci-before", "gpuci-library", "gpuci-tool"}
    host.sh("apt-get -qqy install gpuci-theirs >/dev/null")
    host.value("packages.remove_installed()")
    assert names(host) == {"gpuci-before", "gpuci-library", "gpuci-theirs"}


def test_what_a_killed_hook_has_begun_is_finished(host):
    host.sh("dpkg --unpack /srv/test/archive/gpuci-library_1_all.deb >/dev/null")
    assert host.value("packages.ensure_installed('gpuci-library', 'gpuci-other')") is True
    assert names(host) == {"gpuci-before", "gpuci-library", "gpuci-other"}
    # What dpkg writes down first of a removal; apt does nothing while that is there.
    host.sh("dpkg-query -s gpuci-other >/var/lib/dpkg/updates/0001")
    assert host.value("packages.remove_installed()") is True
    assert names(host) == {"gpuci-before", "gpuci-library"}


def test_what_apt_never_removes_by_itself_goes_too(host):
    kept = "/etc/apt/apt.conf.d/99tests-kept"
    purges = 'APT::Get::Purge "true";'
    host.sh(f"echo 'APT::NeverAutoRemove {{ \"^gpuci-other$\"; }}; {purges}' >{kept}")
    host.value(ensure({MODULES: "1", "gpuci-other": ""}, "driver"))
    assert host.holds() == {MODULES, "gpuci-other"}
    host.value("packages.remove_installed()")
    host.sh(f"rm {kept}")
    assert names(host) == {"gpuci-before"}
    assert host.sh(f"dpkg-query -W -f '${{db:Status-Status}}' {MODULES} || :") != "installed"


def test_the_record_of_earlier_revisions_is_understood(host):
    host.sh("apt-get -qqy --no-install-recommends install gpuci-tool >/dev/null")
    host.sh("mkdir -p /var/lib/gpu-ci")
    host.sh(f"echo '{json.dumps(OLD_RECORD)}' >/var/lib/gpu-ci/packages.json")
    # What came that way is the charm's, so an owner may take it over.
    assert host.value(ensure({"gpuci-tool": "1"})) is True
    assert host.value("packages.owned('toolkit')") == {"gpuci-tool": "1"}
    assert host.value("packages.remove_installed()") is True
    assert names(host) == {"gpuci-before"}


def test_exact_versions_go_up_and_down_held_all_the_while(host):
    done = host.do(ensure(KIT))
    assert (done["value"], done["error"]) == (True, "")
    assert done["said"] == ["Installing gpuci-kit 1, gpuci-kit-base 1 (3 packages)"]
    ours = {**KIT, "gpuci-common": "2"}
    assert host.value("packages.owned('toolkit')") == ours
    assert host.holds() == set(ours)
    host.sh("echo mine >/etc/gpuci-kit")
    for version in ("3", "2"):
        assert host.value(ensure(all_at(version))) is True
        assert host.have() == {**all_at(version), "gpuci-common": "2", "gpuci-before": "1"}
        assert host.holds() == set(ours)
    # What the operator has written stays, and nobody was asked.
    assert host.sh("cat /etc/gpuci-kit") == "mine\n"
    again = host.do(ensure(all_at("2")))
    assert (again["value"], again["said"]) == (False, [])
    assert {command[0] for command in again["commands"]} == {"/usr/bin/dpkg-query"}
    # A hold that a killed hook has not come to is made up for.
    host.sh("apt-mark unhold gpuci-kit-base")
    assert host.value(ensure(all_at("2"))) is True
    assert host.holds() == set(ours)
    # Whatever version there is will do, and stays.
    assert host.value(ensure(all_at(""))) is False


def test_nothing_of_ours_moves_with_the_others(host):
    host.sh("apt-get -qqy install gpuci-theirs >/dev/null")
    host.value(ensure({**KIT, "gpuci-common": "1"}))
    try:
        aptrepo.package(host.archive, "gpuci-theirs", "2", "gpuci-library")
        host.publish()
        host.sh("apt-get -qq update && apt-get -qqy dist-upgrade >/dev/null")
    finally:
        (host.archive / "gpuci-theirs_2_all.deb").unlink()
        host.publish()
    assert host.have() == {
        **KIT, "gpuci-common": "1", "gpuci-before": "1", "gpuci-theirs": "2", "gpuci-library": "1",
    }  # fmt: skip


def test_another_ones_package_is_left_alone_or_named(host):
    host.sh("apt-get -qqy install gpuci-kit-base=2 gpuci-other >/dev/null")
    wrong = host.error(ensure(KIT))
    assert "package gpuci-kit-base 2 was not installed by gpu-ci-worker" in wrong["error"]
    assert "apt-get install --allow-downgrades gpuci-kit-base=1" in wrong["error"]
    assert wrong["passes"] is False
    # Nor does it go for another.
    wrong = host.error(ensure({"gpuci-rival": "1"}))
    assert "gpuci-other 1 was not installed by gpu-ci-worker" in wrong["error"]
    assert "apt-get purge gpuci-other" in wrong["error"]
    # Nor down for another.
    wrong = host.error(ensure({"gpuci-kit": "1"}))
    assert "gpuci-kit-base" in wrong["error"]
    assert names(host) == {"gpuci-before", "gpuci-kit-base", "gpuci-other"}
    # At the right version it serves, and stays another's.
    assert host.value(ensure(all_at("2"))) is True
    assert host.holds() == {"gpuci-kit", "gpuci-common"}
    host.value("packages.remove_installed()")
    assert names(host) == {"gpuci-before", "gpuci-kit-base", "gpuci-other"}
    assert "gpuci-kit-base" in host.sh("apt-mark showmanual").split()


def test_holds_of_the_operator_stay(host):
    host.sh("apt-get -qqy install gpuci-library >/dev/null; apt-mark hold gpuci-library")
    host.value(ensure({**KIT, "gpuci-library": "1"}))
    assert host.holds() == {*KIT, "gpuci-common", "gpuci-library"}
    assert host.value("packages.release_holds('toolkit')") is True
    assert host.holds() == {"gpuci-library"}
    assert host.value("packages.release_holds('toolkit')") is False
    assert host.value("packages.owned('toolkit')") == {**KIT, "gpuci-common": "2"}
    # One of ours that the operator holds by now moves neither up nor away.
    host.sh("apt-mark hold gpuci-kit-base")
    wrong = host.error(ensure(all_at("2")))
    assert "apt-mark unhold gpuci-kit-base" in wrong["error"]
    host.value("packages.remove_installed()")
    assert names(host) == {"gpuci-before", "gpuci-library", "gpuci-kit-base"}
    assert host.holds() == {"gpuci-library", "gpuci-kit-base"}
    host.sh("apt-mark unhold gpuci-kit-base gpuci-library")


def test_some_of_an_owners_packages_are_removed_and_the_rest_is_left_to_the_machine(host):
    wanted = {"gpuci-tool": "", "gpuci-other": ""}
    assert host.value(ensure(wanted, "host-packages")) is True
    assert host.value("packages.remove_installed('gpuci-tool')") is True
    assert names(host) == {"gpuci-before", "gpuci-other"}
    assert host.value("packages.owned('host-packages')") == {"gpuci-other": "1"}
    assert host.value("packages.disown('host-packages')") is True
    assert host.value("packages.disown('host-packages')") is False
    assert host.holds() == set()
    host.value("packages.remove_installed()")
    assert names(host) == {"gpuci-before", "gpuci-other"}


def test_a_successor_takes_the_place_of_ours_and_leaves_nothing(host):
    host.value(ensure(KIT))
    assert host.value(ensure({"gpuci-next": "1"})) is True
    assert host.value("packages.owned('toolkit')") == {"gpuci-next": "1", "gpuci-common": "2"}
    # Purged, not just removed: no line of theirs is left.
    form = "${Package} ${db:Status-Status}\n"
    left = host.sh(f"dpkg-query -W -f '{form}' 'gpuci-k*' || :").splitlines()
    assert [line for line in left if not line.endswith(" not-installed")] == []
    host.value("packages.remove_installed()")
    assert names(host) == {"gpuci-before"}


def test_what_is_held_for_one_owner_no_other_moves(host):
    host.value(ensure(KIT))
    for owner, wanted in (("driver", {"gpuci-next": "1"}), ("driver", {"gpuci-common": "1"})):
        wrong = host.error(ensure(wanted, owner))
        assert "is held for gpu-ci-worker's toolkit, but has to change for" in wrong["error"]
    assert host.have() == {**KIT, "gpuci-common": "2", "gpuci-before": "1"}
    assert host.holds() == {*KIT, "gpuci-common"}


def test_what_cannot_be_had(host):
    wrong = host.error(ensure(all_at("9")))
    assert "no package gpuci-kit 9 (have 3, 2, 1)" in wrong["error"]
    assert wrong["passes"] is False
    assert "no package gpuci-nowhere: run " in host.error(ensure({"gpuci-nowhere": ""}))["error"]
    wrong = host.error("packages.ensure_installed('gpuci-broken')")
    assert "Depends: gpuci-nowhere (>= 2)" in wrong["error"]
    assert names(host) == {"gpuci-before"}
    assert host.sh("ls /var/lib/gpu-ci 2>/dev/null || :") == ""


def test_a_package_that_fails_is_named_with_what_it_said_and_healed(host):
    host.value(ensure(KIT))
    host.sh("touch /run/gpuci-bad")
    wrong = host.error(ensure(all_at("2")))
    assert "package gpuci-kit-base failed" in wrong["error"]
    assert "no module for this kernel" in wrong["error"]
    assert "dpkg --configure -a" in wrong["error"]
    assert host.error(ensure(all_at("2")))["error"].startswith("can't install")
    host.sh("rm /run/gpuci-bad")
    # Forward as well as back.
    assert host.value(ensure(KIT)) is True
    assert host.have() == {**KIT, "gpuci-common": "2", "gpuci-before": "1"}
    assert host.holds() == {*KIT, "gpuci-common"}
    assert host.sh("dpkg --audit") == ""
    # Nor does what can't be finished stay.
    host.sh("touch /run/gpuci-bad")
    host.error(ensure(all_at("2")))
    assert host.value("packages.remove_installed()") is True
    assert names(host) == {"gpuci-before"}
    assert host.sh("dpkg --audit; ls /var/lib/gpu-ci") == ""


@pytest.mark.parametrize(
    ("at", "then"),
    [
        ("gpuci-kit-base-postinst", "goes on"),
        ("gpuci-common-preinst", "goes on"),
        ("gpuci-common-preinst", "is removed"),
    ],
)
def test_apt_killed_at_work_is_gone_on_with_or_undone(host, at, then):
    host.sh(f"touch /run/gpuci-slow-{at}")
    call = ensure(KIT).replace("said.append", "print")
    script = (
        "import sys; sys.path[:0] = ['/srv/repo/src', '/srv/repo/lib', '/srv/packages']\n"
        f"from machine import packages\n{call}"
    )
    unit = ["/usr/bin/systemd-run", "--quiet", "--unit=gpuci-killed", "--collect"]
    host.machine.enter(*unit, "/usr/bin/python3", "-B", "-c", script)
    name, _, which = at.rpartition("-")
    script = f"/var/lib/dpkg/(info/{name}.{which}|tmp.ci/{which})"
    assert waiting.until(lambda: host.sh(f"pgrep -f '{script}' || :"), 180, 0.3)
    host.machine.kill_unit("gpuci-killed")
    active = "systemctl is-active gpuci-killed || :"
    assert waiting.until(lambda: "inactive" in host.sh(active), 180, 0.3)
    host.sh("rm /run/gpuci-slow-*")
    # It is known whose they are, though nothing is whole.
    assert set(host.record()[0]["new"]) == {*KIT, "gpuci-common"}
    assert "gpuci-kit" not in host.have()
    assert host.sh("dpkg --audit") != ""
    if then == "is removed":
        assert host.value("packages.remove_installed()") is True
        assert host.sh("ls /var/lib/gpu-ci") == ""
        left = {}
    else:
        assert host.value(ensure(KIT)) is True
        left = {**KIT, "gpuci-common": "2"}
    assert host.have() == {**left, "gpuci-before": "1"}
    assert host.holds() == {*left}
    assert host.sh("dpkg --audit") == ""


def test_another_apt_at_work_is_waited_for_and_named(host):
    locked = """
import fcntl, sys
files = [open(path, "w") for path in sys.argv[1:]]
for file in files: fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
    for path in ("/var/lib/dpkg/lock-frontend", "/var/lib/apt/lists/lock"):
        argv = [*host.machine.enter_command(), "/usr/bin/python3", "-c", locked, path]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            child.stdout.readline()
            wrong = host.error(ensure({"gpuci-other": "1"}))
        finally:
            child.communicate()  # closes its stdin
        assert wrong["passes"] is True
        assert "is working on the machine's packages: wait until it ends" in wrong["error"]
    assert "python3" in wrong["error"]
    assert host.value(ensure({"gpuci-other": "1"})) is True


def test_a_full_disk_is_told(host):
    host.sh(
        "mount -t tmpfs -o size=64k tmpfs /var/cache/apt/archives\n"
        "mkdir /var/cache/apt/archives/partial"
    )
    try:
        wrong = host.error(ensure({**KIT, "gpuci-other": "1", "gpuci-tool": "1"}))
    finally:
        host.sh("umount /var/cache/apt/archives")
    assert "the disk of /var/cache/apt/archives is full" in wrong["error"]
    assert "df -h" in wrong["error"]
    assert wrong["passes"] is False
    assert names(host) == {"gpuci-before"}
    # What did not come at all is the operator's when he brings it.
    assert host.sh("ls /var/lib/gpu-ci") == ""
    host.sh("apt-get -qqy install gpuci-other gpuci-library >/dev/null")
    assert host.value(ensure({**KIT, "gpuci-other": "1", "gpuci-tool": "1"})) is True
    assert host.holds() == {*KIT, "gpuci-common", "gpuci-tool"}
    host.value("packages.remove_installed()")
    assert names(host) == {"gpuci-before", "gpuci-other", "gpuci-library"}


@pytest.mark.parametrize("folder", ["/var/lib/apt", "/var/lib/dpkg", "/usr/share/gpuci"])
def test_a_full_disk_of_its_own_is_named_and_the_next_event_has_all(host, folder):
    host.sh(FILL.format(folder=folder))
    try:
        wrong = host.error(ensure({**KIT, "gpuci-tool": "1"}))
        told, _, remedy = wrong["error"].partition(": make room, ")
        assert (" is full (" in told, folder in told, remedy[:10]) == (True, True, "see 'df -h"), (
            told
        )
        if folder == "/var/lib/apt":
            wrong = host.error("packages.refresh()")
            assert (
                "fetch the lists of packages: the disk of /var/lib/apt is full" in wrong["error"]
            )
        host.sh(f"rm {folder}/filler; mount -o remount,size=1g /run/full")
        host.value(ensure({**KIT, "gpuci-tool": "1"}))
        assert host.holds() == {*KIT, "gpuci-common", "gpuci-library", "gpuci-tool"}
        assert host.sh("dpkg --audit") == ""
        host.value("packages.remove_installed()")
        assert names(host) == {"gpuci-before"}
    finally:
        host.sh(f"umount --lazy {folder} /run/full")


def test_what_a_hook_was_killed_before_is_forgotten_by_the_next(host):
    asked = ["gpuci-other", "gpuci-tool"]
    entry = {"asked": asked, "new": [*asked, "gpuci-library"], "owner": "toolkit", "held": []}
    host.sh("mkdir -p /var/lib/gpu-ci")
    host.sh(f"echo '{json.dumps([entry])}' >/var/lib/gpu-ci/packages.json")
    host.value(ensure({"gpuci-common": ""}, "driver"))
    host.sh("apt-get -qqy --no-install-recommends install gpuci-tool >/dev/null")
    host.value(ensure({"gpuci-tool": "1"}))
    assert host.holds() == {"gpuci-common"}
    host.value("packages.remove_installed()")
    assert names(host) == {"gpuci-before", "gpuci-library", "gpuci-tool"}


@pytest.fixture(scope="module")
def unattended(host):
    """The real unattended-upgrades on the machine, which the host need not have."""
    with tempfile.TemporaryDirectory(dir=host.folder) as folder:
        wanted = ["unattended-upgrades", "python3-distro-info"]
        argv = "timeout 60 apt-get -q -o APT::Sandbox::User=root download".split() + wanted
        cached = ROOT / ".soak/unattended-upgrades"
        if cached.is_dir():
            for deb in cached.glob("*.deb"):
                shutil.copy(deb, folder)
        elif subprocess.run(
            argv, cwd=folder, capture_output=True, check=False, timeout=90
        ).returncode:
            pytest.skip("unattended-upgrades can't be downloaded")
        name = pathlib.Path(folder).name
        host.sh(
            "export DEBIAN_FRONTEND=noninteractive\n"
            f"dpkg --unpack /srv/test/{name}/*.deb >/dev/null && dpkg --configure -a >/dev/null\n"
            "echo 'Unattended-Upgrade::Origins-Pattern { \"origin=tests\"; };' "
            ">/etc/apt/apt.conf.d/99tests"
        )
    yield "unattended-upgrade --verbose"
    host.sh("rm /etc/apt/apt.conf.d/99tests")


def test_unattended_upgrades_move_nothing_of_ours(host, unattended):
    host.sh("apt-get -qqy install gpuci-theirs >/dev/null")
    host.value(ensure({**KIT, "gpuci-common": "1"}))
    try:
        aptrepo.package(host.archive, "gpuci-theirs", "2", "gpuci-library")
        host.publish()
        said = host.sh(f"apt-get -qq update && {unattended} 2>&1")
    finally:
        (host.archive / "gpuci-theirs_2_all.deb").unlink()
        host.publish()
    # It was at work, and left ours.
    assert host.have()["gpuci-theirs"] == "2", said
    assert {name: host.have()[name] for name in KIT} == KIT
    assert host.have()["gpuci-common"] == "1"
