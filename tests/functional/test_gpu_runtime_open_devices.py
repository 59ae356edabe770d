# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A device that a process has open is found, however it has it: asked of real processes."""

import os
import pathlib
import platform
import shutil
import subprocess
import sys
import threading

import pytest

from gpu_runtime.holder_usage import Host
from gpu_runtime.open_devices import Search, TooLongError
from tests.functional.lease_site import with_rights_of_the_watch

NODE = "/dev/zero"  # one that can be mapped, too

OPEN = "import os; descriptor = os.open('/dev/zero', os.O_RDWR)"
# Python's own mmap keeps a descriptor beside the mapping.
MAP = """
import ctypes
map = ctypes.CDLL(None).mmap
map.restype = ctypes.c_void_p
map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_long] * 4]
assert map(None, 4096, 1, 2, descriptor, 0) != ctypes.c_void_p(-1).value  # PROT_READ, MAP_PRIVATE
os.close(descriptor)
"""
MAPPED = OPEN + MAP
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
# The same numbers as in the first thread's table, which alone leads to something else there.
DISGUISED = """
import ctypes, os, threading
ready = threading.Event()
os.dup2(os.open("/dev/null", os.O_RDWR), 9)
def own():
    assert ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES
    os.dup2(os.open("/dev/zero", os.O_RDWR), 9)
    os.close(4)
    ready.set()
    threading.Event().wait()
threading.Thread(target=own, daemon=True).start()
ready.wait()
"""
# A file that is registered with an io_uring is in no table of descriptors.
RING = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 4, (ctypes.c_char * 120)())
if ring < 0:
    raise SystemExit(f"no io_uring here: {ctypes.get_errno()}")
descriptor = os.open("/dev/zero", os.O_RDWR)
files = (ctypes.c_int * 2)(os.pipe()[0], descriptor)
assert libc.syscall(427, ring, 2, files, 2) == 0
os.close(descriptor)
"""
# The first thread has ended: nothing of the process is seen in /proc/<pid>/fd and maps.
ENDED = """
import ctypes, os, threading, time
def speak():
    time.sleep(0.3)
    print("ready", flush=True)
    time.sleep(1000)
threading.Thread(target=speak).start()
ctypes.CDLL(None).syscall(60, 0)
"""
HEADLESS = OPEN + ENDED
HEADLESS_MAPPED = MAPPED + ENDED
ELSEWHERE = """
import os, stat, tempfile
path = os.path.join(tempfile.mkdtemp(), "node")
os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
descriptor = os.open(path, os.O_RDONLY)
os.unlink(path)
"""
# A node of the process's own, as a container has it: it has another inode than the machine's.
MAPPED_ELSEWHERE = ELSEWHERE + MAP

SAY = """
print("ready", flush=True)
import time
time.sleep(1000)
"""


@pytest.fixture
def process():
    started = []

    def start(script):
        argv = [sys.executable, "-c", script if script.endswith(ENDED) else script + SAY]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        started.append(subprocess.Popen(argv, **pipes, text=True))
        said = started[-1].stdout.readline()
        if "no " in said:
            pytest.skip(said)
        assert said == "ready\n"
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
        MAPPED,
        THREAD,
        DISGUISED,
        RING,
        *(
            pytest.param(
                script,
                marks=pytest.mark.skipif(platform.machine() != "x86_64", reason="exit is call 60"),
            )
            for script in (HEADLESS, HEADLESS_MAPPED)
        ),
        ELSEWHERE,
        MAPPED_ELSEWHERE,
    ],
    ids=[
        *("descriptor", "mapping", "thread of its own", "thread with the same numbers"),
        *("registered with an io_uring", "first thread ended", "mapping, first thread ended"),
        "other name",
        "other node, mapped",
    ],
)
def test_it_is_found(process, script):
    assert Search("", [NODE]).has_one_open(process(script))


SEARCH = """
import sys
from gpu_runtime.open_devices import Search
print(Search("", ["/dev/zero"]).has_one_open(int(sys.argv[1])))
"""


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs util-linux's setpriv")
@pytest.mark.parametrize("script", [OPEN, MAPPED_ELSEWHERE])
def test_it_is_found_with_the_rights_of_the_watch(process, script):
    argv = with_rights_of_the_watch(sys.executable, "-c", SEARCH, str(process(script)))
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, env=path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"


# A name with what str.splitlines and bytes.splitlines take for the end of a line.
NAMED = """
import ctypes, os, tempfile
path = os.path.join(tempfile.mkdtemp(), "a\\rb\\x0cc\\u2028d")
descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(descriptor, 4096)
"""


def test_a_mapped_file_may_have_any_name(process):
    assert not Search("", [NODE]).has_one_open(process(NAMED + MAP))
    assert Search("", [NODE]).has_one_open(process(NAMED + MAP + MAPPED))


@pytest.mark.parametrize("nodes", [[], ["/dev/full"], ["/dev/nvidia7777"], ["/etc/passwd"]])
def test_another_device_is_not(process, nodes):
    pid = process(OPEN)
    assert not Search("", nodes).has_one_open(pid)


@pytest.mark.parametrize(
    ("script", "places"),
    [("import os\nos.open('/dev/zero', os.O_PATH)\n", True), (OPEN, False), ("", False)],
)
def test_a_place_is_told_from_an_open_file(process, script, places):
    assert Search("", [NODE]).has_places_alone(process(script)) == places


def test_a_process_that_is_gone_has_none():
    done = subprocess.Popen(["true"])
    done.wait(10)
    assert not Search("", [NODE]).has_one_open(done.pid)


# Root of a system container, whose numbers of users are not the machine's: the folder of a
# zombie's descriptors is not for him to open.
CONTAINED = """
import ctypes, os
from gpu_runtime.open_devices import Search
own, (hear, speak), (listen, answer) = os.getpid(), os.pipe(), os.pipe()
if not os.fork():
    os.read(hear, 1)
    for name in ("uid", "gid"):
        with open(f"/proc/{own}/{name}_map", "w") as file:
            file.write("0 100000 65536")
    os.write(answer, b"x")
    os._exit(0)
assert ctypes.CDLL(None).unshare(0x10000000) == 0  # CLONE_NEWUSER
os.write(speak, b"x")
os.read(listen, 1)
os.wait()
os.setgid(0)
os.setuid(0)
ended = os.fork() or os._exit(0)
os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
try:
    os.listdir(f"/proc/{ended}/task/{ended}/fd")
except PermissionError:
    print("shut", Search("", ["/dev/zero"]).has_one_open(ended))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root maps users")
def test_a_zombie_has_none_in_a_system_container_either():
    argv, env = [sys.executable, "-c", CONTAINED], {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("shut False\n", "")


# A file system of a process's own, in which it has something open. A server that never reads its
# requests answers none; without the server, every request fails.
FUSE = """
import ctypes, os, tempfile
libc = ctypes.CDLL(None, use_errno=True)
place = tempfile.mkdtemp()
server = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={server},rootmode=40000,user_id=%d,group_id=0%s".encode()
assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # private, all below
if libc.mount(b"own", place.encode(), b"fuse", 0, options):
    raise SystemExit(f"no FUSE here: {ctypes.get_errno()}")
held = os.open(place, os.O_PATH)
"""
SILENT = FUSE % (0, ",allow_other")
OF_A_USER = FUSE % (1000, "")
DEAD = f"{SILENT}os.close(server)\n"

fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not pathlib.Path("/dev/fuse").exists(), reason="FUSE needs root"
)


def looked_at(pid):
    """What a search said of a process, within a time in which it can't but have done so."""
    said = []
    thread = threading.Thread(
        target=lambda: said.append(Search("", [NODE]).has_one_open(pid)), daemon=True
    )
    thread.start()
    thread.join(20)
    return said


@fuse
@pytest.mark.parametrize(
    "script", [SILENT, OF_A_USER, DEAD], ids=["never answers", "of a user's own", "server gone"]
)
def test_a_file_that_no_one_can_look_at_is_no_device(process, script):
    assert looked_at(process(script)) == [False]


@fuse
@pytest.mark.parametrize("script", [SILENT, OF_A_USER, DEAD])
def test_nor_does_it_hide_one(process, script):
    assert looked_at(process(script + OPEN)) == [True]


def test_a_search_ends_with_its_time(process):
    pid = process("import os\nfor _ in range(5000): os.dup(0)\n")
    assert not Search("", [NODE], Host.now() + 100).has_one_open(pid)
    with pytest.raises(TooLongError):
        Search("", [NODE], Host.now() - 1).has_one_open(pid)
