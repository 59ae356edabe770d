# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A member of gpu-run's group against the machine: storms of connections, and what others notice.

Each storm is alice's. Meanwhile bob has a GPU by gpu-run, and root asks systemd.
"""

import json
import os
import statistics

import pytest

from tests.functional import run_machine, selftest_machine

pytestmark = selftest_machine.NEEDS

SOCKET = """
import os, socket, time
def connect(wait=True):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.setblocking(wait)
    one.connect('/run/gpu-run.sock')
    return one
"""
STORMS = {
    "connect and close by six processes, without a wait": """
for _ in range(5):
    if not os.fork(): break
while True:
    try: connect(wait=False).close()
    except BlockingIOError: pass
""",
    "connect and hold": """
held = []
while True:
    try: held.append(connect(wait=False))
    except OSError: time.sleep(0.001)
    del held[:-900]
""",
}
if "GPUCI_SOAK" in os.environ:
    # What others find is the same as in those above.
    STORMS |= {
        "connect and close": """
while True:
    connect().close()
""",
        "send before it is asked": """
while True:
    try:
        with connect() as one: one.send(b'x' * 4000)
    except OSError: pass
""",
        "stop a hundred that have connected": """
for _ in range(100):
    if not os.fork():
        one = connect()
        os.kill(os.getpid(), 19)
time.sleep(1000)
""",
    }
# Times of what others do meanwhile, in seconds, and their exit statuses.
MEASURE = """
import json, subprocess, sys, time
bob = "setpriv --reuid bob --regid bob --init-groups -- /usr/local/bin/gpu-run true".split()
show = ["systemctl", "show", "-P", "ActiveState", "gpu-ci-run.socket"]
told, end = {"gpu-run": [], "systemctl": []}, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for name, argv in (("gpu-run", bob), ("systemctl", show)):
        begun = time.monotonic()
        done = subprocess.run(argv, cwd="/", capture_output=True, text=True)
        told[name].append((round(time.monotonic() - begun, 2), done.returncode, done.stderr))
    time.sleep(0.5)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def box():
    with run_machine.started("gpurunstorm") as box:
        yield box
        box.settle()


def measure(box, seconds):
    box.machine.write("/srv/measure.py", MEASURE)
    argv = ["/usr/bin/python3", "/srv/measure.py", str(seconds)]
    told = json.loads(box.machine.run(argv, timeout=300).stdout)
    print({name: [one[0] for one in those] for name, those in told.items()})
    return told


def during(box, script):
    """What others find while alice runs a script."""
    box.machine.write("/srv/storm.py", script)
    begin = "systemd-run -q --collect --unit=storm --slice=user.slice --uid=alice"
    box.sh(f"{begin} python3 /srv/storm.py")
    try:
        return measure(box, 12)
    finally:
        box.sh(
            "systemctl kill -s KILL storm; while systemctl -q is-active storm; do sleep 0.2; done"
        )


@pytest.mark.parametrize("storm", STORMS)
def test_a_storm_of_one_user_is_nothing_to_another_nor_to_systemd(box, storm):
    # What the same processes cost that make as many sockets, but connect none.
    calm = during(box, SOCKET.replace("one.connect(", "str(") + STORMS[storm])
    told = during(box, SOCKET + STORMS[storm])
    for name, those in told.items():
        failed = [one for one in those if one[1]]
        assert failed == [], box.sh("tail -5 /var/log/gpu-ci/oci.log").stdout
        took, usual = ([one[0] for one in found] for found in (those, calm[name]))
        assert statistics.median(took) < 2 * statistics.median(usual) + 3, name
        assert max(took) < 3 * max(usual) + 5, name
    assert box.sh("systemctl show -P Result gpu-ci-run.socket").stdout == "success\n"
    assert box.run("true").returncode == 0


def test_whoever_kills_the_door_ends_the_waits_and_the_next_caller_is_served(box):
    runs = box.wait_runs(box.begin("all", "--gpus", "all", "sleep", "1000"), "alice: sleep")
    for number in range(3):
        box.begin(f"waits{number}", "true", user="bob")
        box.wait_said(f"waits{number}", "in the queue")
        box.sh("kill -KILL $(systemctl show -P MainPID 'gpu-ci-run@*.service')")
        box.wait_said(f"waits{number}", "gpu-run-unreachable")
        assert box.run("--timeout", "0", "true", user="bob").returncode == 124
    assert box.sh(f"systemctl is-active {runs}").stdout == "active\n"
    box.sh(f"systemctl stop {runs}")
    assert box.run("--gpus", "2", "true", user="bob").returncode == 0
    assert not box.leases()["waiters"]


def test_nothing_runs_once_there_is_nobody_to_serve(box):
    assert box.run("true").returncode == 0
    box.wait("[ -z \"$(systemctl list-units --plain --no-legend 'gpu-ci-run@*.service')\" ]", 90)
    assert box.sh("pgrep -f '[-]m gpu_run'", check=False).stdout == ""
    assert box.run("true").returncode == 0


OLD = {
    "gpu-ci-run.socket": """
[Socket]
ListenSequentialPacket=/run/gpu-run.sock
SocketMode=0660
SocketGroup=gpu-users
RemoveOnStop=yes
Accept=yes
MaxConnections=64
TriggerLimitIntervalSec=0
[Install]
WantedBy=sockets.target
""",
    "gpu-ci-run@.service": """
[Unit]
CollectMode=inactive-or-failed
[Service]
Type=exec
Slice=system.slice
ExecStart=/usr/bin/sleep 1000
StandardInput=socket
""",
}


def test_an_upgrade_from_a_unit_for_each_connection_ends_none_and_removal_leaves_none(box):
    box.do("service.remove()")
    for name, text in OLD.items():
        box.machine.write(f"/etc/systemd/system/{name}", text)
    begin = "systemctl daemon-reload; systemctl enable --now gpu-ci-run.socket"
    box.sh(f"touch /usr/local/bin/gpu-run; {begin}")
    holds = SOCKET + "one = connect(); time.sleep(1000)"
    box.machine.write("/srv/holds.py", holds)
    box.sh("systemd-run -q --collect --unit=test-holds --uid=alice python3 /srv/holds.py")
    old = "systemctl list-units --plain --no-legend 'gpu-ci-run@[0-9]*-[0-9]*-[0-9]*.service'"
    try:
        box.wait(f'[ -n "$({old})" ]')
        assert box.do("service.install('gpu-users')") == "True"
        assert box.do("service.install('gpu-users')") == "False"
        assert box.run("true", user="bob").returncode == 0
        assert box.sh(old).stdout.split()
        assert box.do("service.remove()") == "True"
        left = "systemctl list-units --all --plain --no-legend 'gpu-ci-run*'; ls /run/gpu-run.sock"
        assert box.sh(left, check=False).stdout == ""
    finally:
        box.do("service.install('gpu-users')")
    assert box.run("true", user="bob").returncode == 0


def test_another_group_and_back_leaves_the_way_open(box):
    box.sh("groupadd -f --system others; usermod -aG others bob")
    try:
        for group, status in (("others", 0), ("gpu-users", 0), ("others", 0)):
            assert box.do(f"service.install({group!r})") == "True"
            assert box.run("true", user="bob").returncode == status
        assert box.run("true").returncode == 125
    finally:
        box.do("service.install('gpu-users')")
    assert box.run("true").returncode == 0


def test_a_kill_at_any_step_leaves_no_lease_and_no_place(box):
    kills = "kill -KILL $(systemctl show -P MainPID 'gpu-ci-run@*.service' | grep -vx 0)"
    for step in range(6):
        box.begin(f"step{step}", "--gpus", "2", "true")
        box.sh(f"sleep {step / 5}; {kills}; true", check=False)
        # If it had its GPUs by then, they stay its own for a minute, in which it could begin.
        done = box.run("--gpus", "2", "--timeout", "80s", "true", user="bob")
        assert done.returncode == 0, (step, done.stderr)
        box.wait(f"! systemctl -q is-active test-step{step}")
    assert not box.leases()["waiters"]
    box.wait("[ -z \"$(systemctl list-units --plain --no-legend 'gpu-run-*.scope')\" ]")
