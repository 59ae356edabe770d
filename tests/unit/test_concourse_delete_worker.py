# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What ssh is asked so that a worker which does not run leaves web's list.

That a TSA does so is proven in tests/lab/test_drain.py.
"""

import errno
import json
import os

import pytest

from ci.concourse.worker import delete_worker as farewell
from machine import files, process
from machine import process as machine_process

KEYS = ("ssh-rsa AAA1", "ssh-rsa AAA2")


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """What ssh was called with, and what it knew; `refusing` has hosts that don't answer."""

    class Calls(list):
        refusing, refusal = (), "Connection refused"

    calls = Calls()

    def run(argv, *, timeout, stdin):
        host = argv[-2].partition("@")[2]
        known = (tmp_path / "known_hosts").read_text()
        calls.append((argv, known, json.loads(stdin or "null")))
        if host in calls.refusing:
            raise process.CommandError(argv, 255, calls.refusal)

    monkeypatch.setattr(farewell, "_KNOWN", tmp_path / "known_hosts")
    monkeypatch.setattr(machine_process, "run", run)
    yield calls
    assert list(tmp_path.iterdir()) == []


def delete(*hosts, **worker):
    return farewell.delete({"name": "ci-worker-0", **worker}, hosts, KEYS, "/keys/worker_key")


def test_the_first_tsa_that_answers_is_enough_and_must_show_a_known_key(asked):
    asked.refusing = ("10.0.0.5",)
    assert delete("10.0.0.5:2222", "[fd00::5]:2223", "10.0.0.7:2222", team="")
    (first, second) = asked
    assert first[1] == "".join(f"[10.0.0.5]:2222 {key}\n" for key in KEYS)
    argv, known, worker = second
    assert argv[0] == "/usr/bin/ssh"
    assert argv[-2:] == ["beacon@fd00::5", "delete-worker"]
    assert argv[argv.index("-p") + 1] == "2223"
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes"} <= {*argv}
    assert known.startswith("[fd00::5]:2223 ssh-rsa AAA1\n")
    assert worker == {"name": "ci-worker-0"}


def test_a_teams_worker_names_its_team(asked):
    assert delete("10.0.0.5:2222", team="blue")
    assert asked[0][2] == {"name": "ci-worker-0", "team": "blue"}


def test_a_tsa_at_sshs_own_port_is_known_to_ssh_by_its_name_alone(asked):
    assert delete("ci.example.com:22")
    assert asked[0][1] == "".join(f"ci.example.com {key}\n" for key in KEYS)


def test_a_full_disk_is_no_reason_to_stay(asked, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "ensure_file", full)
    assert not delete("10.0.0.5:2222")
    assert "No space left" in caplog.text


def test_no_web_is_no_reason_to_stay(asked, caplog):
    asked.refusing = ("10.0.0.5",)
    assert not delete("10.0.0.5:2222")
    assert "10.0.0.5:2222 keeps the worker in its list" in caplog.text


DENIED = "beacon@10.0.0.5: Permission denied (publickey)."


@pytest.mark.parametrize(
    ("refusing", "refusal", "refused"),
    [
        (("10.0.0.5", "10.0.0.7"), DENIED, True),
        (("10.0.0.5",), DENIED, False),
        (("10.0.0.5", "10.0.0.7"), "Connection refused", False),
        (("10.0.0.5", "10.0.0.7"), "exec request failed on channel 0", False),
    ],
)
def test_a_key_is_refused_where_every_tsa_says_so(asked, refusing, refusal, refused):
    asked.refusing, asked.refusal = refusing, refusal
    assert farewell.is_refused(("10.0.0.5:2222", "10.0.0.7:2222"), KEYS, "/k") is refused
    assert {argv[-1] for argv, *_ in asked} == {"gpu-ci-hello"}
    assert not farewell.is_refused((), KEYS, "/k")


def test_webs_without_number_that_give_no_answer_hold_up_no_hook(asked, monkeypatch):
    now = [0.0]

    def run(argv, *, timeout, stdin):
        now[0] += timeout
        raise process.CommandError(argv, None, DENIED)

    monkeypatch.setattr(machine_process, "run", run)
    monkeypatch.setattr(farewell.time, "monotonic", lambda: now[0])
    hosts = [f"web-{number}:2222" for number in range(3000)]
    assert not delete(*hosts)
    assert now[0] == 30
    assert not farewell.is_refused(hosts, KEYS, "/k")
    assert now[0] == 60
