# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A web is saved, brought back in a new application, and its worker comes back by itself."""

import base64
import json
import pathlib
import secrets
import threading
import time

import pytest

from ci.concourse.backup import archive
from tests.lab import concourse, outfit, walk
from tests.lab.site import READY

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
    step = {"task": "tell", "config": config, "tags": ["gpu"]}
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


@pytest.fixture(scope="module")
def home(site, saved):
    """A new application, to which the worker now belongs: the one of before is lost to it."""
    model = site.lab.model
    charm = pathlib.Path(site.lab.store.application("web")["charm"])
    tarball = {"concourse": pathlib.Path(site.lab.setting("concourse"))}
    model.deploy(charm, "home", {"deployment-mode": "all"}, tarball, binds=walk.BINDS)
    model.integrations.remove("web:web-tsa", "worker:worker-tsa")
    site.lab.settle()
    model.integrations.integrate("home:web-tsa", "worker:worker-tsa")
    site.lab.settle()
    assert site.status("home/0") == ("active", "Web and worker ready")
    site.fly = concourse.Fly(site.lab, "home/0")
    site.fly.login()
    site.worker("lab-worker-0", 60)
    site.sh(f"mkdir -m 700 -p {FOLDER}", "home/0")
    site.machine("home/0").write(KEPT, saved[0], 0o600)
    yield "home/0"
    model.integrations.remove("home:web-tsa", "worker:worker-tsa")
    site.lab.settle()
    model.integrations.integrate("web:web-tsa", "worker:worker-tsa")
    model.remove_application("home")
    site.lab.settle()
    site.fly = concourse.Fly(site.lab)
    site.fly.login()
    site.worker("lab-worker-0", 60)
    assert site.status() == READY


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


def test_what_can_not_be_read_is_refused_and_web_goes_on(site, home, saved, tmp_path):
    before = site.settings(home)["MainPID"]
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
    assert builds(site) == {}


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


def test_killed_half_way_it_leaves_nothing_and_then_brings_all_back(site, home, saved):
    give_key(site)
    site.sh("rm /usr/bin/psql", home)
    site.machine(home).write("/usr/bin/psql", f"#!/bin/sh{STOPS}", 0o755)
    killer = threading.Thread(target=kill_at_the_rename, args=(site, home))
    killer.start()
    act(site, home, "restore", path=KEPT, confirm="home")
    killer.join()
    assert "concourse_coming" in databases(site, home)
    site.sh("ln -sf ../share/postgresql-common/pg_wrapper /usr/bin/psql", home)
    site.lab.controller.fire(home, "update-status")
    assert site.status(home) == ("active", "Web and worker ready")
    assert databases(site, home) == {"concourse"}
    assert builds(site) == {}

    results, message = act(site, home, "restore", path=KEPT, confirm="home")
    assert message == ""
    assert results["workers"] == "2, which reconnect by themselves", "one is its own"
    aside = results["was"].split()[3]
    kind, shown = site.status(home)
    assert kind == "active"
    assert shown.startswith(f"Web and worker ready (kept database {aside}: "), shown
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
    assert site.status(home) == ("active", "Web and worker ready")
    assert databases(site, home) == {"concourse"}
