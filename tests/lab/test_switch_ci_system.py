# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A deployed unit gets another CI system: what ends, what goes on, and the way back."""

import os
import subprocess

import pytest

from tests.lab.juju.agent import STRACE, Interruption
from tests.lab.leases import cards, holders
from tests.lab.site import PROBE, READY
from tests.lab.test_actions import act
from tests.lab.test_no_ci_system import People, of_concourse, opened

pytestmark = pytest.mark.usefixtures("untested")

BUILD = "sleep 31417 || :; echo finished"
KEYS = "cat /etc/concourse/keys/authorized_worker_keys; true"


@pytest.fixture(scope="module")
def people(site):
    people = People(site)
    yield people
    site.configure(reset=("gpu-run-group",))
    site.sh("chmod 755 /srv; rm /srv/*.*; userdel -r alice 2>&-; groupdel gpu-users")


@pytest.fixture
def as_deployed(site):
    """A worker of Concourse; the same again afterwards."""
    yield site
    if site.lab.model.config("worker")["ci-system"] != "concourse":
        come_back(site)


def come_back(site):
    """Have Concourse again; web learns of the worker's new key after the hook that made it."""
    site.configure(reset=("ci-system", "drain-timeout"))
    site.worker("lab-worker-0", 60)
    site.wait_for_tag("gpu-count=2")
    site.configure()
    assert site.status() == READY


def of_people(site):
    """The GPUs of gpu-run's commands, by command."""
    held = holders(site)
    return {name: held[name]["gpus"] for name in held if name.startswith("gpu-run-")}


def is_without(site):
    """Whether the unit is ready without Concourse, and nothing of that is on its machine."""
    kind, said = site.status()
    assert (kind, said.startswith("Ready (GPU: 2x NVIDIA")) == ("active", True), said
    assert "with ci-system=none" in said
    assert of_concourse(site) == {}
    return True


def test_builds_end_leases_go_on_and_the_worker_comes_back(as_deployed, people):
    """Arrange: a build and a command. Act: none, and back. Assert: neither is interrupted."""
    site = as_deployed
    people.start("on")
    people.begun("on")
    had = of_people(site)
    running = site.start_task(BUILD)
    end = subprocess.Popen(
        [*site.machine().enter_command(), "/bin/sh", "-c", "sleep 20; pkill -xf 'sleep 31417'"]
    )
    site.configure(ci_system="none")
    assert end.wait(60) == 0
    output, _ = running.communicate(timeout=90)
    assert running.returncode == 0, output
    assert "finished" in output
    assert is_without(site)
    assert of_people(site) == had
    assert site.fly.workers() == []
    site.lab.controller.fire("web/0", "update-status")
    assert site.sh(KEYS, "web/0") == ""
    people.start("without")
    assert len(opened(people.begun("without"))) == 1
    site.sh("touch /srv/without.go")
    come_back(site)
    assert people.end("on")
    done = site.task(PROBE)
    assert done.returncode == 0, done.stdout
    assert len(cards(done.stdout)) == 2


def test_a_build_that_does_not_end_in_time_is_interrupted(as_deployed):
    site = as_deployed
    site.configure(drain_timeout="10s")
    running = site.start_task(BUILD)
    site.configure(ci_system="none")
    output, _ = running.communicate(timeout=120)
    assert running.returncode != 0, output
    assert is_without(site)
    assert site.sh("pgrep -xf 'sleep 31417'; true") == ""
    assert act(site, "gpu-leases")[0]["free"] == "2 of 2"


@pytest.mark.parametrize(
    "interruption",
    [
        Interruption(at_command=12),
        pytest.param(
            Interruption(at_call=("unlinkat", 400)),
            marks=pytest.mark.skipif(not os.path.exists(STRACE), reason="there is no strace"),
        ),
    ],
    ids=["before", "in the middle of the release"],
)
def test_a_hook_that_is_killed_half_way_is_ended_by_the_next(as_deployed, interruption):
    site = as_deployed
    site.lab.model.set_config("worker", {"ci-system": "none"}, times=1)
    site.lab.controller.agent("worker/0").interruption = interruption
    site.lab.settle()
    assert "failed" in site.lab.controller.log_path("worker/0").read_text()[-20000:]
    assert is_without(site)


def test_a_ci_system_that_does_not_exist_is_refused_and_changes_nothing(as_deployed):
    site = as_deployed
    running = site.start_task(BUILD)
    files = "find /etc/gpu-ci /etc/concourse /opt/gpu-ci -type f -exec sha256sum {} + | sort"
    before = site.sh(files)
    site.configure(ci_system="concurse")
    kind, said = site.status()
    assert (kind, said.startswith("ci-system 'concurse' ")) == ("blocked", True), said
    assert "concourse" in said
    assert "none" in said
    assert site.sh(files) == before
    site.sh("pkill -xf 'sleep 31417'")
    output, _ = running.communicate(timeout=90)
    assert running.returncode == 0, output
    assert site.task("true").returncode == 0


def test_web_is_not_taken_away_by_a_mode_that_does_not_go_with_none(site):
    before = site.settings("web/0")
    site.configure("web", ci_system="none")
    try:
        kind, said = site.status("web/0")
        assert kind == "blocked"
        assert "deployment-mode 'web' is not for ci-system=none: use worker" in said
        assert site.settings("web/0") == before
        assert site.task("true").returncode == 0
    finally:
        site.configure("web", reset=("ci-system",))
    assert site.status("web/0") == ("active", "Web ready")
