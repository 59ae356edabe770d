# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-run under a real systemd: what members of its group try, what is killed or changed."""

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys

import pytest

from tests.functional import lease_site, run_machine, selftest_machine
from tests.functional.run_machine import GROUP, SEES, SERVES, STORE, UNITS

pytestmark = selftest_machine.NEEDS

ROOT = pathlib.Path(__file__).parents[2]
# Speaks with the service as it likes; prints what it hears last.
SPEAK = """
import array, json, os, socket, struct
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect('/run/gpu-run.sock')
s.settimeout(60)
nonce = json.loads(s.recv(4096))['nonce']
def request(**more):
    asked = dict(version=1, nonce=nonce, do='run', gpus=1, named=[], any=False, timeout=0)
    asked['command'] = ''
    return json.dumps({**asked, **more}).encode()
def hear():
    while data := s.recv(1 << 20):
        said = json.loads(data)
        print(said['event'], said.get('code', ''))
    print('closed')
"""
BESIDE = "s.sendmsg([request()], [(socket.SOL_SOCKET, {})])"


@pytest.fixture(scope="module")
def installed():
    with run_machine.started("gpurundoors") as box:
        yield box


@pytest.fixture
def box(installed):
    yield installed
    installed.settle()


def speak(box, code, user="alice"):
    command = box.command(user, "python3", "-c", SPEAK + code)
    return box.machine.run(command, check=False, timeout=90).stdout


def still_serves(box):
    return box.run("--gpus", "2", "true", user="bob").returncode == 0


def test_who_is_in_no_group_is_told_which(box):
    done = box.run("true", user="mallory")
    assert done.returncode == 125
    assert done.stderr.startswith("gpu-run: gpu-run-not-permitted: ")
    assert f" {GROUP} " in done.stderr
    assert (
        "Permission denied"
        in box.machine.run(box.command("mallory", "python3", "-c", SPEAK), check=False).stderr
    )


def test_nobody_speaks_on_anothers_connection(box):
    # The one that has connected lives; it is gone; its number is no help to who has its socket.
    another = speak(box, "if os.fork():\n os.wait()\nelse:\n s.send(request()); hear()")
    assert "refused request-invalid" in another
    gone = "import time\nif not os.fork():\n time.sleep(1); s.send(request()); hear()"
    box.machine.run(box.command("alice", "python3", "-c", SPEAK + gone), check=False)
    box.wait(f"! {SERVES}")
    assert box.leases()["holders"] == {}
    assert still_serves(box)


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("s.send(b'x' * 100000); hear()", "refused request-invalid"),
        ("s.send(b'[' * 4000); hear()", "refused request-invalid"),
        ("s.send(b'null'); hear()", "refused request-invalid"),
        ("s.send(request(nonce='0' * 32)); hear()", "refused request-invalid"),
        ("s.send(request(gpus=10 ** 40)); hear()", "refused request-invalid"),
        ("s.send(request(named=['../../x'])); hear()", "refused gpu-not-offered"),
        ("s.send(request(uid=0)); hear()", "refused request-invalid"),
        (
            BESIDE.format("socket.SCM_RIGHTS, array.array('i', [0])") + "; hear()",
            "refused request-invalid",
        ),
        # Its credentials forged: the kernel lets nobody but root.
        (
            f"try: {BESIDE}\nexcept PermissionError: print('forbidden')".format(
                "2, struct.pack('3i', 1, 0, 0)"
            ),
            "forbidden",
        ),
    ],
)
def test_what_is_no_request_is_refused_and_the_next_one_is_served(box, code, answer):
    assert speak(box, code).splitlines()[0].startswith(answer)
    assert box.leases()["holders"] == {}


def test_odd_words_are_one_printable_line_to_others(box):
    speak(
        box,
        "s.send(request(command='x\\n\\x1b[2Jgpu-run of bob: ' + 'y' * 3000)); hear(); "
        "os.execvp('true', ['true'])",
    )
    (who,) = [one["who"] for one in box.leases()["holders"].values()]
    assert who.startswith("gpu-run of alice: x?")
    assert who.isprintable()
    assert len(who) <= 80


def test_those_who_stand_still_hold_up_nobody(box):
    box.wait_runs(box.begin("all", "--gpus", "all", "sleep", "1000"), "alice: sleep")
    box.begin("still", "true")
    box.wait_said("still", "waiting")
    box.sh(f"kill -STOP {box.pid('still')}")
    box.begin("next", "sh", "-c", "sleep 1", user="bob")
    box.wait_said("next", "position 2 in the queue")
    box.sh(f"kill -KILL {box.pid('still')}")
    box.sh("systemctl stop 'gpu-run-*.scope'")
    box.wait("! systemctl -q is-active test-next")
    assert "gpu-run: got GPU " in box.said("next")


def test_one_user_does_not_take_all_places(box):
    box.wait_runs(box.begin("all", "--gpus", "all", "sleep", "1000"), "alice: sleep")
    for number in range(8):
        box.begin(f"w{number}", "true")
    lease_site.until(lambda: len(box.leases()["waiters"]) == 8, 60)
    assert "gpu-run: gpu-run-user-limit: " in box.run("true").stderr
    assert box.run("--timeout", "0", "true", user="bob").returncode == 124


def test_nor_by_saying_nothing(box):
    silent = (
        "more = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(8)]\n"
        "for one in more: one.connect('/run/gpu-run.sock'); one.settimeout(60)\n"
        "for one in more:\n"
        " said = json.loads(one.recv(4096)); print(said['event'], said.get('code', ''))"
    )
    *heard, last = speak(box, silent).splitlines()
    assert heard == ["hello "] * 7
    assert last == "refused gpu-run-user-limit"
    assert still_serves(box)


def test_root_within_has_no_other_gpu_either(box):
    box.sh("install -m 4755 /usr/bin/dd /srv/rootdd; mount -o remount,suid / 2>/dev/null; true")
    look = (
        "/srv/rootdd if=/etc/shadow of=/dev/null count=1 2>/dev/null && echo root; "
        "for n in 0 1; do /srv/rootdd if=/dev/nvidia$n of=/dev/null count=1 2>&1 | head -1; done"
    )
    told = box.run("sh", "-c", look).stdout.splitlines()
    assert told[0] == "root"
    assert "nvidia0" in told[1]
    assert "not permitted" not in told[1]
    assert "'/dev/nvidia1': Operation not permitted" in told[2]


def test_a_process_cannot_move_itself_and_its_children_are_where_it_is(box):
    away = (
        "for f in $(find /sys/fs/cgroup -name cgroup.procs -path '*/system.slice/cgroup.procs'); "
        "do echo $PPID >$f || echo stays; done"
    )
    twice = f"import os; os.fork() or (os.setsid(), os.fork() or os.system({SEES!r}))"
    done = box.run("sh", "-c", f"{away}; python3 -c {shlex.quote(twice)}; sleep 2")
    told = done.stdout.split()
    assert set(told[:-3]) == {"stays"}
    assert told[-3:] == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/null"]


def test_a_second_lease_within_is_refused(box):
    done = box.run("sh", "-c", "gpu-run true; echo $?")
    assert done.stdout == "125\n"
    assert "gpu-run: gpu-run-nested: " in done.stderr


def test_who_asks_twice_at_once_has_one_lease(box):
    twice = (
        "one = s\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.connect('/run/gpu-run.sock')\nsecond = json.loads(s.recv(4096))['nonce']\n"
        "one.send(request(timeout=60))\nnonce = second\ns.send(request(timeout=60))\n"
        "hear(); s = one; hear()"
    )
    told = sorted(line for line in speak(box, twice).splitlines() if line != "closed")
    assert told[0].startswith("granted")
    # Whichever comes later finds it traced by the other's service, or in its control group.
    assert told[1].startswith(("refused gpu-run-nested", "refused gpu-run-traced"))
    assert len(box.leases()["holders"]) == 1


def test_who_is_traced_is_not_taken(box):
    done = box.machine.run(
        box.command("alice", "strace", "-o", "/dev/null", "gpu-run", "true"), check=False
    )
    assert done.returncode == 125
    assert "gpu-run: gpu-run-traced: " in done.stderr
    assert still_serves(box)


def test_the_services_end_ends_the_wait_and_no_command(box):
    runs = box.wait_runs(box.begin("all", "--gpus", "all", "sleep", "1000"), "alice: sleep")
    box.begin("waits", "true", user="bob")
    box.wait_said("waits", "position 1 in the queue")
    box.sh(f"systemctl kill -s KILL '{UNITS}'")
    box.wait_said("waits", "gpu-run-unreachable")
    assert box.run("--timeout", "0", "true", user="bob").returncode == 124
    assert box.sh(f"systemctl is-active {runs}").stdout == "active\n"


def test_an_upgrade_or_removal_meanwhile_ends_no_command(box):
    runs = box.wait_runs(box.begin("all", "--gpus", "all", "sleep", "1000"), "alice: sleep")
    box.begin("waits", "true", user="bob")
    box.wait_said("waits", "position 1 in the queue")
    box.sh("mkdir -p /srv/next; ln -sfn /srv/charm/* /srv/next/")
    box.current = "next"
    try:
        assert box.do(f"service.install({GROUP!r})") == "True"
        assert box.do(f"service.install({GROUP!r})") == "False"
        assert "position 1 in the queue" in box.said("waits")
        assert box.is_running("waits")
        assert box.do("service.remove()") == "True"
        box.wait_said("waits", "gpu-run-unreachable")
        assert box.do("service.remove()") == "False"
        left = box.sh(
            "ls /run/gpu-run.sock /usr/local/bin/gpu-run /usr/local/share/man/man1/gpu-run.1 "
            "/etc/systemd/system/gpu-ci-run* 2>/dev/null; systemctl list-units --all --no-legend "
            "'gpu-ci-run*'", check=False,
        ).stdout  # fmt: skip
        assert left == ""
        assert box.sh(f"systemctl is-active {runs}").stdout == "active\n"
    finally:
        box.current = "charm"
        box.do(f"service.install({GROUP!r})")
    refused = box.run("--timeout", "0", "true", user="bob")
    assert "GPU 0 by gpu-run of alice: sleep" in refused.stderr


def test_a_command_that_outlives_the_removal_leaves_no_trace_at_its_end(box):
    runs = box.wait_runs(box.begin("all", "--gpus", "all", "sleep", "1000"), "alice: sleep")
    listing = "systemctl list-units --all --plain --no-legend 'gpu*' 'system-gpu*' | cut -d' ' -f1"
    try:
        assert box.do("service.remove()") == "True"
        assert runs in box.sh(listing).stdout
        assert box.do("service.remove()") == "False"
        assert box.sh(f"systemctl is-active {runs}").stdout == "active\n"
        box.sh(f"systemctl kill {runs}")
        box.wait(f'[ -z "$({listing})" ]')
        groups = box.sh("find /sys/fs/cgroup -name 'gpu*' -o -name 'system-gpu*'", check=False)
        assert groups.stdout == ""
    finally:
        box.do(f"service.install({GROUP!r})")


def test_a_shut_user_slice_leaves_gpu_run_the_only_way(box):
    look = f"systemd-run --quiet --wait --pipe --slice=user.slice --uid=alice {SEES}"
    assert "/dev/nvidia1" in box.sh(look).stdout
    box.sh("systemctl set-property --runtime user.slice DevicePolicy=closed")
    try:
        assert box.sh(look).stdout.split() == ["/dev/null"]
        assert box.run("sh", "-c", SEES).stdout.split()[0] == "/dev/nvidia0"
        # Who leaves his gpu-run has left its GPUs.
        box.sh("systemctl start user@$(id -u alice).service")
        leave = "export XDG_RUNTIME_DIR=/run/user/$(id -u); systemd-run --user --scope --quiet "
        assert box.run("sh", "-c", leave + SEES).stdout.split() == ["/dev/null"]
    finally:
        box.sh("systemctl stop user@$(id -u alice).service; systemctl revert user.slice")


def test_the_number_of_a_process_that_is_held_is_no_others():
    env = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/lib"}
    held = subprocess.Popen(["/usr/bin/sleep", "1000"])
    argv = [
        sys.executable,
        "-m",
        "gpu_agent.gpu_run.scope_anchor",
        str(os.getpid()),
        str(held.pid),
    ]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, env=env) as pin:
        assert pin.stdout.readline() == b"held\n"
        held.kill()
        lease_site.until(lambda: "\nState:\tZ" in status(held.pid), 60)
        # Its own parent can't have it yet, so nobody can have its number.
        assert os.waitpid(held.pid, os.WNOHANG) == (0, 0)
        pin.stdin.close()
        pin.wait(60)
    assert held.wait(60) == -signal.SIGKILL


def status(pid):
    return pathlib.Path(f"/proc/{pid}/status").read_text()


def test_the_table_is_roots(box):
    assert box.sh(f"stat -c %a {STORE.rpartition('/')[0]}", check=False).stdout in ("700\n", "")
    assert json.loads(json.dumps(box.leases()))
