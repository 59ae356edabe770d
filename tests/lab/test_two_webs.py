# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Two web units behind one address: one is killed, and builds go on."""

import contextlib
import json
import re
import subprocess
import sys
import time

import pytest

from tests.lab import concourse, one_address, outfit
from tests.lab.network import GATEWAY
from tests.lab.site import LOOK_SECONDS, READY

LINES = 25
URL = f"http://{GATEWAY}:8088"
SHARED = "cd /etc/concourse/keys; sha256sum session_signing_key tsa_host_key"
# Nothing starts it again.
KILL = "systemctl mask --runtime concourse-web; systemctl kill --signal=KILL concourse-web"


@pytest.fixture
def second(site):
    """A second web unit."""
    (unit,) = site.lab.model.add_units("web")
    site.configure("web", external_url=URL)
    yield unit
    site.lab.model.set_config("web", {}, ("external-url",))
    site.lab.model.remove_unit(unit)
    site.lab.settle()
    site.fly.login()
    assert site.status("web/0") == ("active", "Web ready")


@contextlib.contextmanager
def one_address_for(site, *units):
    """The address at which people find the first of these units that is there."""
    backends = [f"{site.machine(unit).address}:8080" for unit in units]
    command = [sys.executable, one_address.__file__, f"{GATEWAY}:8088", *backends]
    with subprocess.Popen(
        site.lab.park.network.inside(command), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "listening\n"
        try:
            yield
        finally:
            process.kill()


def webs_of_worker(site):
    """Addresses of the webs that the worker is connected to."""
    found = site.sh("ss -Htn state established '( dport = :2222 )'")
    return {line.split()[3].rpartition(":")[0] for line in found.splitlines()}


def until(what, condition, seconds=150):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(LOOK_SECONDS)
    return found


def started(site):
    """The number of a build that goes on for as many seconds as it prints lines."""
    script = f"for n in $(seq {LINES}); do echo line-$n; sleep 1; done"
    config = {
        "platform": "linux",
        "rootfs_uri": f"raw://{outfit.ROOTFS}",
        "run": {"path": "sh", "args": ["-c", script]},
    }
    step = {"task": "slow", "config": config, "tags": ["gpu"]}
    *trigger, _ = site.fly.job("slow", {"jobs": [{"name": "slow", "plan": [step]}]})
    assert site.fly.run(*trigger).returncode == 0
    return build(site)["id"]


def build(site, number=None):
    listed = site.fly.run("builds", "--json")
    assert listed.returncode == 0, listed.stderr
    return next(one for one in json.loads(listed.stdout) if number in (None, one["id"]))


def test_one_is_killed_and_builds_go_on(site, second):
    webs = {site.machine(unit).address: unit for unit in ("web/0", second)}
    assert {site.status(unit) for unit in webs.values()} == {("active", "Web ready")}
    assert len({site.sh(SHARED, unit) for unit in webs.values()}) == 1
    first = until("connection", lambda: webs_of_worker(site) & set(webs)).pop()
    other = next(address for address in webs if address != first)
    with one_address_for(site, webs[first], webs[other]):
        site.fly.login()
        number = started(site)
        log = ("watch", "-b", str(number))
        until("step", lambda: site.sh("pgrep -f '[f]or n in'; true"), 60)
        site.sh(KILL, webs[first])
        try:
            # The same session: no new login is needed.
            end = until("end of the build", lambda: _end(site, number))
            assert end == "succeeded", site.fly.run(*log).stdout
            said = site.fly.run(*log).stdout
            found = [int(number) for number in re.findall(r"^\W*line-(\d+)\b", said, re.MULTILINE)]
            assert found == sorted(set(found)), "no line comes twice"
            # The real Concourse drops output while no web has the build.
            assert found[-1] == LINES
            assert len(found) == LINES or concourse.is_real()
            assert webs_of_worker(site) == {other}
        finally:
            site.sh("systemctl unmask --runtime concourse-web", webs[first])
            site.lab.controller.fire(webs[first], "update-status")
    assert site.status(webs[first]) == ("active", "Web ready")
    site.lab.controller.fire("worker/0", "update-status")
    assert site.status() == READY


def _end(site, number):
    with contextlib.suppress(AssertionError, ValueError):
        status = build(site, number)["status"]
        return status if status not in ("pending", "started") else None
