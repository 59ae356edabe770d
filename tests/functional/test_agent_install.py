# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A self-test that runs while the charm is refreshed, on a real systemd; a disk that is full."""

import json

import pytest

from tests.functional import selftest_machine

pytestmark = selftest_machine.NEEDS

HOME = "/opt/gpu-ci/app"
LAUNCHER = "/opt/gpu-ci/bin/gpu-selftest"
# Where Juju has the charm; /srv/charm, from which it is filled, can't be written to.
CHARM = "/srv/unit/charm"
SETTINGS = """
from gpu_agent.gpu.vendors import detect
from gpu_selftest import settings
settings.write(settings.Settings("worker/0", gpus=detect.detect().gpus, runc="/opt/ci/runc"))
"""
INSTALL = (
    "from gpu_selftest import service; print(service.install(on_start=True, before='', needs=''))"
)
START = """
from gpu_selftest import service
from gpu_selftest.check import Level
print(service.start(Level.ISOLATION))
"""
FOLLOW = """
import json, sys
from gpu_selftest import service
said = []
report = service.follow({run!r}, 60, said.append)
print(json.dumps([report.run, said]))
"""
# Before it tells its verdict, the self-test waits and then imports what it has not needed before.
LATE = """
    import pathlib, time
    while not pathlib.Path("/run/go-on").exists():
        time.sleep(0.05)
    from gpu_selftest import late
    watchdog.progress(late.WORD)
"""


class Host(selftest_machine.Host):
    def __init__(self, host):
        super().__init__(host.machine, host.libraries)
        self.python = [word.replace("/srv/charm", CHARM) for word in self.python]

    def refresh(self, word):
        """Another version of the charm takes the place of this one; then its hook runs."""
        self.sh(f"rm -rf {CHARM}; mkdir -p {CHARM}; cp -r /srv/charm/* {CHARM}")
        main = f"{CHARM}/lib/gpu_selftest/__main__.py"
        before, conclude, after = self.machine.read(main).partition("\n    watchdog.conclude(")
        assert conclude
        self.machine.write(main, before + LATE + conclude + after)
        self.machine.write(f"{CHARM}/lib/gpu_selftest/late.py", f"WORD = 'version {word}'\n")
        return self.run(INSTALL) == "True\n"

    def start(self):
        return self.run(START).strip()

    def follow(self, run):
        ended, said = json.loads(self.run(FOLLOW.format(run=run)))
        assert ended == run
        return [line for line in said if line.startswith("version ")]

    def versions(self):
        return set(self.sh(f"cd {HOME}; ls -d [0-9a-f]*[0-9a-f]").stdout.split())

    def current(self):
        return self.sh(f"readlink {HOME}/current", check=False).stdout.strip()


@pytest.fixture(scope="module")
def host():
    with selftest_machine.started("app") as plain:
        host = Host(plain)
        yield host
        host.run("from gpu_selftest import service; service.remove()")


@pytest.fixture
def refreshed(host):
    """Some version is installed, or the first now."""
    host.sh("rm -f /run/go-on")
    if not host.current():
        assert host.refresh("one")
        host.run(SETTINGS)
    return host


def test_self_test_that_runs_stays_of_one_version_over_refreshes(refreshed):
    run, own = refreshed.start(), refreshed.current()
    refreshed.sh("until grep -qs Checking /var/log/gpu-ci/selftest.log; do sleep 0.1; done")
    for word in ("two", "three", "four"):
        assert refreshed.refresh(word)
        assert refreshed.current() != own
    # The current one, the one before, and its own.
    assert own in refreshed.versions()
    assert len(refreshed.versions()) == 3
    refreshed.sh("touch /run/go-on")
    assert refreshed.follow(run) == ["version one"]
    assert refreshed.follow(refreshed.start()) == ["version four"]
    # Nobody runs from it now.
    assert refreshed.run(INSTALL) == "True\n"
    assert own not in refreshed.versions()
    assert refreshed.run(INSTALL) == "False\n"


def test_command_runs_without_the_charm_and_writes_nothing_where_it_runs(refreshed):
    refreshed.sh(f"touch /run/go-on; mv {CHARM} {CHARM}.gone")
    listing = f"find {HOME} -printf '%p %i %T@ %C@\\n' | sort"
    try:
        before = refreshed.sh(listing).stdout
        report = json.loads(refreshed.sh(f"{LAUNCHER} --level quick --json", check=False).stdout)
        assert report["outcome"] == "failed"  # no toolkit was installed here
        assert refreshed.sh(listing).stdout == before
    finally:
        refreshed.sh(f"mv {CHARM}.gone {CHARM}")


def test_one_by_hand_keeps_its_version_and_nobody_but_root_can(refreshed):
    own = refreshed.current()
    refreshed.sh(f"systemd-run -q --unit=byhand {LAUNCHER}")
    refreshed.sh("until grep -q pid /run/gpu-ci/selftest.lock; do sleep 0.1; done")
    other = f"exec setpriv --reuid 65534 --clear-groups flock {HOME}/{own}/stamp sleep 60"
    assert refreshed.sh(other, check=False).returncode == 66  # EX_NOINPUT: it may not open it
    for word in ("two", "three"):
        refreshed.refresh(word)
    assert own in refreshed.versions()
    refreshed.sh("systemctl kill --signal=KILL byhand")
    refreshed.sh("while systemctl is-active -q byhand; do sleep 0.1; done")
    refreshed.run(INSTALL)
    assert own not in refreshed.versions()


def test_full_disk_leaves_the_version_before_and_says_what_to_do(refreshed):
    refreshed.run("from gpu_agent import install as app; app.remove()")
    refreshed.sh(f"echo \"WORD = 'version one'\" >{CHARM}/lib/gpu_selftest/late.py")
    refreshed.sh(f"mkdir {HOME}; mount -t tmpfs -o size=45m tmpfs {HOME}; touch /run/go-on")
    try:
        refreshed.run(INSTALL)
        own = refreshed.current()
        refreshed.sh(f"echo \"WORD = 'version two'\" >{CHARM}/lib/gpu_selftest/late.py")
        told = refreshed.machine.run([*refreshed.python, "-c", INSTALL], check=False)
        last = told.stderr.splitlines()[-1]
        assert last.startswith(f"gpu_agent.install.AppError: Cannot copy the programs to {HOME}: ")
        assert "No space left on device" in last
        assert "Make room there" in last
        assert refreshed.versions() == {own}
        assert refreshed.follow(refreshed.start()) == ["version one"]
        refreshed.sh(f"mount -o remount,size=90m {HOME}")
        refreshed.run(INSTALL)
        assert refreshed.follow(refreshed.start()) == ["version two"]
    finally:
        refreshed.sh(f"umount --lazy {HOME}")
