# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The command gpu-ci-agent: what its verbs do in which order, with which words and statuses.

The machine is a folder: settings, command, records and lock are real files.
"""

import dataclasses
import json
import sys
import threading
import time

import pytest

from gpu_agent.model import errors
from gpu_agent.model.inventory import Gpu
from gpu_standalone import __main__ as command
from gpu_standalone import installation, settings, start
from gpu_standalone.owner import Owner
from gpu_standalone.settings import Settings
from lifecycle import machine_claim
from machine import locks, process
from plan.unit_id import UnitId

GPU = Gpu(0, "GPU-1", "nvidia", "NVIDIA L4", 23034, "0000:01:00.0", 0)
TAKEN = "This machine belongs to worker/0 of model ci, a unit of Juju: "


class Site:
    """A machine that is a folder, and what was done to it."""

    def __init__(self, tmp_path):
        self.calls = []
        self.root = tmp_path
        self.holders = ()
        self.is_started = False
        self.before_copy = lambda: None
        self.start_fails = None
        self.owner = Owner(tmp_path / "state", tmp_path / "agents")
        self.command = tmp_path / "sbin/gpu-ci-agent"
        self.settings = tmp_path / "etc/agent.json"
        self.home = tmp_path / "app"
        for version in ("old", "new"):
            (self.home / version).mkdir(parents=True)
        (self.home / "current").symlink_to("new")
        self.here = command.Here(
            user=lambda: 0,
            systemd=tmp_path,
            lock=tmp_path / "lock",
            tree=tmp_path / "tree",
            home=self.home,
            execute=self.execute,
            agent=installation.Installation(
                owner=self.owner,
                command=self.command,
                settings=self.settings,
                copy=self.copy,
                is_started=lambda: self.is_started,
                close=self.close,
                reopen=lambda: self.calls.append("reopen"),
                parts=[("the timer", (lambda: self.calls.append("timer.remove"),))],
            ),
            start=self.start,
            look=lambda: self.calls.append("look"),
        )

    def execute(self, path, words):
        self.calls.append(("execute", path, words))
        raise SystemExit(0)

    def copy(self, *, before):
        self.before_copy()
        return before(self.home / "new")

    def close(self):
        self.calls.append("close")
        return self.holders

    def start(self, found, _say):
        self.calls.append(("start", found))
        if self.start_fails:
            raise self.start_fails
        return start.Started((GPU,), None)

    def take(self):
        """Have a unit of Juju take the machine, as its hook does."""
        agent = self.root / "unit-worker-0"
        agent.mkdir()
        claim = machine_claim.Claim(self.owner.folder)
        return claim.take(UnitId("worker/0", "ci", "uuid", str(agent)))

    def run(self, *words):
        return command.main(words, self.here)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def waiting(call):
    """Begin a call in a thread, and return the thread once it waits for the command's lock."""
    thread = threading.Thread(target=call)
    thread.start()
    while True:
        frame, names = sys._current_frames().get(thread.ident), set()
        while frame:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        if "alone_in" in names:
            return thread
        assert thread.is_alive()
        time.sleep(0.001)


def exits(site):
    """Run `start`, which ends with the execution of another program."""
    with pytest.raises(SystemExit):
        site.run("start")


def test_install_writes_command_settings_and_record_and_starts_nothing(site, capsys):
    assert site.run("install") == 0
    assert capsys.readouterr().out.splitlines() == [
        "Copying the programs to /opt/gpu-ci/app",
        f"Installed: {site.command}",
        "Next: edit /etc/gpu-ci/agent.json, then sudo gpu-ci-agent start",
    ]
    assert settings.read(site.settings) == Settings()
    assert site.command.stat().st_mode & 0o777 == 0o755
    assert f"app='{site.home}/new'" in site.command.read_text()
    assert json.loads(site.owner.record.read_text())["owner"]["agent"] == str(site.command)
    assert site.calls == []


def test_a_second_install_keeps_the_settings_and_starts_again_what_was_started(site, capsys):
    site.run("install")
    mine = Settings(gpu_run_group="gpu-users")
    site.settings.write_text(settings.as_text(mine))
    site.is_started = True
    capsys.readouterr()
    assert site.run("install") == 0
    assert site.calls == [("start", mine)]
    assert capsys.readouterr().out.splitlines()[1:] == [
        "This version is installed already",
        "GPU 0: NVIDIA L4, 24 GiB, GPU-1",
        "gpu-run: for members of gpu-users",
    ]


def test_install_refuses_settings_that_it_cannot_use_before_it_changes_anything(site, capsys):
    site.settings.parent.mkdir()
    site.settings.write_bytes(b"\xff")
    assert site.run("install") == command.FAILED
    said = capsys.readouterr().err
    assert said.startswith("gpu-ci-agent: /etc/gpu-ci/agent.json: no UTF-8: ")
    assert not site.owner.record.exists()
    assert not site.command.exists()


def test_install_is_refused_if_a_unit_takes_the_machine_while_the_copy_is_made(site, capsys):
    site.before_copy = site.take
    assert site.run("install") == command.FAILED
    assert capsys.readouterr().err.startswith(f"gpu-ci-agent: {TAKEN}")
    assert not site.command.exists()
    assert not site.settings.exists()
    assert json.loads(site.owner.record.read_text())["owner"]["name"] == "worker/0"


def test_from_the_command_on_a_unit_cannot_take_the_machine(site):
    site.run("install")
    with pytest.raises(machine_claim.TakenError):
        site.take()


@pytest.mark.parametrize("verb", ["install", "start", "remove"])
def test_a_machine_of_juju_is_refused_by_each_verb_that_changes_it(site, capsys, verb):
    site.take()
    assert site.run(verb) == command.FAILED
    assert capsys.readouterr().err.startswith(f"gpu-ci-agent: {TAKEN}")
    assert site.calls == []


def test_start_without_an_installation_is_wrong_use(site, capsys):
    assert site.run("start") == command.WRONG_USE
    assert capsys.readouterr().err == (
        "gpu-ci-agent: the agent is not installed: sudo scripts/agent install, in its tree\n"
    )


def test_start_with_settings_that_cannot_be_read_looks_at_the_gpus_all_the_same(site, capsys):
    site.run("install")
    site.settings.write_text('{"version": 1, "gpu-health": "on", "more": 1}')
    assert site.run("start") == command.FAILED
    assert site.calls == ["look"]
    assert [line.partition(": ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "gpu-ci-agent",
        "gpu-ci-agent",
    ]


@pytest.mark.parametrize(
    "error",
    [
        start.StartError("no GPU\njuju config x enable-gpu=false"),
        process.CommandError(["/bin/x"], 1, "no"),
        errors.unknown("no memory"),
        OSError("no space"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_start_cannot_do_is_told_without_a_traceback(site, capsys, error):
    site.run("install")
    site.start_fails = error
    assert site.run("start") == command.FAILED
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("gpu-ci-agent: ") for line in lines)
    assert len(lines) == len(str(error).splitlines())
    assert "juju" not in "".join(lines)


def test_start_that_is_stopped_says_how_to_finish(site, capsys):
    site.run("install")
    site.start_fails = KeyboardInterrupt()
    assert site.run("start") == command.FAILED
    assert capsys.readouterr().err == (
        "gpu-ci-agent: stopped. Run gpu-ci-agent start again to finish\n"
    )


def test_a_start_that_waited_for_an_installation_goes_on_as_the_new_version(site):
    """The old version would put its own files in the place of the new one's."""
    site.run("install")
    site.here = dataclasses.replace(site.here, tree=site.home / "old")
    (site.home / "current").unlink()
    (site.home / "current").symlink_to("old")
    with locks.alone_in(site.here.lock):
        thread = waiting(lambda: exits(site))
        assert site.calls == []
        (site.home / "current").unlink()
        (site.home / "current").symlink_to("new")
    thread.join(60)
    assert site.calls == [("execute", str(site.command), [str(site.command), "start"])]


def test_the_current_version_starts_by_itself(site):
    site.run("install")
    site.here = dataclasses.replace(site.here, tree=site.home / "new")
    assert site.run("start") == 0
    assert site.calls == [("start", Settings())]


def test_only_an_installed_copy_that_was_replaced_is_outdated(site):
    assert command.is_outdated(site.home / "old", site.home)
    assert not command.is_outdated(site.home / "new", site.home)
    assert not command.is_outdated(site.root / "tree", site.home)


def test_a_call_that_waited_for_a_removal_says_to_run_it_again(site, capsys):
    site.run("install")
    capsys.readouterr()
    status = []
    with locks.alone_in(site.here.lock) as lock:
        thread = waiting(lambda: status.append(site.run("start")))
        lock.unlink()
        site.here.lock.rmdir()
    thread.join(60)
    assert status == [command.FAILED]
    assert capsys.readouterr().err == (
        "gpu-ci-agent: gpu-ci-agent remove has ended meanwhile: run start again\n"
    )
    assert site.calls == []


def test_remove_takes_all_away(site, capsys):
    site.run("install")
    capsys.readouterr()
    assert site.run("remove") == 0
    assert site.calls == ["close", "timer.remove"]
    assert capsys.readouterr().out == "Removing the timer\nRemoved\n"
    for path in (site.command, site.owner.folder, site.here.lock):
        assert not path.exists()


def test_remove_is_refused_while_gpus_are_in_use(site, capsys):
    site.run("install")
    site.holders = ("gpu-run of alice",)
    assert site.run("remove") == command.FAILED
    assert site.calls == ["close", "reopen"]
    assert "GPUs are in use by gpu-run of alice: wait" in capsys.readouterr().err
    assert site.command.exists()
    assert site.owner.is_ours()


def test_remove_may_leave_what_runs(site, capsys):
    site.run("install")
    site.holders = ("gpu-run of alice",)
    capsys.readouterr()
    assert site.run("remove", "--leave-running") == 0
    assert site.calls == ["close", "timer.remove"]
    assert capsys.readouterr().out.splitlines() == [
        "Removing the timer",
        "gpu-run of alice keeps its GPUs until it ends",
        "Removed",
    ]
    assert not site.command.exists()


@pytest.mark.parametrize("words", [[], ["halt"], ["uncordon", "--gpu", "1"], ["self-test", "-l"]])
def test_wrong_arguments_end_with_the_usage(site, words, capsys):
    with pytest.raises(SystemExit) as raised:
        site.run(*words)
    assert raised.value.code == command.WRONG_USE
    assert capsys.readouterr().err.startswith("usage: gpu-ci-agent")


def test_a_user_who_is_not_root_is_told_to_use_sudo(site, capsys):
    site.here = dataclasses.replace(site.here, user=lambda: 1000)
    assert site.run("remove") == command.WRONG_USE
    assert capsys.readouterr().err == "gpu-ci-agent: this needs root: use sudo\n"


def test_a_machine_without_systemd_is_refused(site, capsys):
    site.here = dataclasses.replace(site.here, systemd=site.root / "none")
    assert site.run("status") == command.WRONG_USE
    assert capsys.readouterr().err.startswith("gpu-ci-agent: systemd does not run this machine: ")
