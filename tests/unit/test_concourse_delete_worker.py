# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What ssh is asked so that a worker which does not run leaves web's list.

That a TSA does so is proven in tests/lab/test_drain.py.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from ci.concourse.worker import delete_worker as farewell
from machine import process

KEYS = ("ssh-rsa AAA1", "ssh-rsa AAA2")
ROOT = pathlib.Path(__file__).resolve().parents[2]
ON_A_FULL_DISK = """
import logging, pathlib, sys
from ci.concourse.worker.delete_worker import Tsas
logging.basicConfig(stream=sys.stdout, format="%(message)s")
folder = pathlib.Path(sys.argv[1])
def run(*_, **__):
    print("ssh was called")
tsas = Tsas(["10.0.0.5:2222"], ["ssh-rsa AAA1"], "/keys/key", folder / "known_hosts", run)
print(tsas.delete({"name": "ci-worker-0"}))
print([path.name for path in folder.iterdir()])
"""


class Ssh:
    """What ssh was called with, and what it knew.

    Attributes:
        refusing: the hosts that don't answer.
        refusal: what ssh says then.
        hangs: whether each call takes all its time, on a clock of its own.
    """

    def __init__(self, folder):
        self.calls, self.known, self.now = [], folder / "known_hosts", 0.0
        self.refusing, self.refusal, self.hangs = (), "Connection refused", False

    def run(self, argv, *, timeout, stdin):
        host = argv[-2].partition("@")[2]
        self.calls.append((argv, self.known.read_text(), json.loads(stdin or "null")))
        if self.hangs:
            self.now += timeout
            raise process.CommandError(argv, None, self.refusal)
        if host in self.refusing:
            raise process.CommandError(argv, 255, self.refusal)

    def tsas(self, *hosts):
        return farewell.Tsas(
            hosts, KEYS, "/keys/worker_key", self.known, self.run, lambda: self.now
        )

    def delete(self, *hosts, **worker):
        return self.tsas(*hosts).delete({"name": "ci-worker-0", **worker})


@pytest.fixture
def ssh(tmp_path):
    yield Ssh(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_first_tsa_that_answers_is_enough_and_must_show_a_known_key(ssh):
    ssh.refusing = ("10.0.0.5",)
    assert ssh.delete("10.0.0.5:2222", "[fd00::5]:2223", "10.0.0.7:2222", team="")
    (first, second) = ssh.calls
    assert first[1] == "".join(f"[10.0.0.5]:2222 {key}\n" for key in KEYS)
    argv, known, worker = second
    assert argv[0] == "/usr/bin/ssh"
    assert argv[-2:] == ["beacon@fd00::5", "delete-worker"]
    assert argv[argv.index("-p") + 1] == "2223"
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes"} <= {*argv}
    assert known.startswith("[fd00::5]:2223 ssh-rsa AAA1\n")
    assert worker == {"name": "ci-worker-0"}


def test_a_teams_worker_names_its_team(ssh):
    assert ssh.delete("10.0.0.5:2222", team="blue")
    assert ssh.calls[0][2] == {"name": "ci-worker-0", "team": "blue"}


def test_a_tsa_at_sshs_own_port_is_known_to_ssh_by_its_name_alone(ssh):
    assert ssh.delete("ci.example.com:22")
    assert ssh.calls[0][1] == "".join(f"ci.example.com {key}\n" for key in KEYS)


def test_a_disk_that_takes_no_file_is_no_reason_to_stay(ssh, tmp_path, caplog):
    ssh.known = tmp_path / "none/known_hosts"
    assert not ssh.delete("10.0.0.5:2222")
    assert "10.0.0.5:2222 keeps the worker in its list: [Errno 2]" in caplog.text
    assert ssh.calls == []


def test_a_full_disk_is_no_reason_to_stay(tmp_path):
    unshare = ["/usr/bin/unshare", "--mount"]
    if os.geteuid() != 0:
        unshare.append("--map-root-user")
    mount = f"mount -t tmpfs -o size=4k none {tmp_path}"
    if subprocess.run([*unshare, "--", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this machine lets no test mount a file system of its own")
    fill = f"head -c 4096 /dev/zero >{tmp_path}/fill"
    done = subprocess.run(
        [*unshare, "--", "sh", "-c", f'{mount}; {fill}; exec "$@"', "sh"]
        + [sys.executable, "-c", ON_A_FULL_DISK, tmp_path],
        env={"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    said, *rest = done.stdout.splitlines()
    assert said.startswith("10.0.0.5:2222 keeps the worker in its list: [Errno 28] No space left")
    assert rest == ["False", "['fill']"]


def test_no_web_is_no_reason_to_stay(ssh, caplog):
    ssh.refusing = ("10.0.0.5",)
    assert not ssh.delete("10.0.0.5:2222")
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
def test_a_key_is_refused_where_every_tsa_says_so(ssh, refusing, refusal, refused):
    ssh.refusing, ssh.refusal = refusing, refusal
    assert ssh.tsas("10.0.0.5:2222", "10.0.0.7:2222").refuse() is refused
    assert {argv[-1] for argv, *_ in ssh.calls} == {"gpu-ci-hello"}
    assert not ssh.tsas().refuse()


def test_webs_without_number_that_give_no_answer_hold_up_no_hook(ssh):
    ssh.hangs, ssh.refusal = True, DENIED
    hosts = [f"web-{number}:2222" for number in range(3000)]
    assert not ssh.delete(*hosts)
    assert ssh.now == 30
    assert not ssh.tsas(*hosts).refuse()
    assert ssh.now == 60
