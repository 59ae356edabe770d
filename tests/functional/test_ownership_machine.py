# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Several units of the charm on one real machine, and a web's database there that is kept.

Their hooks run with all their rooms: services, PostgreSQL, users.
"""

import json

import pytest

from tests.functional.concourse_machine import NEEDS, PYTHONPATH, TARBALL, concourse_machine

pytestmark = NEEDS

PSQL = "cd /; runuser -u postgres -- psql -qtA -d concourse -c"
WRITE = {"sh": f"{PSQL} 'CREATE TABLE kept (word text)' -c \"INSERT INTO kept VALUES ('mine')\""}
READ = {"sh": f"{PSQL} 'SELECT word FROM kept' 2>&1"}
# All that a unit may touch, but not what Concourse itself writes.
ALL = {
    "sh": "find /etc/concourse /opt/concourse /opt/gpu-ci /etc/gpu-ci /etc/systemd/system "
    "/etc/sysctl.d /var/lib/gpu-ci /etc/passwd /var/lib/dpkg/status "
    "-printf '%p %m %u %T@ %l\\n' | sort; "
    "systemctl show -P MainPID -P UnitFileState concourse-web concourse-worker postgresql@*; "
    "runuser -u postgres -- psql -lqtA"
}
LEFT = {
    "sh": "ls -d /var/lib/gpu-ci /run/gpu-ci /opt/concourse /opt/gpu-ci /etc/concourse "
    "/etc/systemd/system/concourse* /etc/sysctl.d/*gpu-ci*; getent passwd concourse; "
    "ls /etc/postgresql/*"
}


@pytest.fixture(scope="module")
def machine():
    with concourse_machine("owner") as machine:
        yield machine


@pytest.fixture
def play(machine):
    """Run steps on the machine, which is empty before; return what came of each."""
    machine.run(["/bin/rm", "-rf", "/var/lib/juju/agents"])

    def play(*steps):
        done = machine.run(
            ["/usr/bin/env", f"PYTHONPATH={PYTHONPATH}", "/usr/bin/python3", "-B",
             "/srv/repo/tests/functional/hook_driver.py"],
            stdin=json.dumps({"tarball": TARBALL, "steps": steps}),
            check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    return play


def hook(unit, name, mode="", **config):
    return {"unit": unit, "hook": name, "config": {"deployment-mode": mode} if mode else config}


def action(unit, action, **params):
    return {"unit": unit, "action": action, "params": params}


READY = {"status": "active", "text": "Web and worker ready"}


def test_a_second_unit_changes_nothing_and_a_web_that_comes_back_finds_its_pipelines(play):
    other = [
        *(hook("web/0", name, "all") for name in ("install", "start", "stop", "remove")),
        *(hook("worker/0", name, "worker") for name in ("install", "config_changed")),
        action("worker/0", "remove-local-database", confirm="concourse"),
        *(hook("worker/0", name) for name in ("update_status", "stop", "remove")),
    ]
    back = [
        hook("ci/0", "config_changed", "worker"),
        {"sh": "ls /etc/concourse/web.env /etc/systemd/system/concourse-web.service"},
        READ,
        action("ci/0", "remove-local-database", confirm="concurse"),
        hook("ci/0", "config_changed", "all"),
        READ,
        action("ci/0", "remove-local-database", confirm="concourse"),
        hook("ci/0", "config_changed", "worker"),
        action("ci/0", "remove-local-database", confirm="concourse"),
        READ,
        hook("ci/0", "remove"),
        LEFT,
    ]
    first, _, before, *told = play(hook("ci/0", "install", "all"), WRITE, ALL, *other, ALL, *back)
    said, after = told[: len(other)], told[len(other)]
    assert first == READY
    assert after == before
    assert "concourse-web.service" in before
    texts = [step.get("failed", step.get("text")) for step in said]
    taken = "This machine belongs to ci/0 of model ci: "
    assert [text[: len(taken)] for text in texts] == [taken] * len(other)

    worker, gone, row, wrong, again, same, refused, _, removed, dropped, _, left = told[
        len(other) + 1 :
    ]
    assert again == READY
    assert worker["status"] == "waiting"
    assert gone == ""
    assert row == same == "mine\n"
    assert "confirm 'concurse' does not name a database" in wrong["failed"]
    assert "The web of this unit uses the database concourse" in refused["failed"]
    assert removed["results"]["was"].startswith("database concourse, unused since 20")
    assert "mine" not in dropped
    assert left == ""


def test_a_unit_after_one_removed_by_force_starts_afresh_and_its_database_is_kept(play):
    forced = {"sh": "rm -r /var/lib/juju/agents/unit-ci-0"}
    pids = {"sh": "systemctl show -P MainPID concourse-web concourse-worker"}
    (_, _, leaving, _, before, taken, after, row, removed, ready, new, _, left) = play(
        hook("ci/0", "install", "all"),
        WRITE,
        hook("ci/0", "stop"),
        forced,
        pids,
        hook("next/1", "install", "all"),
        pids,
        READ,
        action("next/1", "remove-local-database", confirm="concourse"),
        hook("next/1", "update_status"),
        {"sh": "grep -h ^CONCOURSE_NAME= /etc/concourse/worker.env"},
        hook("next/1", "remove"),
        LEFT,
    )
    assert leaving["status"] != "active"
    assert before.split()[0] != "0", "web outlives its unit"
    assert taken["status"] == "blocked"
    assert "keeps the database concourse of ci/0 of model ci: back it up" in taken["text"]
    # A database that is not its own keeps the new unit from web, and from nothing else.
    assert after.split()[0] == "0"
    assert row == "mine\n"
    said = removed["results"]["was"]
    assert said.startswith("database concourse of ci/0 of model ci, unused since 20")
    assert ready == READY
    assert "next-1" in new
    assert left == ""
