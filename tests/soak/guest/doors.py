# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The ways in, with cgroup v2: the worker's ports, gpu-run's socket, a descriptor that is sent."""

import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import looks
from worker import CGROUPS, until

from ci.concourse.worker import ports as worker_ports
from machine import ports

LOG = pathlib.Path("/var/log/gpu-ci/oci.log")
UNITS = pathlib.Path("/etc/systemd/system")
IMAGE = "lab.test/plain"
WORKER = "concourse-worker.service"
SERVE = """
import socket, threading
def serve(port):
    with socket.create_server(("127.0.0.1", port)) as one:
        while True:
            one.accept()[0].close()
threading.Thread(target=serve, args=(7777,)).start()
serve(8888)
"""
UNIT = """[Unit]
After={guard}
Requires={guard}
[Service]
ExecStartPre={shut}
ExecStopPost=-{open}
ExecStart=/usr/bin/python3 /srv/serve.py
KillMode=process
Delegate=yes
"""
REACH = ("python3", "-I", "-S", "/usr/local/lib/gpu-ci-ports", "reach", "7777,8888")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
HOST = ("docker", "run", "--rm", "--network=host", IMAGE, "sh", "-c")
STORM = """
import os, socket, time
for _ in range(2):
    if not os.fork(): break
held = []
while True:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.setblocking(False)
    try: one.connect("/run/gpu-run.sock")
    except OSError: time.sleep(0.001)
    held.append(one)
    del held[:-200]
"""


def reached(machine):
    """What the worker's own process reaches, root elsewhere, nobody, and a container of root's."""
    enter = CGROUPS / "system.slice" / WORKER / "cgroup.procs"
    own = ("sh", "-c", f"echo $$ >{enter}; exec {' '.join(REACH)}")
    said = [machine.ok(*words).split() for words in (own, REACH, (*NOBODY, *REACH))]
    ask = "for p in 7777 8888; do busybox nc -w 5 127.0.0.1 $p </dev/null 2>&1 && echo $p; done"
    inside = machine.ok(*HOST, f"{ask}; true").split()
    return [*said, [word for word in inside if word in ("7777", "8888")]]


def only_the_workers_own_group_reaches_garden(machine):
    """Root in a container with the machine's network is not in it."""
    pathlib.Path("/srv/serve.py").write_text(SERVE)
    (UNITS / WORKER).write_text(UNIT.format(**worker_ports.commands(WORKER)))
    worker_ports.ensure()
    machine.ok("systemctl", "daemon-reload")
    wanted = [["7777", "8888"], ["8888"], [], ["8888"]]
    try:
        for verb in ("start", "restart"):
            machine.ok("systemctl", verb, WORKER)
            until(30, "it listens", lambda: machine.ok(*REACH).split() == ["8888"])
            assert (found := reached(machine)) == wanted, found
        machine.ok("nft", "flush", "ruleset")
        until(10, "the rules are back", ports.losses)
        assert (found := reached(machine)) == wanted, found
        _containers_that_come_and_go(machine)
    finally:
        machine.ok("systemctl", "stop", WORKER)
    assert "gpu_ci" not in machine.ok("nft", "list", "tables")


def _containers_that_come_and_go(machine):
    """They are no loss of the rules; nft looks through all groups for the name of one."""
    had, over = len(ports.losses()), threading.Event()

    def churn(name):
        while not over.is_set():
            folder = CGROUPS / "system.slice" / f"docker-{name}.scope"
            folder.mkdir()
            folder.rmdir()

    threads = [threading.Thread(target=churn, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    try:
        # Each change of another table is a look more.
        for _ in range(8):
            machine.ok("nft", "add", "table", "inet", "other")
            machine.ok("nft", "delete", "table", "inet", "other")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    time.sleep(3)
    assert len(ports.losses()) == had, machine.do("journalctl", "-u", worker_ports.SERVICE).stdout


def as_alice(*words):
    return ("setpriv", "--reuid", "alice", "--regid", "alice", "--init-groups", "--", *words)


def a_storm_at_the_door_and_its_death_leave_gpus_to_who_has_them(machine):
    """Alice storms, her command goes on, root is served, and the killed door comes again."""
    holds = subprocess.Popen(
        as_alice("gpu-run", "--gpu", "0", "--", "sleep", "1000"),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
    )  # fmt: skip
    until(60, "it has its GPU", machine.sees)
    name, _, _ = machine.holder()
    pathlib.Path("/tmp/storm.py").write_text(STORM)
    storm = subprocess.Popen(
        as_alice("python3", "/tmp/storm.py"), start_new_session=True, cwd="/",
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        time.sleep(3)
        took = []
        for kills in (False, True, True, False):
            if kills:
                machine.do("sh", "-c", "systemctl kill -s KILL 'gpu-ci-run@*.service'")
            began = time.monotonic()
            done = machine.do("gpu-run", "--gpu", "1", "--", "true")
            took.append((round(time.monotonic() - began, 1), done.returncode, done.stdout))
            assert machine.sees()[name]["in_use"], machine.sees()
        looks.tell(note=f"root's runs in the storm: {took}")
        assert [took[0][1], took[-1][1]] == [0, 0], took
        assert machine.do("systemctl", "show", "-P", "Result", "gpu-ci-run.socket").stdout == (
            "success\n"
        )
        twice = machine.do("gpu-run", "--gpu", "0", "--timeout", "1s", "--", "true")
        assert twice.returncode, twice
    finally:
        os.killpg(storm.pid, signal.SIGKILL)
        storm.wait(10)
        holds.kill()
        holds.wait(10)
    until(60, "it has ended", lambda: machine.do("gpu-run", "--gpus", "2", "true").returncode == 0)


def a_descriptor_sent_to_the_other_engines_container_ends_that(machine):
    """Podman's lease ends, and Docker's container in a pod's slice had its GPU open."""
    folder = pathlib.Path("/srv/shared")
    folder.mkdir(exist_ok=True)
    tools = ("-v", "/soak/mischief:/bin/mischief", "-v", f"{folder}:/shared")
    give = (*tools, IMAGE, "mischief", "give", "/shared/socket", "/dev/nvidia0")
    machine.ok("podman", "run", "-d", "--name", "gives", "--device", "/dev/nvidia0", *give)
    until(60, "it gives", (folder / "socket").exists)
    take = (*tools, IMAGE, "mischief", "take", "/shared/socket", "/shared/diary")
    parent = "--cgroup-parent=kubepods-pod1.slice"
    machine.ok("docker", "run", "-d", "--name", "takes", parent, *take)
    machine.ok("docker", "run", "-d", "--name", "stays", parent, IMAGE, "sleep", "1000")
    until(60, "it has it", (folder / "diary").exists)
    pid = machine.ok("docker", "inspect", "-f", "{{.State.Pid}}", "takes").strip()
    group = pathlib.Path(f"/proc/{pid}/cgroup").read_text().strip()
    assert group.startswith("0::/kubepods.slice/kubepods-pod1.slice/docker-"), group
    machine.ok("podman", "kill", "gives")
    machine.both_are_free()
    lines = map(json.loads, LOG.read_text().splitlines())
    ended = [line["container"] for line in lines if line["kind"] == "intruder ended"]
    assert ended[-1:] == [group.rpartition("/")[2]], ended
    running = machine.ok("docker", "ps", "--format", "{{.Names}}").split()
    assert running == ["stays"], running
