# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A unit without a CI system, on the packed charm: engines and gpu-run have its GPUs."""

import json

import pytest

from tests.lab import outfit, walk
from tests.lab.leases import holders
from tests.lab.session import Lab, Progress
from tests.lab.site import OPENS, PROBE, TRACES, Site
from tests.lab.test_actions import act

READY = ("active", "Ready (GPU: 2x NVIDIA, self-test passed)")
OPTIONS = {"ci-system": "none", "deployment-mode": "worker", "enable-gpu": "true"}
# Concourse's on a machine: files, unit, user, and the ports of web, its TSA and its worker.
CONCOURSE = {
    "files": "find /opt/concourse /etc/concourse /var/lib/concourse /usr/local/lib/concourse* "
    "-type f",
    "units": "systemctl list-unit-files --plain --no-legend 'concourse*'",
    "processes": TRACES["processes"].replace("|gpu-ci", ""),
    "user": TRACES["users"],
    "ports": "ss -Hltn | grep -E ':(2222|7777|7788|8080|8888) '",
    "forwarding": "ls /etc/sysctl.d | grep gpu-ci",
}
# A command of alice's that prints what it sees, and then waits for a file.
ALICE = (
    "systemd-run --quiet --collect --unit=alice-{name} -p User=alice -p KillMode=process "
    "-p StandardOutput=truncate:/srv/{name}.out -p StandardError=truncate:/srv/{name}.err "
    "/usr/local/bin/gpu-run {options} -- sh -c "
    "'{probe} echo begun; until [ -e /srv/{name}.go ]; do sleep 0.1; done; echo whole'"
)
UNTIL = "for i in $(seq 300); do {0} && exit; sleep 0.2; done; cat /srv/{1}.err; exit 1"


class Alone(Site):
    """A site without a web, and so without a CI system's own client."""

    def __init__(self, lab):
        self.lab = lab


class People:
    """Commands that alice runs by gpu-run on the machine of worker/0."""

    def __init__(self, site):
        self._site = site
        site.sh("groupadd --system gpu-users; useradd -m -G gpu-users alice; chmod 777 /srv")
        site.configure(gpu_run_group="gpu-users")

    def start(self, name, options=""):
        """Start a command; it may have to wait."""
        probe = PROBE.replace("'", "'\\''")
        self._site.sh(ALICE.format(name=name, options=options, probe=probe))

    def begun(self, name):
        """Wait until a command has begun; return what it prints of its GPUs."""
        self._site.sh(UNTIL.format(f"grep -q begun /srv/{name}.out", name))
        return self._site.sh(f"cat /srv/{name}.out")

    def said(self, name):
        """Wait until gpu-run has refused a command; return what it says."""
        self._site.sh(UNTIL.format(f"! systemctl -q is-active alice-{name}", name))
        return self._site.sh(f"cat /srv/{name}.err")

    def end(self, name):
        """Let a command end; return whether it came to its end."""
        self._site.sh(f"touch /srv/{name}.go")
        self._site.sh(UNTIL.format("! systemctl -q is-active 'gpu-run-*.scope'", name))
        return "whole" in self._site.sh(f"cat /srv/{name}.out")


@pytest.fixture(scope="module")
def site(machines_work, tmp_path_factory):
    """A machine with two GPUs and a unit without a CI system, and nothing else in the model."""
    lab = Lab(tmp_path_factory.mktemp("none"), Progress())
    try:
        outfit.prepare(lab.state_dir / "shared")
        lab.controller.wake()
        lab.model.deploy(walk.pack(), "worker", OPTIONS, outfit={"gpus": 2})
        lab.settle()
        yield Alone(lab)
    finally:
        lab.controller.destroy()


@pytest.fixture(scope="module")
def people(site):
    return People(site)


def opened(output):
    """The numbers of the cards that a command of gpu-run's can open; it sees the others' nodes."""
    return [n for n in (0, 1) if f"nvidia{n} {OPENS}" in output.splitlines()]


def of_concourse(site):
    """What there is of Concourse on the machine; empty without it."""
    found = {kind: site.sh(f"{script} 2>&-; true") for kind, script in CONCOURSE.items()}
    return {kind: text for kind, text in found.items() if text}


def test_it_is_ready_and_nothing_of_concourse_is_on_the_machine(site):
    assert site.status() == READY
    assert of_concourse(site) == {}
    site.configure(container_engines="podman")
    assert site.status() == READY
    assert "/opt/gpu-ci/engines/gpu-ci" in site.sh("cat /etc/containers/containers.conf.d/*")
    log = site.lab.controller.log_path("worker/0").read_text()
    assert "download" not in log.lower()
    assert of_concourse(site) == {}


def test_its_self_test_passes_with_the_machines_own_runc(site):
    results, message = act(site, "gpu-selftest", level="isolation")
    assert message == ""
    assert results["verdict"] == "passed", results
    assert results["report"].startswith("passed: quick and isolation, ")
    assert json.loads(site.sh("cat /etc/gpu-ci/selftest.json"))["runc"] == ""
    assert of_concourse(site) == {}


def test_gpu_run_gets_its_gpu_and_no_other(site, people):
    people.start("one")
    said = people.begun("one")
    assert len(opened(said)) == 1
    assert said.count("Operation not permitted") == 1
    assert "NVIDIA_VISIBLE_DEVICES=GPU-" in said
    assert len(holders(site)) == 1
    assert act(site, "gpu-leases")[0]["free"] == "1 of 2"
    assert people.end("one")
    assert act(site, "gpu-leases")[0]["free"] == "2 of 2"


def test_health_metrics_and_usage_records_are_as_everywhere(site):
    assert site.sh("systemctl is-active gpu-ci-health").strip() == "active"
    metrics = site.sh("busybox wget -qO- http://127.0.0.1:335/metrics")
    assert metrics.count("\ngpuci_gpu_quarantined{") == 2
    site.sh(UNTIL.format("[ -s /var/log/gpu-ci/receipts.log ]", "one"))
    (record,) = site.sh("cat /var/log/gpu-ci/receipts.log").splitlines()
    assert json.loads(record)["gpus"]


def test_a_pause_refuses_new_requests_and_running_ones_go_on(site, people):
    people.start("runs")
    people.begun("runs")
    results, _ = act(site, "pause", reason="new fans")
    assert results["state"] == "Paused: new fans (1 lease left)"
    assert site.status() == ("maintenance", "Paused: new fans (1 lease left)")
    people.start("refused")
    said = people.said("refused")
    assert "unusable: the unit is drained or paused" in said, said
    assert people.end("runs")
    site.configure()
    assert site.status() == ("maintenance", "Paused: new fans (no lease left)")
    act(site, "resume")
    assert site.status() == READY
    for name in ("after", "after-a-hook"):
        people.start(name)
        people.begun(name)
        assert people.end(name)
        site.configure()
        assert site.status() == READY


def test_a_pause_reaches_gpus_while_an_option_keeps_them_as_they_are(site, people):
    site.configure(gpu_device_ids="7")
    try:
        act(site, "pause", reason="dust")
        kind, said = site.status()
        assert kind == "blocked"
        assert said.endswith("Paused: dust (no lease left)")
        people.start("closed")
        assert "the unit is drained or paused" in people.said("closed")
    finally:
        act(site, "resume")
        site.configure(reset=("gpu-device-ids",))
    assert site.status() == READY


# A CI system and a mode, and what status says of them.
REFUSED = (
    ("concurse", "worker", "ci-system 'concurse' "),
    ("none", "web", "deployment-mode 'web' is not for ci-system=none: use worker"),
    ("none", "all", "deployment-mode 'all' is not for ci-system=none: use worker"),
)


def test_what_does_not_go_together_is_refused_and_changes_nothing(site, people):
    people.start("under")
    people.begun("under")
    files = "find /etc/gpu-ci /opt/gpu-ci /etc/systemd/system -type f -exec sha256sum {} + | sort"
    before = site.sh(files)
    try:
        for ci_system, mode, said in REFUSED:
            site.configure(ci_system=ci_system, deployment_mode=mode)
            assert site.status()[0] == "blocked"
            assert said in site.status()[1]
            assert site.sh(files) == before
            assert of_concourse(site) == {}
        people.start("beside")
        people.begun("beside")
    finally:
        site.configure(ci_system="none", deployment_mode="worker")
    site.sh("touch /srv/beside.go")
    assert people.end("under")
    assert site.status() == READY


def test_a_second_unit_on_the_machine_says_whose_it_is(site):
    site.lab.model.deploy(walk.pack(), "other", OPTIONS, to=["0"])
    site.lab.settle()
    kind, said = site.status("other/0")
    assert (kind, "belongs to worker/0" in said) == ("blocked", True), said
    assert site.status() == READY
    site.lab.model.remove_unit("other/0", force=True)
    site.lab.settle()
    site.configure()
    assert site.status() == READY
