# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a user of the worker's machine gets from Garden, Baggageclaim and the other ports: nothing.

With the real Concourse where GPUCI_CONCOURSE_TARBALL names it.
"""

import contextlib

import pytest

from machine import polling as waiting
from tests.functional.ci_host import ODD, Host
from tests.functional.concourse_machine import NEEDS, concourse_machine

pytestmark = NEEDS

# Which of the ports a user reaches; as root, which listen.
ASK = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
for port in (7776, 7777, 7787, 7788, 8888):
    with socket.socket() as one:
        one.settimeout(5)
        if not one.connect_ex(("127.0.0.1", port)):
            try:
                one.sendall(b"GET /ping HTTP/1.0\\r\\n\\r\\n")
                print(port, one.recv(12).decode())
            except OSError as error:  # its process ends just now
                print(port, error)
"""
# On which ports a user is answered until the worker, which is started anew, answers root.
# To connect is nothing yet: for a moment the guard listens there, to see whether another does.
ALL_THE_TIME = """
import os, socket, time
def answer(port):
    with socket.socket() as one:
        one.settimeout(5)
        try:
            one.connect(("127.0.0.1", port))
            one.sendall(b"GET /ping HTTP/1.0\\r\\n\\r\\n")
            return one.recv(12)
        except OSError:
            return b""
def look():
    os.setuid(65534)
    while True:
        for port in (7776, 7777, 7787, 7788, 8888):
            if said := answer(port):
                print(port, said, flush=True)
        time.sleep(0.02)
child = os.fork() or look()
end = time.monotonic() + 60
while not os.path.exists("/srv/started-anew") and time.monotonic() < end:
    time.sleep(0.1)
time.sleep(1)  # the former one has ended by then
while not answer(8888) and time.monotonic() < end:
    time.sleep(0.3)
time.sleep(0.5)
print("over" if time.monotonic() < end else "it does not answer")
os.kill(child, 9)
"""
# A colleague's service.
SERVE = """
import os, socket
os.setuid(65534)
with socket.create_server(("127.0.0.1", 7777)) as listener:
    while True:
        listener.accept()[0].sendall(b"HTTP/1.0 200")
"""
TABLE = "nft list tables 2>&1"
RUNS = "systemctl is-active concourse-worker gpu-ci-ports | sort -u"


class Worker(Host):
    def reached(self, uid=65534):
        return self.sh(f"/usr/bin/python3 -I -S /srv/ask.py {uid}").split("\n")[:-1]

    def listening(self):
        return [int(line.split()[0]) for line in self.reached(0)]

    def journal(self, unit):
        return self.sh(f"journalctl -q -o cat -u {unit}")


# In seconds. It is done at once, and seen by programs that wait for a processor at a load of 8.
RESTORED = 30


def until(condition, seconds=60.0):
    assert waiting.until(condition, seconds)


@pytest.fixture(scope="module")
def machine():
    with concourse_machine("ports") as machine, contextlib.closing(Worker(machine)) as host:
        host.release()
        host.sh("sysctl -qw net.ipv4.ip_forward=1")
        host.call("ci.concourse.web.local_postgresql.HERE.ensure")
        quoted = ODD.replace("'", "''")
        psql = ["/usr/sbin/runuser", "-u", "postgres", "--", "/usr/bin/psql", "-q"]
        machine.run(psql, stdin=f"ALTER ROLE concourse PASSWORD '{quoted}'")
        for name, text in (("ask", ASK), ("serve", SERVE), ("look", ALL_THE_TIME)):
            machine.run(["/usr/bin/tee", f"/srv/{name}.py"], stdin=text)
        yield host


@pytest.fixture
def worker(machine):
    assert waiting.until(lambda: machine.both()[1], 60), machine.sh(
        "systemctl status --no-pager -n 30 concourse-worker gpu-ci-ports; true"
    )
    until(lambda: {7777, 7788, 8888} <= {*machine.listening()})
    return machine


def test_another_user_reaches_none_of_the_workers_ports(worker):
    assert worker.reached() == []
    assert worker.reached(1000) == []
    assert worker.call("ci.concourse.service.taken", say=False)["result"] == []
    assert "8888 HTTP/1." in worker.sh("/usr/bin/python3 /srv/ask.py 0")


def test_a_flush_of_all_rules_is_undone_and_reported(worker):
    for flush in (
        "nft flush ruleset",
        "nft flush table inet gpu_ci",
        "nft delete table inet gpu_ci",
    ):
        worker.sh(flush)
        until(lambda: worker.reached() == [], RESTORED)
    said = worker.journal("gpu-ci-ports")
    assert said.count("was missing or changed: it is restored") == 3


def test_the_guards_own_end_opens_nothing(worker):
    worker.sh("systemctl kill --signal=KILL gpu-ci-ports")
    assert worker.reached() == []
    until(lambda: worker.sh(RUNS) == "active\n")
    worker.sh("nft flush ruleset")
    until(lambda: worker.reached() == [], RESTORED)


@pytest.mark.parametrize("how", ["restart", "kill --kill-who=main --signal=KILL"])
def test_no_start_of_the_worker_leaves_its_ports_open(worker, how):
    look = "/usr/bin/python3 -I -S /srv/look.py"
    anew = f"sleep 0.3; systemctl {how} concourse-worker; touch /srv/started-anew"
    assert worker.sh(f"rm -f /srv/started-anew; {look} & {anew}; wait") == "over\n"
    assert worker.reached() == []


def test_a_colleagues_service_is_not_touched_while_no_worker_runs(worker):
    worker.sh("systemctl stop concourse-worker")
    assert "gpu_ci" not in worker.sh(TABLE)
    assert worker.sh("systemctl is-active gpu-ci-ports || true") == "inactive\n"
    worker.sh("systemd-run --quiet --unit=colleague /usr/bin/python3 /srv/serve.py")
    until(lambda: worker.reached() == ["7777 HTTP/1.0 200"])
    # The worker says why it does not start, and the service goes on.
    assert worker.sh("systemctl start concourse-worker && echo started || true") == ""
    said = worker.journal("concourse-worker")
    assert "port 7777 of 127.0.0.1 is in use by another program (Address already in use)" in said
    assert worker.reached() == ["7777 HTTP/1.0 200"]
    assert ["worker", 7777] in worker.call("ci.concourse.service.taken", say=False)["result"]
    worker.sh("systemctl stop colleague")
    until(lambda: 7777 in worker.listening())
    assert worker.reached() == []


def test_it_is_there_after_a_reboot(worker):
    worker.machine.reboot()
    until(lambda: {7777, 7788, 8888} <= {*worker.listening()})
    assert worker.reached() == []
    assert worker.sh(RUNS) == "active\n"


def test_it_goes_with_the_worker_and_leaves_nothing(worker):
    worker.call("ci.concourse.worker.worker.retire", 5)
    worker.call("ci.concourse.worker.worker.remove", say=False)
    left = "find /run /usr/local/lib /etc/systemd -name '*gpu-ci-ports*'"
    assert "gpu_ci" not in worker.sh(TABLE)
    assert worker.sh(left) == ""
    assert "gpu-ci-ports" not in worker.sh("systemctl list-units --all --plain --no-legend")
