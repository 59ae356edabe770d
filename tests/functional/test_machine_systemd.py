# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Services are as asked while systemd executes itself anew again and again, as in its upgrade."""

import json
import os

import pytest

from tests.functional import selftest_machine

pytestmark = selftest_machine.NEEDS

SECONDS = 60 if "GPUCI_SOAK" in os.environ else 0
# Each call of systemd and systemd_transient, until systemd has been away so many times
# and so many seconds are over.
WALK = """
import itertools, json, pathlib, sys, time
from machine import systemd as services, systemd_transient as transient, polling as waiting

ANEW = pathlib.Path("/run/anew")
UNIT = "[Service]\\nExecStart=/bin/sleep infinity\\n[Install]\\nWantedBy=multi-user.target\\n"
NAME, STARTED = "asked.service", pathlib.Path("/run/started")
wrong, pids = [], set()

def expect(number, what, is_so):
    if not is_so:
        wrong.append(f"{number}: {what}")

began = time.monotonic()
for number in itertools.count():
    away = ANEW.stat().st_size if ANEW.exists() else 0
    if away >= int(sys.argv[1]) and number and time.monotonic() - began > int(sys.argv[2]):
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
    # systemd says "started" as soon as the shell is, and a stop would be before its line.
    waiting.until(lambda: STARTED.exists() and str(number) in STARTED.read_text().split(), 60)
    expect(number, "ended", services.ensure_stopped("once.service"))
expect(number, "starts each once", STARTED.read_text().split() == [*map(str, range(number))])
STARTED.unlink()
print(json.dumps(wrong))
"""
# Each first call comes through, and only its answer is lost.
LOST = """
import itertools
from machine import process

run, calls = process.run, itertools.count()

def lossy(argv, **named):
    done = run(argv, **named)
    if next(calls) % 2 == 0:
        raise process.CommandError(argv, 1, "Connection reset by peer")
    return done

process.run = lossy
"""
ANEW = "while :; do systemctl daemon-reexec; printf . >>/run/anew; sleep 0.5; done"


@pytest.fixture(scope="module")
def host():
    with selftest_machine.started("services") as host:
        yield host


def test_a_call_of_which_only_the_answer_was_lost_is_as_asked(host):
    done = host.machine.enter(*host.python, "-c", LOST + WALK, "0", "0", timeout=120)
    assert json.loads(done.stdout) == []


def test_systemd_that_is_away_for_a_moment_fails_no_call(host):
    host.sh(f"systemd-run -q --unit=anew /bin/sh -c '{ANEW}'")
    # In its namespaces only: whatever is started by systemd here would fail of it too.
    done = host.machine.enter(*host.python, "-c", WALK, "6", f"{SECONDS}", timeout=300)
    assert json.loads(done.stdout) == []
