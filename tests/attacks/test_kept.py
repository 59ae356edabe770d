# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Attackers who keep a GPU when its lease is over, or get at one without a lease."""

from tests.attacks.attacker import EVIDENCE, assert_lost_to, assert_refused, step
from tests.lab import outfit
from tests.lab.leases import journal

HOLD = f"/bin/mischief hold {EVIDENCE}"
# The attacker's own GPU, of which there is one.
MINE = "$(ls -d /dev/nvidia[0-9])"
LEAVE = "</dev/null >/dev/null 2>&1 &"


def test_first_process_is_the_pipelines_own(attacker):
    """An input at /tmp has a link where Concourse's init goes, to a program of another input.

    The runtime makes mounts in the order of their paths, so that program is the container's first
    process. It must not open a GPU that somebody else has.
    """
    make = f"""
ln -s /zz/xx/y tmp/gdn-init
printf '#!/bin/sh\\nexec {HOLD}/link\\n' >else/y
chmod 755 else/y
"""
    use = step(
        "use", "cat /proc/1/cmdline; sleep 1", "2",
        inputs=[{"name": "tmp", "path": "/tmp"}, {"name": "else", "path": "/zz/xx"}],
    )  # fmt: skip
    done = attacker.run(step("make", make, outputs=[{"name": "tmp"}, {"name": "else"}]), use)
    assert done.ran == 2, done.output
    assert "/bin/mischief" in done.output
    assert_lost_to(attacker, "link")


def test_a_descriptor_planted_in_the_first_process(attacker):
    """A step has the container's genuine first process open its GPU, by ptrace.

    That descriptor must not outlive the lease.
    """
    done = attacker.one(f"/bin/mischief plant 1 {MINE}; ls -l /proc/1/fd", "1")
    assert any(line.startswith("planted ") for line in done.lines), done.output
    assert_lost_to(attacker)


def test_a_process_that_outlives_its_step(attacker):
    """Children with sessions of their own go on opening the GPU after their step.

    They must not go on once somebody else has that.
    """
    twice = f"setsid setsid {HOLD}/child {LEAVE}"
    done = attacker.one(f"setsid {HOLD}/child {LEAVE} {twice} sleep 1", "2")
    assert done.status == 0, done.output
    assert_lost_to(attacker, "child")


def test_a_chain_of_processes_that_end_faster_than_they_are_listed(attacker):
    """A program forks without end, each process lives for a moment, and opens the GPU.

    It must be over before somebody else has that.
    """
    attacker.one(f"/bin/mischief chain {EVIDENCE}/chain {LEAVE} sleep 1", "2")
    assert_lost_to(attacker, "chain")


def test_three_thousand_processes_deaf_to_signals(attacker):
    """A step leaves 3,000 processes, each with a session of its own, and one that opens the GPU.

    All must be over before somebody else has that.
    """
    done = attacker.one(f"{HOLD}/swarm {LEAVE} /bin/mischief swarm 3000; sleep 1", "2")
    assert "swarm: ok" in done.lines, done.output
    assert_lost_to(attacker, "swarm")
    assert attacker.site.sh("pgrep -c -x mischief; true") == "0\n"


def give(socket: str, end: str = "sleep 1") -> str:
    """A script that leaves a program which hands its GPU's descriptor to who asks for it."""
    return f"setsid /bin/mischief give {socket} {MINE} {LEAVE} {end}"


def take(socket: str) -> str:
    """A script that asks for it and keeps it."""
    return f"/bin/mischief take {socket} {EVIDENCE}/taken"


def lairs(attacker, mark: str) -> list[str]:
    """Where a volume with this file in it lies on the worker."""
    found = attacker.site.sh(f"find /var/lib/concourse -name {mark} -printf '%h\\n'")
    return found.splitlines()


def test_a_descriptor_that_another_task_takes_from_a_live_volume(attacker):
    """A task's root is another task's live volume, where that hands out its GPU's descriptor.

    The path of the volume is in /proc/self/mountinfo. That task must be refused in words.
    """
    make = (
        "mkdir lair/proc lair/dev lair/sys lair/tmp lair/etc; cp -a /bin lair; touch lair/mark-1"
    )
    attacker.one(f"{make}; {give('lair/socket')}", "1", outputs=[{"name": "lair"}])
    found = lairs(attacker, "mark-1")
    assert found
    for folder in found:
        done = attacker.one(take("/socket"), rootfs_uri=f"raw://{folder}")
        assert_refused(done)
    assert_lost_to(attacker)


def test_a_descriptor_that_another_task_takes_from_an_input(attacker):
    """A task hands its GPU's descriptor out in an output; the next has that as its input.

    An input is a copy, so nobody listens there: it must stay so.
    """
    attacker.run(
        step("give", give("lair/socket"), "1", outputs=[{"name": "lair"}]),
        step("take", f"cd lair; ls -l; {take('socket')}; true", inputs=[{"name": "lair"}]),
    )
    assert attacker.noted("taken") == []
    assert_lost_to(attacker)


def test_a_descriptor_that_another_task_takes_by_an_abstract_name(attacker):
    """A task hands its GPU's descriptor out under a name that is in no file system.

    Another container must not reach that.
    """
    attacker.one(give("@socket"), "1")
    done = attacker.one(take("@socket") + "; true")
    assert "connect: ECONNREFUSED" in done.lines, done.output
    assert_lost_to(attacker)


def test_a_descriptor_that_is_held_without_a_lease(attacker):
    """Two tasks share a folder that the operator marked; one takes the other's descriptor there.

    Who is found with a GPU that somebody else is to have must end as a whole, and the log says so.
    """
    attacker.one(give(f"{EVIDENCE}/socket"), "1")
    taker = attacker.start(step("one-off", take(f"{EVIDENCE}/socket")))
    attacker.wait_for("taken", "keeps 195:")
    assert_lost_to(attacker, "taken")
    assert taker.wait() != 0
    assert "intruder ended" in [line["kind"] for line in journal(attacker.site)[-5:]]


HOST_FOLDERS = (
    *(
        "/",
        "/proc/1/root",
        "/srv/of-the-host",
        "/run/gpu-ci",
        "/var/lib/gpu-ci",
        "/run/containerd",
    ),
    "/etc/concourse/keys",
    f"{outfit.ROOTFS}/tmp",
    f"{outfit.ROOTFS}/../../of-the-host",
    f"{outfit.ROOTFS}{EVIDENCE}/link",
    f"{outfit.ROOTFS}/proc/../../..",
)


def test_a_folder_of_the_host_as_root(attacker):
    """Tasks have a folder of the worker itself as their root, straight or by a link of their own.

    With a GPU or without, they must be refused in words, and nothing must be made there.
    """
    folders = "/srv/of-the-host /run/gpu-ci /etc/concourse/keys /var/lib/gpu-ci"
    attacker.site.sh("mkdir -p /srv/of-the-host")
    before = attacker.site.sh(f"ls -A {folders}")
    attacker.one(f"ln -s /srv/of-the-host {EVIDENCE}/link")
    jobs = {
        path: [step("one-off", "ls /; id", str(number % 2), rootfs_uri=f"raw://{path}")]
        for number, path in enumerate(HOST_FOLDERS)
    }
    for done in attacker.at_once(jobs).values():
        assert_refused(done)
    assert attacker.site.sh(f"ls -A {folders}") == before


OTHER_NODES = """
for card in 0 1; do
  mknod /tmp/card$card c 195 $card && (: </tmp/card$card) 2>&1 | sed 's/.*: /made /'
  (: </dev/nvidia$card) 2>&1 | sed 's/.*: /given /'
done
unshare -Urm sh -c '
  mkdir -p /tmp/group; mount -t cgroup -o devices devices /tmp/group
  echo a >/tmp/group/devices.allow
  mount -t tmpfs x /mnt; mknod /tmp/own c 195 0; : </tmp/own' 2>&1 | sed 's/^/own namespace: /'
echo 'a *:* rwm' >/sys/fs/cgroup/devices/devices.allow
rm -f /tmp/card0 /tmp/card1 /tmp/own
"""


def test_nodes_that_a_task_makes_itself(attacker):
    """Tasks make the nodes of all GPUs themselves, also in a user namespace of their own.

    They must open no other than their lease allows: none, or one.
    """
    ended = attacker.at_once({gpus: [step("one-off", OTHER_NODES, gpus)] for gpus in "01"})
    for gpus, done in ended.items():
        opened = int(gpus)
        answers = [line for line in done.lines if line.startswith(("made ", "given ", "own "))]
        assert len([line for line in answers if "No such device" in line]) <= 2 * opened, answers
        made = [line for line in answers if line == "made No such device or address"]
        assert len(made) <= opened, answers
