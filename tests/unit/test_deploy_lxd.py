# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""scripts/deploy-lxd: what it would do, that it goes on where it stopped, and how it ends.

Juju is a stand-in, which does at once what it is told; scripts/lxd-gpu has tests of its own.
"""

import json
import subprocess

import pytest

from tests.unit import lxd_host
from tests.unit.lxd_host import ONE, card

CHARM = "./gpu-ci-worker_*.charm"
APART = [
    f"juju deploy {CHARM} web --config deployment-mode=web",
    f"juju deploy {CHARM} worker --config deployment-mode=worker --config enable-gpu=true",
    "juju deploy postgresql --channel 14/stable",
    "juju integrate web:postgresql postgresql:database",
    "juju integrate web:web-tsa worker:worker-tsa",
]
TOGETHER = [f"juju deploy {CHARM} ci --config deployment-mode=all --config enable-gpu=true"]
ACCESS = {"username": "admin", "password": "pass word", "url": "http://10.0.0.5:8080"}


class Cloud:
    """A machine with a Juju and its model: what it says, and what it has been told.

    `script` is what the worker says at each look, the last of it from then on.
    """

    def __init__(self):
        self.apps, self.cards, self.told = {}, [card(ONE)], []
        self.fails, self.answer = "", "y"
        self.access = {"web/0": {"status": "completed", "results": ACCESS}}
        self.script, self.looks, self.time = ["active"], 0, 0.0
        self.machines_after = 0
        self.silent = range(0)  # looks that get no answer
        self.system = {"ID": "ubuntu", "VERSION_ID": "24.04"}
        self.refused = None  # the class of the script's refusals

    def read(self, _prompt):
        return self.answer

    def release(self):
        return self.system

    def packed(self):
        self.told.append("scripts/pack")
        return CHARM

    def sleep(self, seconds):
        self.time += seconds

    def now(self):
        return self.time

    def ask(self, *command):
        match command:
            case ("juju", "status", *_):
                return json.dumps(self.status())
            case ("juju", "run", *_, "get-admin-password", "--format", "json"):
                return json.dumps(self.access)
            case ("lxc", "query", "/1.0/resources"):
                return json.dumps({"gpu": {"cards": self.cards}})
        raise AssertionError(command)

    def status(self):
        self.looks += 1
        if self.looks in self.silent:
            raise self.refused("juju status: connection is shut down")
        gone_by = self.script[min(self.looks, len(self.script)) - 1]
        for name, app in self.apps.items():
            kind, _, message = (gone_by if name in ("worker", "ci") else "active").partition(" ")
            for unit in app["units"].values():
                unit["workload-status"] = {"current": kind, "message": message}
                unit["juju-status"] = {"current": "executing" if message else "idle"}
        there = "juju-1" if self.looks > self.machines_after else "pending"
        model = {"name": "ci", "controller": "lxd", "cloud": "localhost"}
        machines = {"0": {"instance-id": there}}
        return {"model": model, "applications": self.apps, "machines": machines}

    def show(self, command, seconds):
        words = " ".join(command)
        if self.fails and self.fails in words:
            raise self.refused(f"{words} failed")
        self.told.append(words)
        match command:
            case ["juju", "deploy", what, *rest]:
                app = rest[0] if "charm" in what else what
                name = "gpu-ci-worker" if "charm" in what else what
                unit = {"machine": "0"}
                self.apps[app] = {
                    "charm-name": name, "units": {f"{app}/0": unit}, "relations": {},
                }  # fmt: skip
            case ["juju", "integrate", one, other]:
                app, _, endpoint = one.partition(":")
                remote = {"related-application": other.partition(":")[0]}
                self.apps[app]["relations"][endpoint] = [remote]

    def changes(self):
        """What it was told to change, with the paths of this tree left out."""
        told = (words.rpartition("scripts/")[2] for words in self.told)
        return [words for words in told if words != "juju status"]


@pytest.fixture(scope="module")
def script():
    with lxd_host.loaded("deploy-lxd") as (script, _):
        yield script


@pytest.fixture
def call(script, capsys):
    """Run the command for a cloud; answers exit status and everything it said."""

    def call(cloud, *arguments, answer="y"):
        cloud.refused, cloud.answer = script.Refused, answer
        cloud.looks = 0
        status = script.main(cloud, [*arguments])
        told = capsys.readouterr()
        return status, told.out + told.err

    return call


@pytest.mark.parametrize(
    ("arguments", "commands", "worker"),
    [((), APART, "worker"), (("--all-in-one",), TOGETHER, "ci")],
)
def test_everything_once_and_then_nothing(call, arguments, commands, worker):
    cloud = Cloud()
    status, said = call(cloud, *arguments)
    assert (status, cloud.changes()) == (0, ["pack", *commands, f"lxd-gpu {worker} --yes"])
    assert "Concourse: http://10.0.0.5:8080\n  user admin, password pass word\n" in said
    assert "./fly -t ci login -c http://10.0.0.5:8080 -u admin -p 'pass word'\n" in said
    cloud.told.clear()
    status, said = call(cloud, *arguments, answer="it must not ask")
    assert (status, cloud.changes()) == (0, [])
    assert "Nothing to do: everything is up." in said
    assert "password pass word" in said


def test_a_dry_run_prints_the_commands_alone(call):
    cloud = Cloud()
    status, said = call(cloud, "--dry-run")
    assert (status, cloud.told) == (0, [])
    assert "Model ci of controller lxd, cloud localhost\n" in said
    printed = [line.strip() for line in said.partition("To be done:\n")[2].splitlines()]
    assert printed[0].endswith("/scripts/pack")
    assert printed[1:-1] == APART
    assert printed[-1].endswith("/scripts/lxd-gpu worker --yes")
    status, said = call(cloud, answer="n")
    assert (status, cloud.told, "nothing was changed" in said) == (1, [], True)


@pytest.mark.parametrize("broken", [*APART, "lxd-gpu"])
def test_it_goes_on_where_it_stopped(call, broken):
    cloud = Cloud()
    cloud.fails = broken
    cloud.script = ["blocked No GPU found", "active"]
    assert call(cloud)[0] == 1
    before = cloud.changes()
    cloud.fails = ""
    assert call(cloud)[0] == 0
    done = [one for one in cloud.changes() if one != "pack"]
    assert done == [*APART, "lxd-gpu worker --yes"]
    assert cloud.changes()[: len(before)] == before


def test_a_charm_that_is_packed_already_is_taken(call, tmp_path, monkeypatch):
    cloud = Cloud()
    cloud.system = {"ID": "debian", "VERSION_ID": "12"}
    monkeypatch.chdir(tmp_path)
    status, said = call(cloud, "--charm", "my.charm")
    assert (status, f"there is no file {tmp_path}/my.charm" in said) == (1, True)
    (tmp_path / "my.charm").touch()
    assert call(cloud, "--charm", "my.charm")[0] == 0
    wanted = [one.replace(CHARM, f"{tmp_path}/my.charm") for one in APART]
    assert cloud.changes() == [*wanted, "lxd-gpu worker --yes"]


@pytest.mark.parametrize("release", [{"ID": "debian", "VERSION_ID": "12"}, {"ID": "arch"}])
def test_nothing_is_packed_that_juju_does_not_deploy(call, release):
    cloud = Cloud()
    cloud.system = release
    status, said = call(cloud)
    assert (status, cloud.told) == (1, [])
    assert f"this machine is {'@'.join(release.values())}, and a charm is packed for" in said
    assert "of ubuntu@22.04, ubuntu@24.04: pack it on one of these" in said


def test_another_model_is_asked_throughout(call):
    cloud = Cloud()
    said = call(cloud, "--model", "lab", "--dry-run")[1]
    printed = said.partition("To be done:\n")[2].splitlines()[1:]
    assert all(" --model lab " in line for line in printed)


def test_progress_is_shown_once_and_a_machine_is_waited_for(call):
    cloud = Cloud()
    cloud.machines_after = 3
    begin = ["waiting", "maintenance Installing", "maintenance Installing", "blocked No GPU found"]
    cloud.script = [*begin, *begin[2:], "active in a hook", "active"]
    status, said = call(cloud)
    assert (status, cloud.looks) == (0, len(cloud.script))
    # It comes twice, and each time for longer.
    assert said.count("worker/0  maintenance: Installing") == 2
    assert said.rindex("worker/0  blocked: No GPU found") < said.index("worker/0  active")
    assert said.index("maintenance: Installing") < said.index("worker/0  blocked: No GPU found")


def test_a_controller_that_restarts_meanwhile_is_waited_for(call):
    cloud = Cloud()
    cloud.script = ["waiting"] * 9 + ["active"]
    cloud.silent = range(3, 8)
    status, said = call(cloud)
    assert (status, said.count("juju status: connection is shut down; trying again")) == (0, 5)
    cloud = Cloud()
    cloud.silent = range(2, 1000)
    status, said = call(cloud)
    assert (status, said.endswith("deploy-lxd: juju status: connection is shut down\n")) == (
        1,
        True,
    )
    assert 120 <= cloud.time < 140


@pytest.mark.parametrize("kind", ["blocked", "error"])
def test_a_unit_that_stays_stuck_is_told(call, kind):
    cloud = Cloud()
    cloud.script = ["waiting", f"{kind} out of order"]
    status, said = call(cloud)
    assert status == 1
    assert f"worker/0 is stuck: {kind}: out of order; run this again when that is fixed" in said
    # Juju has it look every five minutes.
    assert cloud.time > 300


def test_what_never_comes_is_waited_for_no_longer_than_was_said(call):
    cloud = Cloud()
    cloud.script = ["maintenance Installing"]
    status, said = call(cloud, "--minutes", "10")
    assert (status, "not ready after 10 minutes; run this again to keep waiting" in said) == (
        1,
        True,
    )
    assert 600 <= cloud.time < 700


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda cloud: cloud.cards.clear(), "this host has no GPU"),
        (
            lambda cloud: cloud.show(["juju", "deploy", "web"], 1),
            "has an application web of charm web: use another model",
        ),
        (
            lambda cloud: cloud.apps.update(
                worker={"charm-name": "gpu-ci-worker", "units": {}, "relations": {}}
            ),
            "worker has no units: juju add-unit worker",
        ),
    ],
)
def test_wrong_use_is_refused_before_anything_is_done(call, change, expected):
    cloud = Cloud()
    change(cloud)
    cloud.told.clear()
    status, said = call(cloud)
    assert expected in said
    assert (status, cloud.changes()) == (1, [])


def test_a_command_that_fails_is_named(script, capfd, tmp_path):
    script.Host().show(["/bin/echo", "hello"], 30)
    assert capfd.readouterr().out == "+ /bin/echo hello\nhello\n"
    with pytest.raises(script.Refused, match=r"^/bin/false failed: see the lines above"):
        script.Host().show(["/bin/false"], 30)
    with pytest.raises(script.Refused, match="no-such is not installed here"):
        script.Host().show([str(tmp_path / "no-such")], 30)


def test_a_password_that_is_not_told_is_no_success(script):
    cloud = Cloud()
    cloud.access = {"web/0": {"status": "failed", "message": "This unit runs no web"}}
    with pytest.raises(script.Refused, match="get-admin-password: This unit runs no web"):
        script.tell_access(script.Model(cloud, "", script.APART))


def test_what_a_unit_says_changes_no_terminal(call):
    cloud = Cloud()
    said = "waiting \x1b]0;owned\x07\x1b[2J\u202egpj.exe\nactive: all is up"
    cloud.script = [said] * 6 + ["active"]
    _, said = call(cloud)
    assert "waiting: ?]0;owned??[2J?gpj.exe?active: all is up" in said
    assert all(letter.isprintable() or letter == "\n" for letter in said)
    cloud = Cloud()
    cloud.script = ["blocked \x1b[2Jno"]
    status, said = call(cloud)
    assert status == 1
    assert all(letter.isprintable() or letter == "\n" for letter in said)


@pytest.mark.parametrize("name", ["url", "username", "password"])
def test_commands_to_copy_run_nothing_that_a_unit_says(call, monkeypatch, tmp_path, name):
    trace = tmp_path / "owned"
    value = f"http://x'; touch {trace}; '$(touch {trace})`touch {trace}`"
    monkeypatch.setitem(ACCESS, name, value)
    status, said = call(Cloud())
    assert status == 0
    lines = [line for line in said.splitlines() if line.startswith(("  curl ", "  ./fly"))]
    env = {"PATH": "/usr/bin:/bin"}
    for line in lines:
        argv = line.replace("curl -fLo fly", "echo").replace("./fly", "echo").partition("&&")[0]
        subprocess.run(["/bin/sh", "-c", argv], env=env, check=True, timeout=60)
    assert lines
    assert not trace.exists()
    monkeypatch.setitem(ACCESS, name, "http://x\x1b[2J")
    status, said = call(Cloud())
    assert status == 1
    assert "can't be shown" in said


def test_it_starts_from_anywhere(tmp_path):
    command = [lxd_host.SCRIPTS / "deploy-lxd", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "--all-in-one" in done.stdout) == (0, True)
