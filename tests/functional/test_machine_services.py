# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Services are as asked while systemd executes itself anew again and again, as in its upgrade."""

import json
import os

import pytest

from tests.functional import selftest_machine

pytestmark = selftest_machine.NEEDS

SECONDS = 60 if "GPUCI_SOAK" in os.environ else 10
# Each call of machine.services and machine.transient, until systemd has been away many times.
WALK = """
import itertools, json, pathlib, sys, time
from machine import services, transient

UNIT = "[Service]\\nExecStart=/bin/sleep infinity\\n[Install]\\nWantedBy=multi-user.target\\n"
NAME, STARTED = "asked.service", pathlib.Path("/run/started")
wrong, pids = [], set()

def expect(number, what, is_so):
    if not is_so:
        wrong.append(f"{number}: {what}")

began = time.monotonic()
for number in itertools.count():
    if number >= 5 and time.monotonic() - began > int(sys.argv[1]):
        break
    expect(number, "installed", services.ensure_unit(NAME, f"{UNIT}# {number}\\n"))
    expect(number, "started", services.ensure_running(NAME, restart=True))
    pid = services.main_pid(NAME)
    expect(number, "runs", pid and pid not in pids)
    pids.add(pid)
    expect(number, "signalled", services.signal(NAME, "SIGCONT"))
    expect(number, "enabled", services.show(NAME, "UnitFileState")["UnitFileState"] == "enabled")
    expect(number, "stopped", services.ensure_stopped(NAME))
    expect(number, "runs no more", not services.main_pid(NAME))
    expect(number, "removed", services.remove_unit(NAME))
    transient.start(
        "once.service",
        ["/bin/sh", "-c", f"echo {number} >>{STARTED}; exec sleep infinity"],
        description=f"start {number}",
        properties={"SuccessExitStatus": "SIGTERM"},
    )
    shown = services.show("once.service", "Description")["Description"]
    expect(number, f"starts {shown}", shown == f"start {number}")
    expect(number, "ended", services.ensure_stopped("once.service"))
expect(number, "starts each once", STARTED.read_text().split() == [*map(str, range(number))])
print(json.dumps(wrong))
"""
ANEW = "while :; do systemctl daemon-reexec; sleep 0.5; done"


@pytest.fixture
def host():
    with selftest_machine.started("services") as host:
        yield host


def test_systemd_that_is_away_for_a_moment_fails_no_call(host):
    host.sh(f"systemd-run -q --unit=anew /bin/sh -c '{ANEW}'")
    # In its namespaces only: whatever is started by systemd here would fail of it too.
    done = host.machine.enter(*host.python, "-c", WALK, f"{SECONDS}", timeout=300)
    assert json.loads(done.stdout) == []
    log = host.machine.enter("/bin/journalctl", "-q", "--no-pager", "--grep=Reexecuting").stdout
    assert len(log.splitlines()) > 5
