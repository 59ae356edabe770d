# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The search for processes that have a GPU open, with processes that really have it open."""

import collections.abc
import contextlib
import os
import socket
import subprocess
import sys
import time

from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_table import JOB, Holder
from gpu_runtime.open_devices import Search
from prove_gpu import rig
from prove_gpu.proof import NotRunError, Proof

# Each does one thing with the node in argv[1], says so, and waits for a line.
_OPEN = "import os, sys; kept = os.open(sys.argv[1], os.O_RDWR)"
_PLACE = "import os, sys; kept = os.open(sys.argv[1], os.O_PATH)"
_NOTHING = "import sys; open(sys.argv[1] + '/none') if len(sys.argv) > 9 else None"
_THREAD = """
import ctypes, os, sys, threading
ready = threading.Event()
def own():
    assert ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES: descriptors of its own
    os.open(sys.argv[1], os.O_RDWR)
    ready.set()
    threading.Event().wait()
threading.Thread(target=own, daemon=True).start()
ready.wait()
"""
# The parent's end of a socket comes as standard input. The receiver keeps what it gets.
_SEND = """
import array, os, socket, sys
kept = os.open(sys.argv[1], os.O_RDWR)
there = socket.socket(fileno=int(sys.argv[2]))
there.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [kept]))])
"""
_RECEIVE = """
import socket, sys
here = socket.socket(fileno=int(sys.argv[2]))
_, ancillary, *_ = here.recvmsg(1, 4096)
kept = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
"""
_WAIT = """
print("ready", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def _process(
    script: str, *arguments: str, keep: tuple[int, ...] = ()
) -> collections.abc.Generator[subprocess.Popen[str]]:
    argv = [sys.executable, "-I", "-S", "-c", f"{script}\nimport sys\n{_WAIT}", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, pass_fds=keep, text=True) as child:
        try:
            if child.stdout is None or child.stdout.readline() != "ready\n":
                raise NotRunError("a process of this step does not start: see log.txt")
            yield child
        finally:
            child.kill()


def descriptors(proof: Proof) -> None:
    """Search processes that have a GPU's node open in several ways, and one that has not."""
    found = rig.inventory()
    node = f"/dev/nvidia{found.gpus[0].minor}"
    try:
        os.close(os.open(node, os.O_RDWR))
    except OSError as error:
        raise NotRunError(f"{node} can't be opened here: {error.strerror}") from error
    search = Search("", [node])
    with _process(_NOTHING, node) as child:
        proof.equal("a process without it", False, search.has_one_open(child.pid))
    with _process(_OPEN, node) as child:
        proof.equal("a process that opened it", True, search.has_one_open(child.pid))
        proof.equal("that is an open file, not a place", False, search.has_places_alone(child.pid))
        others = [
            f"/dev/nvidia{number}" for number in range(256) if f"/dev/nvidia{number}" != node
        ]
        proof.equal("by other GPUs' nodes", False, Search("", others).has_one_open(child.pid))
        proof.check(
            "among all processes", child.pid in rig.users([node]), child.pid, "in the list"
        )
    proof.equal("a process that has ended", False, search.has_one_open(child.pid))
    with _process(_PLACE, node) as child:
        proof.equal(
            "a process with its place (O_PATH)",
            (True, True),
            (search.has_one_open(child.pid), search.has_places_alone(child.pid)),
        )
    with _process(_THREAD, node) as child:
        proof.equal("a thread with descriptors of its own", True, search.has_one_open(child.pid))
    _passed_on(proof, search, node)
    _whole_machine(proof, node)
    _holder(proof)


def _passed_on(proof: Proof, search: Search, node: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, _process(_SEND, node, str(ours.fileno()), keep=(ours.fileno(),)) as sender:
        keep = (theirs.fileno(),)
        with _process(_RECEIVE, node, str(theirs.fileno()), keep=keep) as receiver:
            proof.equal("a process that was sent it", True, search.has_one_open(receiver.pid))
            sender.kill()
            sender.wait(10)
            proof.equal("the sender, after its end", False, search.has_one_open(sender.pid))
            proof.equal(
                "the receiver, after the sender's end", True, search.has_one_open(receiver.pid)
            )
            mounts = search.mounts(receiver.pid)
            proof.check(
                "the mount that it was opened by",
                len(mounts) == 1 and 0 not in mounts,
                "one mount id",
                mounts,
            )


def _whole_machine(proof: Proof, node: str) -> None:
    began = time.monotonic()
    there = rig.users([node])
    proof.figure("search of all processes", round((time.monotonic() - began) * 1000, 1), "ms")
    proof.figure("processes", sum(name.isdecimal() for name in os.listdir("/proc")))
    proof.figure("others with the GPU open", ", ".join(there.values()) or "none")


def _holder(proof: Proof) -> None:
    """Check that a holder uses its GPU exactly as long as the process that keeps it for it."""
    host = Host()
    with _process(_NOTHING, "/dev") as child:
        started = int(_stat(child.pid)[19])
        holder = Holder("", ["GPU-0"], [], exclusive=True, since=host.now() - 1000)
        holder.kind, holder.execs, holder.keeper = JOB, True, (child.pid, started)
        proof.equal("a holder whose keeper lives", True, host.in_use("prove.scope", holder))
        holder.keeper = (child.pid, started + 1)
        proof.equal("a keeper of the same number", False, host.in_use("prove.scope", holder))
        holder.keeper = (child.pid, started)
        child.kill()
        child.wait(10)
        proof.equal("a holder whose keeper has ended", False, host.in_use("prove.scope", holder))


def _stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()


def cuda(proof: Proof) -> None:
    """Search a CUDA program, which has more of the driver open than one descriptor.

    The figures say which nodes: CUDA may open those of GPUs that it does not use.
    """
    found = rig.inventory()
    gpu = next((gpu for gpu in found.gpus if not gpu.mig_enabled), None)
    if gpu is None:
        raise NotRunError("MIG is on for every GPU")
    search = Search("", [f"/dev/nvidia{gpu.minor}"])
    with rig.load(gpu.uuid, 256, 20) as load:
        proof.equal("while it runs", True, search.has_one_open(load.pid))
        opened = sorted({_target(load.pid, name) for name in os.listdir(f"/proc/{load.pid}/fd")})
        nodes = [path for path in opened if path.startswith("/dev/nvidia")]
        proof.figure("nodes that it has open", ", ".join(nodes))
        load.kill()
        proof.equal("after its end", False, search.has_one_open(load.pid))
        left = rig.users([f"/dev/nvidia{gpu.minor}"])
        proof.check("it has left no process", load.pid not in left, "not in the list", left)


def _target(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{name}")
    except OSError:
        return ""
