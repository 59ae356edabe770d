# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A device that a process has open is found, however it has it: asked of real processes."""

import platform
import subprocess
import sys

import pytest

from gpuci.descriptors import Search

NODE = "/dev/zero"  # one that can be mapped, too

OPEN = "import os; descriptor = os.open('/dev/zero', os.O_RDWR)"
MAPPED = f"{OPEN}; import mmap; kept = mmap.mmap(descriptor, 4096, mmap.MAP_PRIVATE)"
# A thread with descriptors of its own, which the first thread's folder in /proc does not show.
THREAD = """
import ctypes, os, threading
ready = threading.Event()
def own():
    assert ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES
    os.open("/dev/zero", os.O_RDWR)
    ready.set()
    threading.Event().wait()
threading.Thread(target=own, daemon=True).start()
ready.wait()
"""
# The first thread has ended: nothing of the process is seen in /proc/<pid>/fd.
HEADLESS = """
import ctypes, os, threading, time
os.open("/dev/zero", os.O_RDWR)
def speak():
    time.sleep(0.3)
    print("ready", flush=True)
    time.sleep(1000)
threading.Thread(target=speak).start()
ctypes.CDLL(None).syscall(60, 0)
"""
ELSEWHERE = """
import os, stat, tempfile
path = os.path.join(tempfile.mkdtemp(), "node")
os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
descriptor = os.open(path, os.O_RDONLY)
os.unlink(path)
"""


SAY = """
print("ready", flush=True)
import time
time.sleep(1000)
"""


@pytest.fixture
def process():
    started = []

    def start(script):
        argv = [sys.executable, "-c", script if script is HEADLESS else script + SAY]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1].pid

    yield start
    for one in started:
        one.kill()
        one.wait(10)
        one.stdout.close()


@pytest.mark.parametrize(
    "script",
    [
        OPEN,
        f"{MAPPED}; os.close(descriptor)",
        THREAD,
        pytest.param(
            HEADLESS,
            marks=pytest.mark.skipif(platform.machine() != "x86_64", reason="exit is call 60"),
        ),
        ELSEWHERE,
    ],
    ids=["descriptor", "mapping", "thread of its own", "first thread ended", "other name"],
)
def test_it_is_found(process, script):
    assert Search("", [NODE]).has_one_open(process(script))


@pytest.mark.parametrize("nodes", [[], ["/dev/full"], ["/dev/nvidia7777"], ["/etc/passwd"]])
def test_another_device_is_not(process, nodes):
    pid = process(OPEN)
    assert not Search("", nodes).has_one_open(pid)


def test_a_process_that_is_gone_has_none():
    done = subprocess.Popen(["true"])
    done.wait(10)
    assert not Search("", [NODE]).has_one_open(done.pid)
