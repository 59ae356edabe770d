# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What breaks around a running build: a web or a database that dies, a network that is cut, a
machine that goes.

Each with what status says meanwhile, and how it is over.
"""

import contextlib
import json
import subprocess
import time

import pytest

from tests.lab import outfit, postgresql
from tests.lab.builds import Build
from tests.lab.site import ALL, LOOK_SECONDS, OPENS, PROBE, READY

NAME = "lab-worker-0"
# In seconds: what a build that lost its machine may take to be errored, by docs/how-to.
GIVEN_UP = 120
# So many unexplained ends of web in a row are reported as a crash loop.
STARTS = 3
COUNTS = "echo begun; n=0; while [ $n -lt 12 ]; do n=$((n+1)); echo line $n; sleep 1; done"
LINES = [f"line {n}" for n in range(1, 13)]


@pytest.fixture
def counting(site):
    """A build that prints a line each second for twelve, and has begun."""
    build = Build(site.fly, *site.fly.task(["sh", "-c", COUNTS], ["gpu"], ALL))
    build.line("begun")
    yield build
    build.wait()


def status_of(site, build: Build, seconds: float = 90) -> str:
    """Wait for a build's end and return its result from web; fly may have lost its web."""
    deadline = time.monotonic() + seconds
    while True:
        listed = site.fly.run("builds", "--json")
        found = json.loads(listed.stdout or "[]") if not listed.returncode else []
        status = next((b["status"] for b in found if str(b["id"]) == build.number), "unknown")
        if status not in ("unknown", "pending", "started"):
            return status
        assert time.monotonic() < deadline, f"{status}: {listed.stderr}\n{build.output}"
        time.sleep(LOOK_SECONDS)


def lines_of(site, build: Build) -> list[str]:
    log = site.fly.run("watch", "-b", build.number).stdout.replace("\r", "")
    return [line for line in log.splitlines() if line.startswith("line ")]


@contextlib.contextmanager
def unplugged(site, unit: str):
    """A machine whose network cable is out, as the lab's bridge has it."""
    index = site.sh("cat /sys/class/net/host0/iflink", unit).strip()
    network = site.lab.park.network
    plug = f"ip link set $(ip -o link | sed -n 's/^{index}: \\([^@:]*\\).*/\\1/p')"
    subprocess.run(network.inside(["/bin/sh", "-c", f"{plug} down"]), check=True)
    try:
        yield
    finally:
        subprocess.run(network.inside(["/bin/sh", "-c", f"{plug} up"]), check=True)


def test_a_database_that_is_killed_with_web_takes_no_build_with_it(site, counting):
    """So is web; it names what it waits for although it fails to start, and recovers by itself."""
    machine = site.lab.park.get(postgresql.MACHINE)
    web = site.machine("web/0")
    lost = f"{machine.address}:{postgresql.PORT} (connection refused)"
    machine.enter("/bin/systemctl", "kill", "--signal=KILL", "lab-postgresql")
    try:
        web.enter("/bin/systemctl", "kill", "--signal=KILL", "concourse-web")
        deadline = time.monotonic() + 120
        while int(site.sh("systemctl show -P NRestarts concourse-web", "web/0")) < STARTS:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        for unit in ("web/0", "worker/0"):
            site.lab.controller.fire(unit, "update-status")
        assert site.status("web/0") == ("waiting", f"Web cannot reach its database: {lost}")
        kind, text = site.status()
        assert (kind, text.partition(":")[0]) == (
            "waiting",
            "Waiting for a lasting connection to web's TSA",
        )
    finally:
        machine.enter("/bin/systemctl", "start", "lab-postgresql")
    assert status_of(site, counting) == "succeeded"
    # The real Concourse loses what is printed meanwhile: docs/explanation/surprises.md.
    assert set(lines_of(site, counting)) <= {*LINES}
    site.worker(NAME, 90)
    for unit in ("web/0", "worker/0"):
        site.lab.controller.fire(unit, "update-status")
    assert site.status("web/0") == ("active", "Web ready")
    assert site.status() == READY
    assert site.task(PROBE).returncode == 0


def test_a_network_that_is_cut_takes_no_build_with_it(site, counting):
    with unplugged(site, "worker/0"):
        time.sleep(4)
    assert status_of(site, counting) == "succeeded"
    assert lines_of(site, counting) == LINES


def test_a_build_whose_machine_goes_is_errored_and_the_next_one_runs(site):
    """The GPUs are tested before the next task: the verdict is of this boot.

    A step that heeds SIGTERM has time for it. Containers' first processes heed none, and systemd
    would wait 90 seconds for them.
    """
    build = Build(site.fly, *site.fly.task(["sh", "-c", "echo begun; sleep 600"], ["gpu"], ALL))
    build.line("begun")
    heard = f"{outfit.ROOTFS}/home/ci/heard"
    save = "trap 'sleep 1; echo heard >/home/ci/heard; exit' TERM"
    heeds = site.start_task(f"{save}; while :; do sleep 0.1; done", params={"GPU_COUNT": "0"})
    site.machine().reboot(timeout=45)
    begun = time.monotonic()
    heeds.kill()
    heeds.communicate(timeout=30)
    assert site.sh(f"cat {heard}; rm {heard}") == "heard\n"
    site.lab.controller.fire("worker/0", "start")
    assert status_of(site, build, GIVEN_UP) == "errored"
    assert time.monotonic() - begun < GIVEN_UP
    build.wait()
    assert site.status() == READY
    assert [w["state"] for w in site.fly.workers() if w["name"] == NAME] == ["running"]
    assert f"nvidia0 {OPENS}" in site.task(PROBE).stdout
