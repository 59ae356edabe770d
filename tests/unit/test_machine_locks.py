# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""No user of the machine holds up what is decided under a lock, and no lock is waited for long."""

import fcntl
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest
from ops import testing

from gpu_runtime.lease_store import Store
from lifecycle import machine_claim
from machine import locks
from tests.unit.situations import state

ROOT = pathlib.Path(__file__).parents[2]
NOBODY = 65534
# Locks all that it can open, and whatever else comes up there, until it is killed.
THIEF = """
import fcntl, os, sys, time
held = {}
while True:
    for folder, _, names in os.walk(sys.argv[1]):
        for path in (folder, *(f"{folder}/{name}" for name in names)):
            for mode in (os.O_RDONLY, os.O_WRONLY):
                try:
                    found = os.open(path, mode)
                    key = os.fstat(found).st_ino
                    if key not in held:
                        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        held[key] = found
                except OSError:
                    pass
    print("locked", flush=True)
    time.sleep(0.02)
"""
# What hooks, actions and the watch decide under a lock, below a folder in the place of /.
DECIDE = """
import pathlib, sys
from lifecycle import machine_claim
from gpu_agent import paths
from gpu_agent.availability import external_use, quarantine, residual_memory as dirty
from plan.unit_id import UnitId
root = pathlib.Path(sys.argv[1])
state = root / "var/lib/gpu-ci"
paths.QUARANTINE = state / "quarantine"
paths.EXTERNAL = root / "run/gpu-ci/cordons"
unit = UnitId("worker/0", "ci", "uuid", "")
for _ in range(3):
    machine_claim.Claim(state).take(unit)
    quarantine.put("GPU-1", "Xid 79", "xid-79", "quick", "Reboot", quarantine.HEALTH)
    quarantine.lift_seen("GPU-1", "xid-79")
    quarantine.cordon("GPU-2", "for alice")
    external_use.ensure([("GPU-3", dirty.cause(2048))])
    dirty.put(paths.EXTERNAL, "GPU-4", dirty.cause(1024))
    dirty.lift(paths.EXTERNAL, "GPU-4")
    print("decided", flush=True)
"""


@pytest.fixture
def world():
    """A folder that every user may look into, as /."""
    done = subprocess.run(["mktemp", "-d", "/tmp/gpuci-locks-XXXX"], stdout=-1, check=True)
    folder = pathlib.Path(done.stdout.decode().strip())
    folder.chmod(0o755)
    for place in ("var/lib/gpu-ci/quarantine", "run/gpu-ci/cordons"):
        (folder / place).mkdir(parents=True)
    yield folder
    subprocess.run(["rm", "-rf", "--", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_no_user_who_locks_all_that_he_can_open_holds_up_a_decision(world):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/lib"}
    thief = [sys.executable, "-I", "-S", "-c", THIEF, str(world)]
    with subprocess.Popen(thief, stdout=-1, user=NOBODY, group=NOBODY, extra_groups=[]) as other:
        try:
            for _ in range(2):
                assert other.stdout.readline() == b"locked\n"
            decide = [sys.executable, "-c", DECIDE, str(world)]
            done = subprocess.run(decide, env=environment, stdout=-1, timeout=30, check=True)
        finally:
            other.kill()
    assert done.stdout.split() == [b"decided"] * 3


def test_a_lock_is_not_waited_for_without_end_and_the_error_says_where(tmp_path):
    with locks.alone_in(tmp_path):
        begun, refused = time.monotonic(), pytest.raises(TimeoutError, match="Another process")
        with refused as told, locks.alone_in(tmp_path, 0.3):
            pytest.fail("two have it")
        assert 0.3 <= time.monotonic() - begun < 5
    assert told.value.filename == f"{tmp_path}/.lock"
    with locks.alone_in(tmp_path, 0):
        pass


def test_the_stores_neither(tmp_path, monkeypatch):
    monkeypatch.setattr("gpu_runtime.lease_store._PATIENCE", 0.3)
    store, begun = Store(f"{tmp_path}/leases"), time.monotonic()
    refused = pytest.raises(TimeoutError, match="another process has had the lock")
    with store, refused as told, Store(store.folder):
        pytest.fail("two have it")
    assert 0.3 <= time.monotonic() - begun < 5
    assert told.value.filename == store.folder
    with Store(store.folder):
        pass


def test_who_waits_for_a_lock_whose_file_is_removed_shares_it_with_none(tmp_path):
    with locks.alone_in(tmp_path) as path:
        waiting = os.open(path, os.O_RDWR)
        path.unlink()
    try:
        fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # As the one that waited would have it, were the file that it opened enough.
        with locks.alone_in(tmp_path, 0) as path:
            assert path.stat().st_ino != os.fstat(waiting).st_ino
    finally:
        os.close(waiting)


def test_a_lock_that_stays_taken_is_told_in_status_and_hinders_no_revocation(context, rooms):
    before = context.run(context.on.update_status(), state())
    assert rooms.records.claim.path.exists()
    calls = []

    class Busy(machine_claim.Claim):
        def take(self, unit, found=None):
            calls.append("claim")
            raise locks.BusyError("/x/.lock", 10)

    claim = Busy(rooms.records.claim.folder)
    rooms.hand_in(authorize=lambda _: calls.append("authorize"), claim=claim)
    after = context.run(context.on.update_status(), before)
    assert calls == ["authorize", "claim"]
    assert after.unit_status == testing.WaitingStatus(
        "Another process has had the lock /x/.lock for 10 s; tried again at the next event: "
        "juju debug-log --include unit/0"
    )


def test_nothing_locks_without_a_deadline():
    """Whatever is locked in this tree is tried, or has a time after which it is given up."""
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "lib").rglob("*.py")]:
        for call in re.findall(r"(?:flock|lockf)\(.*\)", path.read_text()):
            assert "LOCK_NB" in call, f"{path}: {call}"
    for path in (*ROOT.glob("templates/*"), *ROOT.glob("lib/*/templates/*")):
        for call in re.findall(r"/flock .*", path.read_text()):
            assert "--timeout " in call, f"{path}: {call}"
