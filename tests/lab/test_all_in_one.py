# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""deployment-mode=all: web, worker and a PostgreSQL of the distribution on one machine.

The backup of another web is brought back there, and that one's worker comes by itself.
"""

import base64
import json
import pathlib
import secrets
import threading
import time

import pytest

from ci.concourse.backup import archive
from tests.lab import concourse, outfit, standing, walk
from tests.lab.juju.addresses import network_info
from tests.lab.juju.agent import Agent
from tests.lab.site import BRIDGE, LOOK_SECONDS, OPENS, PROBE, READY

HOME = "home/0"
HOME_READY = ("active", "Web and worker ready (GPU: 1x NVIDIA, self-test passed)")
# A tag of the other worker that the one of this machine has not.
OF_WORKER = "gpu-count=2"
FOLDER = "/var/backups/gpu-ci"
KEPT = f"{FOLDER}/kept.tar"
KEY = {"encryption-key": secrets.token_hex(16)}
SAID = "said before the web was lost"
# PostgreSQL's own program below Debian's, which stops at the step that makes the change.
STOPS = """
case "$*" in *RENAME*) touch /tmp/at-rename; sleep 600;; esac
exec /usr/lib/postgresql/*/bin/psql "$@"
"""


def act(site, unit, action, /, **params):
    """Results of an action, and why it failed if it did."""
    number = site.lab.model.run_action(unit, action, params)
    site.lab.settle()
    row = site.lab.store.row("SELECT * FROM action WHERE id = ?", number)
    return json.loads(row["results"]), row["message"]


def job(site):
    """fly's arguments that run a job of a pipeline, on the worker with GPUs."""
    config = {
        "platform": "linux",
        "rootfs_uri": f"raw://{outfit.ROOTFS}",
        "run": {"path": "echo", "args": [SAID]},
    }
    step = {"task": "tell", "config": config, "tags": [OF_WORKER]}
    return site.fly.job("kept", {"jobs": [{"name": "kept", "plan": [step]}]})


def builds(site):
    done = site.fly.run("builds", "--json")
    assert done.returncode == 0, done.stderr
    return {one["id"]: one for one in json.loads(done.stdout) or []}


@pytest.fixture(scope="module")
def saved(site):
    """A backup of a web whose database is encrypted: its bytes, and the build that is in it."""
    uri = site.lab.model.secrets.add("kept-key", KEY)
    site.lab.model.secrets.grant("kept-key", "web")
    site.configure("web", database_encryption_key=uri)
    site.fly.login()
    before = set(builds(site))
    done = site.fly.run(*job(site))
    assert done.returncode == 0, done.stdout
    (number,) = set(builds(site)) - before
    results, message = act(site, "web/0", "backup")
    assert message == ""
    path = results["path"]
    assert site.sh(f"stat -c '%a %U' {FOLDER} {path}", "web/0").split() == ["700", "root"] + [
        "600", "root",
    ]  # fmt: skip
    yield base64.b64decode(site.sh(f"base64 -w0 {path}", "web/0")), number
    site.sh(f"rm {path}", "web/0")
    site.configure("web", reset=("database-encryption-key",))
    assert site.status("web/0") == ("active", "Web ready")


def test_web_forgets_a_worker_whose_relation_goes_under_a_build(site, saved):
    """Web takes its key no more from that second on, so the worker can't sign off."""
    running = site.start_task("sleep 900")

    def states():
        return {one["name"]: one["state"] for one in site.fly.workers()}

    try:
        site.lab.model.integrations.remove("web:web-tsa", "worker:worker-tsa")
        site.lab.settle()
        deadline = time.monotonic() + 150
        while (listed := states()) != {"lab-worker-0": "stalled"}:
            assert time.monotonic() < deadline, listed
            time.sleep(2)
        site.lab.controller.fire("web/0", "update-status")
        assert states() == {}
        # Web notices that the build's container is gone.
        output, _ = running.communicate(timeout=120)
        assert running.returncode, output
    finally:
        running.kill()


@pytest.fixture(scope="module")
def home(site, saved):
    """A new application, which fly is for until it is gone."""
    model = site.lab.model
    charm = pathlib.Path(site.lab.store.application("web")["charm"])
    options = {"deployment-mode": "all", "enable-gpu": "true", "web-port": "8081"}
    tarball = {"concourse": pathlib.Path(site.lab.setting("concourse"))}
    model.deploy(charm, "home", options, tarball, binds=walk.BINDS, outfit={"gpus": 1})
    site.lab.settle()
    assert site.status(HOME) == HOME_READY
    site.fly = concourse.Fly(site.lab, HOME)
    site.fly.login()
    yield HOME
    if "home" in site.lab.store.column("SELECT name FROM application"):
        leave(site)
    site.fly = concourse.Fly(site.lab)
    site.fly.login()
    site.worker("lab-worker-0", 60)
    assert site.status() == READY
    assert site.task(PROBE).returncode == 0


@pytest.fixture(scope="module")
def joined(site, home, saved):
    """The worker belongs to that application now: the web of before is lost to it."""
    integrations = site.lab.model.integrations
    if integrations.related("web:web-tsa", "worker:worker-tsa"):
        integrations.remove("web:web-tsa", "worker:worker-tsa")
        site.lab.settle()
    integrations.integrate("home:web-tsa", "worker:worker-tsa")
    site.lab.settle()
    assert site.status(home) == HOME_READY
    site.worker("lab-worker-0", 60)
    site.sh(f"mkdir -m 700 -p {FOLDER}", home)
    site.machine(home).write(KEPT, saved[0], 0o600)


def leave(site):
    """Give the worker back to its web, and remove the application."""
    integrations = site.lab.model.integrations
    if integrations.related("home:web-tsa", "worker:worker-tsa"):
        integrations.remove("home:web-tsa", "worker:worker-tsa")
        site.lab.settle()
    if not integrations.related("web:web-tsa", "worker:worker-tsa"):
        integrations.integrate("web:web-tsa", "worker:worker-tsa")
    site.lab.model.remove_application("home")
    site.lab.settle()


def test_one_machine_is_enough(site, home):
    keys = site.sh("cat /etc/concourse/keys/authorized_worker_keys", home).splitlines()
    assert len(keys) == 1
    assert site.traces(home)["users"]
    began = site.settings(home)
    site.worker("lab-home-0", 60)
    done = site.task(PROBE)
    assert done.returncode == 0, done.stdout
    assert f"nvidia0 {OPENS}" in done.stdout
    the_task_has_its_receipt(site)
    the_bridge_of_the_first_task_moves_nothing(site, began)
    web_and_worker_restart_and_a_build_loses_nothing(site)


def the_task_has_its_receipt(site):
    """With names, since web is here: it is asked while the store has the container."""
    log = "cat /var/log/gpu-ci/receipts.log 2>&-; true"
    end = time.monotonic() + 120
    while not (lines := site.sh(log, HOME).splitlines()):
        assert time.monotonic() < end, site.sh("journalctl -u gpu-ci-health --no-pager", HOME)
        time.sleep(LOOK_SECONDS)
    (receipt,) = map(json.loads, lines)
    assert (receipt["team"], receipt["outcome"]) == ("main", "ended")
    assert len(receipt["gpus"]) == 1
    action = site.lab.model.run_action(HOME, "gpu-report", {"by": "team", "format": "json"})
    site.lab.settle()
    row = site.lab.store.row("SELECT * FROM action WHERE id = ?", action)
    report = json.loads(json.loads(row["results"])["json"])
    assert [(row["name"], row["leases"]) for row in report["rows"]] == [("main", 1)]
    assert not any("names" in note for note in report["notes"])


def web_and_worker_restart_and_a_build_loses_nothing(site):
    build = standing.begin(site, unit=HOME)
    pids = "systemctl show -P MainPID concourse-web concourse-worker"
    before = {*site.sh(pids, HOME).split()}
    site.configure("home", external_url="http://ci.example.com", extra_tags="rack-9")
    assert before.isdisjoint(site.sh(pids, HOME).split())
    standing.end(site, HOME)
    # Its own fly may have lost its web.
    done = site.fly.run("watch", "-b", build.number)
    assert done.returncode == 0, done.stdout
    assert 1.0 < standing.longest_pause(done.stdout) < 40, "each of the two for 19 s at most"
    build.wait()
    site.configure("home", reset=("external-url", "extra-tags"))


def the_bridge_of_the_first_task_moves_nothing(site, began):
    site.sh(BRIDGE, HOME)
    site.lab.settle()
    info = network_info(site.lab.store, HOME)
    assert info["ingress-addresses"][0] == "10.80.0.1", "Juju offers it before all others"
    own = site.machine(HOME).address
    assert began["CONCOURSE_PEER_ADDRESS"] == own
    assert began["CONCOURSE_EXTERNAL_URL"] == f"http://{own}:8081"
    assert site.settings(HOME) == began, "web was not restarted"
    assert site.status(HOME)[0] == "active"


def newer(path, data):
    """The same backup, by a Concourse whose tables have a later form."""
    (path / "given").write_bytes(data)
    about = archive.check(path / "given", "gpu-ci-worker web backup/1")
    members = {}
    for name in ("secrets.json", "worker-keys", "database.dump"):
        members[name] = path / name
        archive.extract(path / "given", name, path / name)
    later = {**about, "schema": str(int(about["schema"]) + 1), "concourse": "9.0.0"}
    archive.write(path / "newer", "gpu-ci-worker web backup/1", later, members)
    return (path / "newer").read_bytes()


def test_what_can_not_be_read_is_refused_and_web_goes_on(site, home, joined, saved, tmp_path):
    before, own = site.settings(home)["MainPID"], set(builds(site))
    site.machine(home).write(f"{FOLDER}/newer.tar", newer(tmp_path, saved[0]), 0o600)
    site.machine(home).write(f"{FOLDER}/half.tar", saved[0][: len(saved[0]) // 2], 0o600)
    for name, words in (
        ("newer", "is from Concourse 9.0.0; Concourse 8.3.0"),
        ("half", "is not an archive, or is incomplete"),
        ("kept", "is encrypted with another key than this web has"),
    ):
        _, message = act(site, home, "restore", path=f"{FOLDER}/{name}.tar", confirm="home")
        assert words in message
    assert site.settings(home)["MainPID"] == before
    assert set(builds(site)) == own


def give_key(site):
    uri = site.lab.model.secrets.add("home-key", KEY)
    site.lab.model.secrets.grant("home-key", "home")
    site.configure("home", database_encryption_key=uri)


def kill_at_the_rename(site, home):
    end = time.monotonic() + 120
    while "at-rename" not in site.sh("ls /tmp", home) and time.monotonic() < end:
        time.sleep(0.2)
    site.lab.controller.agent(home).kill_hook()


def databases(site, home):
    listed = site.sh("runuser -u postgres -- psql -XqtAc 'SELECT datname FROM pg_database'", home)
    return {name for name in listed.split() if name.startswith("concourse")}


def test_killed_half_way_it_leaves_nothing_and_then_brings_all_back(site, home, joined, saved):
    give_key(site)
    own = set(builds(site))
    site.sh("rm /usr/bin/psql", home)
    site.machine(home).write("/usr/bin/psql", f"#!/bin/sh{STOPS}", 0o755)
    killer = threading.Thread(target=kill_at_the_rename, args=(site, home))
    killer.start()
    act(site, home, "restore", path=KEPT, confirm="home")
    killer.join()
    assert "concourse_coming" in databases(site, home)
    site.sh("ln -sf ../share/postgresql-common/pg_wrapper /usr/bin/psql", home)
    site.lab.controller.fire(home, "update-status")
    assert site.status(home) == HOME_READY
    assert databases(site, home) == {"concourse"}
    assert set(builds(site)) == own

    results, message = act(site, home, "restore", path=KEPT, confirm="home")
    assert message == ""
    assert results["workers"] == "2, which reconnect by themselves", "one is its own"
    aside = results["was"].split()[3]
    kind, shown = site.status(home)
    assert kind == "active"
    assert f"; kept database {aside}: " in shown
    site.fly.login()
    assert "gpu" in site.worker("lab-worker-0", 120)["tags"]
    number = saved[1]
    assert builds(site)[number]["status"] == "succeeded"
    assert SAID in site.fly.run("watch", "-b", str(number)).stdout
    if concourse.is_real():
        assert SAID in site.fly.run("get-pipeline", "-p", "lab-kept").stdout, "it is decrypted"
    done = site.fly.run("trigger-job", "-j", "lab-kept/kept", "-w")
    assert done.returncode == 0, done.stdout
    assert SAID in done.stdout
    site.lab.controller.fire("worker/0", "update-status")
    assert site.status() == READY
    assert act(site, home, "remove-local-database", confirm=aside)[1] == ""
    assert site.status(home) == HOME_READY
    assert databases(site, home) == {"concourse"}


def test_the_machine_is_left_clean(site, home, joined, monkeypatch):
    left = {}
    teardown = Agent.teardown

    def look_first(self):
        left.update(site.traces(HOME))
        left["databases"] = site.sh(
            "runuser -u postgres -- psql -lqt 2>&- | grep concourse; true", HOME
        ).splitlines()
        teardown(self)

    monkeypatch.setattr(Agent, "teardown", look_first)
    leave(site)
    assert left
    assert {kind: lines for kind, lines in left.items() if lines} == {}
