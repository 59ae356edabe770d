# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-run: what may be asked for, what the command understands, and when the charm has it."""

import dataclasses
import grp
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import types

import pytest

from gpu_agent import install as app
from gpu_agent.gpu_run import __main__ as gpu_run_main
from gpu_agent.gpu_run import client, request, service
from gpu_agent.gpu_run.caller import GoneError
from gpu_agent.gpu_run.request import Request
from gpu_runtime.refusal import Refused
from machine import process, systemd_transient
from options.part import Part
from parts import gpu_run as parts_gpu_run
from plan.state import Failure
from tests.unit.situations import gpu_unit, make_plan, parse, refused, state, tsa

GROUP = grp.getgrgid(os.getgid()).gr_name
ASKED = {
    "version": 1, "nonce": "n", "do": "run", "gpus": 1, "named": [], "any": False,
    "timeout": None, "command": "x",
}  # fmt: skip


def read(**changed):
    return request.parse(json.dumps({**ASKED, **changed}).encode(), "n")


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, Request(command="x")),
        ({"gpus": "all"}, Request(gpus=None, command="x")),
        ({"gpus": 128, "timeout": 604800}, Request(gpus=128, timeout=604800, command="x")),
        ({"named": ["1", "0", "1"]}, Request(gpus=2, named=("1", "0"), command="x")),
        ({"do": "list"}, Request(listing=True, command="x")),
    ],
)
def test_a_request(changed, found):
    assert read(**changed) == found


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2}, {"version": True, "extra": 1}, {"nonce": "m"}, {"nonce": None},
        {"do": "grant"}, {"gpus": 0}, {"gpus": -1}, {"gpus": 129}, {"gpus": True}, {"gpus": "2"},
        {"gpus": 1.0}, {"gpus": None}, {"named": "0"}, {"named": [0]}, {"named": [""]},
        {"named": ["x" * 81]}, {"named": ["x"] * 129}, {"any": 1}, {"any": None}, {"timeout": -1},
        {"timeout": 604801}, {"timeout": "9"}, {"timeout": True}, {"command": None},
        {"command": ["x"]}, {"uid": 0},
    ],
)  # fmt: skip
def test_what_is_none(changed):
    with pytest.raises(Refused):
        read(**changed)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"null", b"[]", b'"x"', b"\xff", b"[" * 4000, b"1e999"]
)
def test_what_is_no_object_either(data):
    with pytest.raises(Refused):
        request.parse(data, "n")


def test_the_option():
    assert parse().gpu_run_group == ""
    for name in ("gpu-users", "Team_7", "_x"):
        assert parse(gpu_run_group=f" {name} ").gpu_run_group == name
    for name in ("two words", "-x", "7", "a:b", "x" * 32, "a,b", "x\n[Service]", "%i", "$x"):
        assert refused(gpu_run_group=name) == (
            f"gpu-run-group {name!r} is not a group name: use one such as gpu-users, or leave it "
            "empty for no gpu-run"
        )


def test_a_gpu_by_two_names_is_one(monkeypatch, tmp_path):
    card = types.SimpleNamespace(index=0, id="GPU-7c22", gpu="GPU-7c22")
    asked = []

    class Asker(gpu_run_main.Run):
        """A request that comes as far as the queue."""

        def _policies(self, timeout=None):
            return iter([types.SimpleNamespace(devices=[card])])

        def _check_has_none(self):
            pass

        def _acquire(self, named, decision):
            asked.append(named)
            raise GoneError

    monkeypatch.setattr(gpu_run_main.paths, "LOG", tmp_path / "oci.log")
    caller = types.SimpleNamespace(user="alice", check_place=lambda: None)
    with pytest.raises(GoneError):
        Asker(caller, Request(gpus=2, named=("0", "gpu-7C22"))).done()
    assert asked == [["GPU-7c22"]]


class Systemd:
    """What is asked of systemd."""

    def __init__(self):
        self.units, self.calls, self.fault, self.running = {}, [], None, []
        self.begun = []

    def keep(self, name, content):
        changed, self.units[name] = self.units.get(name) != content, content
        return changed

    def run(self, name, *, restart):
        if self.fault:
            raise self.fault
        self.calls.append((name, restart))
        return restart

    def stop(self, name):
        self.calls.append((name, "stop"))

    def remove(self, name):
        return self.units.pop(name, None) is not None


@pytest.fixture
def systemd(monkeypatch, tmp_path):
    systemd = Systemd()
    for name, call in (
        *(("ensure_unit", systemd.keep), ("ensure_template", systemd.keep)),
        *(("ensure_running", systemd.run), ("remove_unit", systemd.remove)),
        *(("remove_template", systemd.remove), ("ensure_stopped", systemd.stop)),
        ("units", lambda _: systemd.running),
        ("show", lambda name, _: {"ActiveState": "active" if name in systemd.units else ""}),
    ):
        monkeypatch.setattr(service.services, name, call)
    monkeypatch.setattr(
        systemd_transient, "start", lambda *words, **_: systemd.begun.append(words)
    )
    monkeypatch.setattr(service, "COMMAND", tmp_path / "bin/gpu-run")
    monkeypatch.setattr(service, "MANUAL", tmp_path / "man/man1/gpu-run.1")
    monkeypatch.setattr(app, "HOME", tmp_path / "app")
    (tmp_path / "bin").mkdir()
    (tmp_path / "app/one").mkdir(parents=True)
    (tmp_path / "app/one/stamp").touch()
    (tmp_path / "app/current").symlink_to("one")
    return systemd


def ensure(found):
    return parts_gpu_run.ensure(found, make_plan(found))


def with_group(group, **changed):
    found = gpu_unit()
    options = dataclasses.replace(found.options, gpu_run_group=group)
    return dataclasses.replace(found, options=options, **changed)


def test_it_is_had_for_the_group_once_and_goes_without_a_trace(systemd, tmp_path):
    assert not ensure(with_group(""))
    assert ensure(with_group(GROUP))
    assert not ensure(with_group(GROUP))
    started = [call for call in systemd.calls if call[1] != "stop"]
    assert started == [("gpu-ci-run.socket", True), ("gpu-ci-run.socket", False)]
    assert f"SocketGroup={GROUP}\n" in systemd.units["gpu-ci-run.socket"]
    assert service.COMMAND.stat().st_mode & 0o7777 == 0o755
    assert f".B {GROUP}\n" in service.MANUAL.read_text()
    assert ensure(with_group(""))
    assert not systemd.units
    assert not service.COMMAND.exists()
    assert not service.MANUAL.exists()
    assert systemd.calls[-1] == ("gpurun.slice", "stop")
    assert not systemd.begun
    assert not ensure(with_group(""))


def test_its_removal_ends_no_command(systemd):
    ensure(with_group(GROUP))
    systemd.running = ["gpu-run-0123456789ab.scope"]
    assert ensure(with_group(""))
    assert ("gpurun.slice", "stop") not in systemd.calls
    ((last, argv),) = systemd.begun
    assert argv[-2:] == ["gpu-run-*.scope", "gpurun.slice"]
    systemd.calls.clear()
    ensure(with_group(GROUP))
    assert systemd.calls[0] == (last, "stop"), "it would end what begins from now on"


def test_what_a_killed_hook_has_begun_is_removed(systemd):
    systemd.fault = process.CommandError(["systemctl"], 1, "killed")
    with pytest.raises(service.GpuRunError):
        ensure(with_group(GROUP))
    assert ensure(with_group(""))
    assert not systemd.units


def test_without_gpus_and_as_the_unit_leaves_it_goes(systemd):
    for changed in ({"inventory": None}, {"leaving": True}):
        ensure(with_group(GROUP))
        assert ensure(with_group(GROUP, **changed))
        assert not systemd.units


@pytest.mark.parametrize("part", [Part.UNIT, Part.RUN])
def test_a_bad_option_leaves_it_as_it_is(systemd, part):
    ensure(with_group(GROUP))
    before = dict(systemd.units)
    assert not ensure(with_group("", failures=(Failure(part, "x"),)))
    assert systemd.units == before


def test_a_group_that_is_not_there_is_said_with_the_remedy(systemd):
    with pytest.raises(service.GpuRunError, match="sudo groupadd --system no-such-group") as told:
        ensure(with_group("no-such-group"))
    assert "of gpu-run-group does not exist" in str(told.value)
    assert not systemd.units


def test_a_socket_that_does_not_come_up_is_said(systemd):
    systemd.fault = process.CommandError(["systemctl"], 1, "no")
    with pytest.raises(service.GpuRunError, match="systemctl status gpu-ci-run"):
        ensure(with_group(GROUP))


def test_a_hook_says_that_the_group_is_missing_and_the_worker_works(context, rooms):
    def ensure(_state, _wanted):
        raise service.GpuRunError("There is no group 'x'")

    rooms.hand_in(serve_gpu_run=ensure)
    after = context.run(context.on.config_changed(), state(relations=[tsa()]))
    assert (after.unit_status.name, after.unit_status.message) == (
        "blocked",
        "There is no group 'x'",
    )
    assert rooms.worker is not None


def call(*words, answers=(), env=None, first=None):
    """Run the command itself against a service that says these things."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("")  # the kernel chooses an abstract address
        listener.listen()
        heard = []

        def serve():
            one, _ = listener.accept()
            with one:
                hello = [{"event": "hello", "nonce": "n"}, None]
                for answer in [first] if first else [*hello, *answers]:
                    if answer is None:
                        heard.append(json.loads(one.recv(request.MOST)))
                    else:
                        one.send(json.dumps(answer).encode())

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        code = (
            f"import sys; sys.path.insert(0, {os.path.dirname(client.__file__)!r}); "
            f"import client; client._SOCKET = {listener.getsockname()!r}; "
            f"sys.argv[1:] = {list(words)!r}; sys.exit(client.main())"
        )
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60,
            env=env or {"PATH": "/usr/bin:/bin", "MINE": "x"},
        )  # fmt: skip
        return done, heard


NO = {"event": "refused", "code": "too-few-gpus", "text": "no"}
GRANTED = {"event": "granted", "text": "", "environment": {"GPU_COUNT": "1", "MINE": "y"}}


def test_the_command_takes_its_place_with_the_variables():
    waits = {"event": "waiting", "text": "waiting for 1 GPU: position 1 in the queue"}
    done, heard = call("sh", "-c", "echo $GPU_COUNT $MINE; exit 9", answers=[waits, GRANTED])
    assert (done.returncode, done.stdout) == (9, "1 y\n")
    assert done.stderr == "gpu-run: waiting for 1 GPU: position 1 in the queue\n"
    assert heard == [{**ASKED, "command": "sh"}]


def test_what_it_asks_for():
    words = [
        "--gpus",
        "2",
        "--any",
        "--timeout",
        "30m",
        "--json",
        "--",
        "sh",
        __file__,
        "--secret",
    ]
    _, heard = call(*words, answers=[NO])
    named = f"sh {os.path.basename(__file__)}"
    assert heard == [{**ASKED, "gpus": 2, "any": True, "timeout": 1800, "command": named}]
    _, heard = call("--gpu", "0", "--gpu", "GPU-x", "--timeout", "7d", "true", answers=[GRANTED])
    assert heard == [{**ASKED, "named": ["0", "GPU-x"], "timeout": 604800, "command": "true"}]


def test_a_word_that_no_file_can_be_called_is_a_word():
    long = "x" * 300
    done, heard = call("echo", long, answers=[{**GRANTED, "environment": {}}])
    assert (done.returncode, done.stdout) == (0, f"{long}\n")
    assert heard[0]["command"] == "echo"


def test_a_refusal_may_come_before_it_has_asked_and_to_a_list():
    refusal = {"event": "refused", "code": "gpu-run-user-limit", "text": "8 times"}
    for words in (["true"], ["--list"]):
        done, _ = call(*words, answers=[], first=refusal)
        assert (done.returncode, done.stderr) == (125, "gpu-run: gpu-run-user-limit: 8 times\n")
    done, _ = call("--list", answers=[NO])
    assert (done.returncode, done.stderr) == (125, "gpu-run: too-few-gpus: no\n")


@pytest.mark.parametrize(
    ("answers", "status", "text"),
    [
        ([NO], 125, "gpu-run: too-few-gpus: no\n"),
        ([{**NO, "code": "wait-timeout"}], 124, "gpu-run: wait-timeout: no\n"),
        ([], 125, "gpu-run: gpu-run-unreachable: "),
        ([{"event": "granted"}], 125, "gpu-run: internal-error: "),
        ([["x"]], 125, "gpu-run: internal-error: "),
    ],
)
def test_what_it_says_where_it_can_not(answers, status, text):
    done, _ = call("true", answers=answers)
    assert done.returncode == status
    assert done.stderr.startswith(text)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "give a command to run, or --list"),
        (["--list", "true"], "give a command to run, or --list"),
        (["--gpus", "0", "true"], "'0' is not a number of GPUs: use 1 to 128, or all"),
        (["--gpus", "9" * 50, "true"], "is not a number of GPUs"),
        (["--gpus", "²", "true"], "is not a number of GPUs"),
        (["--gpus", "all", "--gpu", "0", "true"], "--gpu names the GPUs"),
        (["--gpu", "0", "--any", "true"], "--gpu names the GPUs"),
        (["--timeout", "soon", "true"], "'soon' is not a duration up to 7d: use one such as 90s"),
        (["--timeout", "8d", "true"], "'8d' is not a duration"),
        (["--timeout", "90", "true"], "'90' is not a duration"),
        (["--timeout", "", "true"], "'' is not a duration"),
        (["--timeout", "1m1h", "true"], "'1m1h' is not a duration"),
        (["--time", "1", "true"], "unrecognized arguments"),
    ],
)
def test_wrong_use_is_said_before_anybody_is_asked(words, text):
    argv = [sys.executable, "-I", "-S", client.__file__, *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 125
    assert text in done.stderr


def test_ctrl_c_ends_the_wait_at_once_and_without_words():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = (
        # Ignored, as in a job in the background, it would stay so.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"import sys, socket; sys.path.insert(0, {os.path.dirname(client.__file__)!r}); "
        f"import client; client._connect = lambda: socket.socket(fileno={theirs.fileno()}); "
        "sys.argv[1:] = ['true']; client.main()"
    )
    with ours, theirs, subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stderr=-1, pass_fds=[theirs.fileno()]
    ) as waits:  # fmt: skip
        ours.settimeout(60)
        ours.send(json.dumps({"event": "hello", "nonce": "n"}).encode())
        ours.recv(request.MOST)
        try:
            waits.send_signal(signal.SIGINT)
            assert waits.wait(60) == -signal.SIGINT
        finally:
            waits.kill()
        assert waits.stderr.read() == b""
