# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""deployment-mode=all: web, worker and a PostgreSQL of the distribution on one machine."""

import json
import pathlib
import time

from tests.lab import concourse, walk
from tests.lab.builds import Build
from tests.lab.juju.addresses import network_info
from tests.lab.juju.agent import Agent
from tests.lab.site import BRIDGE, OPENS, PROBE
from tests.lab.standing import TASK, longest_pause


def test_one_machine_is_enough_and_is_left_clean(site, monkeypatch):
    model = site.lab.model
    charm = pathlib.Path(site.lab.store.application("worker")["charm"])
    options = {"deployment-mode": "all", "enable-gpu": "true", "web-port": "8081"}
    tarball = {"concourse": pathlib.Path(site.lab.setting("concourse"))}
    model.deploy(charm, "solo", options, tarball, binds=walk.BINDS, outfit={"gpus": 1})
    site.lab.settle()
    assert site.status("solo/0") == (
        "active",
        "Web and worker ready (GPU: 1x NVIDIA, self-test passed)",
    )
    keys = site.sh("cat /etc/concourse/keys/authorized_worker_keys", "solo/0").splitlines()
    assert len(keys) == 1
    assert site.traces("solo/0")["users"]

    began = site.settings("solo/0")
    site.fly = concourse.Fly(site.lab, "solo/0")
    try:
        site.fly.login()
        site.worker("lab-solo-0", 60)
        done = site.task(PROBE)
        assert done.returncode == 0, done.stdout
        assert f"nvidia0 {OPENS}" in done.stdout
        the_task_has_its_receipt(site)
        the_bridge_of_the_first_task_moves_nothing(site, began)
        web_and_worker_restart_and_a_build_loses_nothing(site)
    finally:
        site.fly = concourse.Fly(site.lab)
        site.fly.login()

    left = {}
    teardown = Agent.teardown

    def look_first(self):
        left.update(site.traces("solo/0"))
        left["databases"] = site.sh(
            "runuser -u postgres -- psql -lqt 2>&- | grep concourse; true", "solo/0"
        ).splitlines()
        teardown(self)

    monkeypatch.setattr(Agent, "teardown", look_first)
    model.remove_unit("solo/0")
    site.lab.settle()
    assert left
    assert {kind: lines for kind, lines in left.items() if lines} == {}


def the_task_has_its_receipt(site):
    """With names, since web is here: it is asked while the store has the container."""
    log = "cat /var/log/gpu-ci/receipts.log 2>&-; true"
    end = time.monotonic() + 120
    while not (lines := site.sh(log, "solo/0").splitlines()):
        assert time.monotonic() < end, site.sh("journalctl -u gpu-ci-health --no-pager", "solo/0")
        time.sleep(1)
    (receipt,) = map(json.loads, lines)
    assert (receipt["team"], receipt["outcome"]) == ("main", "ended")
    assert len(receipt["gpus"]) == 1
    action = site.lab.model.run_action("solo/0", "gpu-report", {"by": "team", "format": "json"})
    site.lab.settle()
    row = site.lab.store.row("SELECT * FROM action WHERE id = ?", action)
    report = json.loads(json.loads(row["results"])["json"])
    assert [(row["name"], row["leases"]) for row in report["rows"]] == [("main", 1)]
    assert not any("names" in note for note in report["notes"])


def web_and_worker_restart_and_a_build_loses_nothing(site):
    build = Build(site.fly, *site.fly.task(["sh", "-c", TASK], ["gpu"], {"GPU_COUNT": "1"}))
    build.line("from ")
    pids = "systemctl show -P MainPID concourse-web concourse-worker"
    before = {*site.sh(pids, "solo/0").split()}
    site.configure("solo", external_url="http://ci.example.com", extra_tags="rack-9")
    assert before.isdisjoint(site.sh(pids, "solo/0").split())
    # Its own fly may have lost its web.
    done = site.fly.run("watch", "-b", build.number)
    assert done.returncode == 0, done.stdout
    assert 1.0 < longest_pause(done.stdout) < 40, "each of the two for 19 s at most"
    build.wait()
    site.configure("solo", reset=("external-url", "extra-tags"))


def the_bridge_of_the_first_task_moves_nothing(site, began):
    site.sh(BRIDGE, "solo/0")
    site.lab.settle()
    info = network_info(site.lab.store, "solo/0")
    assert info["ingress-addresses"][0] == "10.80.0.1", "Juju offers it before all others"
    own = site.machine("solo/0").address
    assert began["CONCOURSE_PEER_ADDRESS"] == own
    assert began["CONCOURSE_EXTERNAL_URL"] == f"http://{own}:8081"
    assert site.settings("solo/0") == began, "web was not restarted"
    assert site.status("solo/0")[0] == "active"
