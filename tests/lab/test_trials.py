# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A vendor, an engine and a CI system that the product does not have: a unit's whole life.

Each stub in tests/unit/trial is a room and its registration in a copy of the tree. The charm is
the packed one with the files that differ, which is what packing the copy would make of it: of its
tree a charm has these files as they are (trial_tree.pack). That saves half a minute.
"""

import re

import pytest

from tests.lab import outfit, shellcharm, walk
from tests.lab.session import Lab, Progress
from tests.lab.site import OPENS
from tests.lab.test_actions import act
from tests.lab.test_no_ci_system import Alone, of_concourse
from tests.unit import trial_tree as trial

STUBS = (trial.VENDOR, trial.ENGINE, trial.CI_SYSTEM)
OPTIONS = {
    "ci-system": "stub",
    "stub-queue": "nightly",
    "deployment-mode": "worker",
    "enable-gpu": "true",
    "gpu-vendor": "stub",
    "container-engines": "stub=default",
    "gpu-run-group": "root",
}
READY = ("active", "Stub ready (GPU: 2x Stub, self-test passed; queue nightly)")
# What of the stubs may be on a machine.
STUB_TRACES = (
    "find /etc/stub-engine /etc/systemd/system/*stub* /etc/systemd/system/*/*stub* "
    "/usr/local/bin/stub-ci /var/lib/stub-ci 2>&-; true"
)
# Its GPUs' nodes by a command of gpu-run, and its variables.
LOOK = "for node in /dev/dri/renderD*; do (: <$node) 2>&1 | sed s/.*:.//; done; env | grep GPU_CI"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = tmp_path_factory.mktemp("tree")
    trial.make(tree)
    trial.add(tree, *STUBS)
    trial.write_tables(tree)
    return tree


@pytest.fixture(scope="module")
def site(machines_work, tree, tmp_path_factory):
    """A unit with the stubs, on a machine that another one keeps when that is removed."""
    folder = tmp_path_factory.mktemp("trials")
    lab = Lab(folder / "lab", Progress())
    try:
        outfit.prepare(lab.state_dir / "shared")
        lab.controller.wake()
        charm = trial.pack(walk.pack(), tree, folder / "trial.charm")
        lab.model.deploy(charm, "worker", OPTIONS, outfit={"gpus": 2, "vendor": "stub"})
        lab.model.deploy(shellcharm.pack(folder / "shell.charm"), "keeper", to=["0"])
        lab.settle()
        yield Alone(lab)
    finally:
        lab.controller.destroy()


def service(site):
    """The process of the stub's service, and what it was started with."""
    return site.sh("systemctl show -P MainPID -P Environment stub-ci").split()


def log(site):
    return site.lab.controller.log_path("worker/0").read_text()


def ports(site):
    return site.lab.store.column("SELECT port FROM port WHERE unit = 'worker/0'")


def test_the_stubs_are_rooms_and_their_lines(tree):
    assert {str(path) for path in trial.by_hand(tree, *STUBS)} == {
        "lib/gpu_agent/gpu/vendors/registry.py",
        "lib/gpu_agent/engines/registry.py",
        "src/ci/systems.py",
        "actions.yaml",
    }
    assert {str(path) for path in trial.written(tree)} == {
        "config.yaml",
        "docs/reference/options.md",
    }


def test_it_is_ready(site):
    assert site.status() == READY
    pid, variable = service(site)
    assert (int(pid) > 0, variable) == (True, "QUEUE=nightly")
    assert ports(site) == ["4321/tcp"]
    assert site.sh("cat /var/lib/stub-ci/published") == "worker/0"
    assert "GPU 1 Stub Trial 1 16 GiB at 0000:02:00.0, STUB-1\n" in log(site)
    assert site.sh("cat /etc/stub-engine") == "/opt/gpu-ci/engines/gpu-ci True"
    assert "Before=stub-ci.service" in site.sh("cat /etc/systemd/system/gpu-ci-selftest.service")


def test_a_command_gets_a_gpu_and_no_other(site):
    said = site.sh(f"systemd-run --wait --pipe --quiet gpu-run -- sh -c '{LOOK}'").splitlines()
    assert sorted(said[:2]) == [OPENS, "Operation not permitted"]
    assert '"model":"Stub Trial 1"' in said[2]


def test_its_self_test_passes(site):
    results, message = act(site, "gpu-selftest", level="quick")
    assert (message, results["verdict"]) == ("", "passed"), results
    assert "gpu-runtime   -    passed" in results["report"]


def test_a_pause_waits_for_its_jobs(site):
    site.sh("for job in a b; do echo nightly/$job >/var/lib/stub-ci/jobs/$job; done")
    told, _ = act(site, "pause", reason="new rack")
    assert told["state"] == "Paused: new rack (2 builds left)"
    assert site.status() == ("maintenance", told["state"])
    site.sh("rm /var/lib/stub-ci/jobs/*")
    # Its process ends with its last job, and that wakes the charm.
    site.await_status("Paused: new rack (no build left)")
    assert service(site)[0] == "0"
    act(site, "resume")
    assert site.status() == READY
    assert service(site)[0] != "0"


def test_its_action_holds_it_and_a_wrong_value_leaves_it_as_it_is(site):
    before = service(site)
    assert act(site, "stub-hold") == ({"state": "held"}, "")
    assert site.status() == ("blocked", "The stub is held: run stub-hold hold=false")
    site.configure(stub_queue="?", gpu_metrics_port="4321")
    assert site.status() == ("blocked", "stub-queue '?' is not a queue: use main")
    assert "gpu-metrics-port '4321' cannot be used: use 0 to 65535 except 4321" in log(site)
    assert service(site) == before


def test_a_switch_removes_it_and_its_data_stay(site):
    # Its option and its port are nothing to another CI system.
    site.configure(ci_system="none", selftest_on_start="false")
    kind, said = site.status()
    assert (kind, said.startswith("Ready (GPU: 2x Stub")) == ("active", True), said
    assert site.sh(STUB_TRACES).split() == [
        "/etc/stub-engine", "/var/lib/stub-ci", "/var/lib/stub-ci/jobs"
    ]  # fmt: skip
    assert ports(site) == []
    site.configure(ci_system="stub", stub_queue="weekly", reset=("gpu-metrics-port",))
    assert site.status()[0] == "active"
    assert service(site)[1] == "QUEUE=weekly"
    assert ports(site) == ["4321/tcp"]


def test_nothing_of_it_remains_and_nothing_of_others_was_there(site):
    assert of_concourse(site) == {}
    site.lab.model.remove_unit("worker/0")
    site.lab.settle()
    assert site.sh(STUB_TRACES, "keeper/0") == ""
    left = site.traces("keeper/0")
    assert {kind: found for kind, found in left.items() if found} == {}
    assert re.findall("nvidia|concourse", log(site), re.IGNORECASE) == []
