# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What programs leave behind, as real processes and mounts whose names were chosen to harm."""

import contextlib
import ctypes
import errno
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from machine import process
from machine import process_cleanup as leftovers

CONCOURSE = pathlib.Path("/opt/concourse")
FORGED = CONCOURSE / "x/containerd"
# A tmpfs of its own over /opt, in which a program has the path of Concourse's.
RUN = f"""
mount -t tmpfs tmpfs /opt
mkdir -p {FORGED.parent}
cp "$(command -v sleep)" {FORGED}
{FORGED} 60 &
{{after}}
wait
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces and mounts")


@contextlib.contextmanager
def running(*namespaces, after=":"):
    """The id of a process that runs such a program, as this machine has it."""
    argv = ["unshare", *namespaces, "sh", "-ec", RUN.format(after=after)]
    with subprocess.Popen(argv, start_new_session=True) as child:
        try:
            yield wait_for(str(FORGED) if after == ":" else f"{FORGED} (deleted)")
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def wait_for(program):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            # Ended, or none of this test's.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if str((folder / "exe").readlink()) == program:
                    return int(folder.name)
        time.sleep(0.05)
    raise AssertionError(f"nothing runs {program}")


def test_a_containers_program_is_not_this_machines_whatever_its_path():
    with running("--mount", "--pid", "--fork") as pid:
        assert pathlib.Path(f"/proc/{pid}/exe").readlink() == FORGED
        assert pid not in leftovers.processes_running(CONCOURSE, ["containerd"])


@pytest.mark.parametrize("after", [":", f"sleep 0.5; rm {FORGED}"])
def test_this_machines_program_is_found_though_its_file_is_gone(after):
    with running("--mount", after=after) as pid:
        assert pid in leftovers.processes_running(CONCOURSE, ["containerd"])
        assert pid not in leftovers.processes_running(CONCOURSE, ["runc"])
        assert pid not in leftovers.processes_running(CONCOURSE / "y", ["containerd"])


@pytest.mark.parametrize(
    ("number", "comm", "raises"),
    [
        (errno.ENOENT, "containerd", False),
        (errno.ESRCH, "containerd", False),
        (errno.EACCES, "init", False),
        (errno.EACCES, "containerd-shim", True),
        (errno.ENFILE, "init", True),
    ],
)
def test_a_process_that_cannot_be_looked_at_is_not_none(
    monkeypatch, tmp_path, number, comm, raises
):
    for pid in ("self", "7"):
        (tmp_path / pid / "ns").mkdir(parents=True)
        (tmp_path / pid / "ns/pid").symlink_to("pid:[4026531836]")
    (tmp_path / "7/comm").write_text(f"{comm}\n")
    (tmp_path / "7/status").write_text("State:\tS (sleeping)\nNSpid:\t7\nThreads:\t1\n")
    real = pathlib.Path.readlink

    def readlink(path):
        if path.name == "exe":
            raise OSError(number, os.strerror(number))
        return real(path)

    monkeypatch.setattr(pathlib.Path, "readlink", readlink)
    look = functools.partial(
        leftovers.processes_running, CONCOURSE, ["containerd-shim-runc-v2"], tmp_path
    )
    if raises:
        with pytest.raises(OSError, match=os.strerror(number)):
            look()
    else:
        assert look() == []


# Runs as a system container's root. What has ended there, and could not be dumped, and what a
# container has whose program lies outside, have the name of Concourse's.
NAMED = """
import ctypes, os, pathlib, sys
from machine import process_cleanup as leftovers, polling as waiting
libc = ctypes.CDLL(None, use_errno=True)
if not (ended := os.fork()):
    libc.prctl(15, b"containerd")  # PR_SET_NAME
    libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    os._exit(0)
assert not libc.unshare(0x20000000), os.strerror(ctypes.get_errno())  # CLONE_NEWPID
below = os.fork() or os.execv(sys.argv[1], [sys.argv[1], "60"])

def names():
    return [pathlib.Path(f"/proc/{pid}/comm").read_text() for pid in (ended, below)]

def is_over():
    return "\\nState:\\tZ" in pathlib.Path(f"/proc/{ended}/status").read_text()

try:
    assert waiting.until(lambda: names() == ["containerd\\n"] * 2 and is_over(), 30)
    print(leftovers.processes_running(pathlib.Path("/opt/concourse"), ["containerd"]))
finally:
    os.kill(below, 9)
"""


def test_what_has_ended_or_is_in_a_container_is_not_this_machines_whatever_it_is_called(tmp_path):
    assert as_root_of_a_container(NAMED, hidden(tmp_path / "containerd")) == ["[]"]


def hidden(program):
    """A program that others can start alone: who does can't be looked at from within."""
    shutil.copy("/bin/sleep", program)
    os.chown(program, 12345, 12345)
    program.chmod(0o711)
    return program


def as_root_of_a_container(code, *words):
    # Without the processes of other tests, which have such names too.
    spaces = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    argv = ["/usr/bin/unshare", *spaces, sys.executable, "-c", code]
    env = {"PYTHONPATH": ":".join(sys.path)}
    return process.run([*argv, *map(str, words)], timeout=100, env=env).stdout.splitlines()


def test_a_process_is_ended_whatever_bytes_its_name_has():
    code = (
        "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\xff) R (\\x85'); print(flush=True)"
    )
    argv = [sys.executable, "-c", f"{code}; time.sleep(60)"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert b"\xff) R (" in pathlib.Path(f"/proc/{child.pid}/stat").read_bytes()
        assert leftovers.end_processes([child.pid])
        assert child.wait(timeout=0) == -signal.SIGTERM


@pytest.mark.parametrize("name", [b"a\xc2\x85b", b"\xff", b"a\rb c\\d\ne", b"a\x0cb"])
def test_mounts_are_taken_off_whatever_bytes_their_paths_have(tmp_path, name):
    inner = pathlib.Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name)))
    inner.mkdir()
    process.run(["/usr/bin/mount", "-t", "tmpfs", "tmpfs", "--", str(inner)], timeout=10)
    try:
        assert os.path.ismount(inner)
        assert leftovers.unmount_below(tmp_path)
        assert not os.path.ismount(inner)
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(inner), 2)
    assert not leftovers.unmount_below(tmp_path)


@pytest.mark.parametrize("number", [errno.ENFILE, errno.EACCES, errno.EIO])
def test_a_group_that_cannot_be_read_is_not_an_empty_one(monkeypatch, tmp_path, number):
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "garden/one").mkdir(parents=True)
    (tmp_path / "garden/one/cgroup.procs").write_text("")
    monkeypatch.setattr(leftovers, "_CGROUPS", tmp_path)
    wrong = OSError(number, os.strerror(number))

    def fail(*_args, **_kwargs):
        raise wrong

    for target, name in ((os, "scandir"), (pathlib.Path, "read_text")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, fail)
            with pytest.raises(OSError, match=wrong.strerror):
                leftovers.remove_control_groups("^/garden(/|$)")


def test_a_group_that_goes_meanwhile_or_has_threads_only_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "garden/one").mkdir(parents=True)
    monkeypatch.setattr(leftovers, "_CGROUPS", tmp_path)
    assert leftovers.control_groups("^/garden(/|$)")
    for number in (errno.ENODEV, errno.EOPNOTSUPP):

        def fail(*_args, number=number, **_kwargs):
            raise OSError(number, "")

        with monkeypatch.context() as patch:
            patch.setattr(pathlib.Path, "read_text", fail)
            (tmp_path / "garden/one").mkdir(parents=True, exist_ok=True)
            assert leftovers.remove_control_groups("^/garden(/|$)")


# Prints whether what ended in container A is there still when A's first process is to end, and the
# exit statuses of what ended in B meanwhile and of both first processes.
REAP = """
import ctypes, os, pathlib, signal
from machine import process, polling as waiting
process.adopt_orphans()
libc = ctypes.CDLL(None, use_errno=True)

def container():
    read, write = os.pipe()
    if not (runtime := os.fork()):
        assert not libc.unshare(0x20000000), os.strerror(ctypes.get_errno())  # CLONE_NEWPID
        if not (first := os.fork()):
            signal.pause()
        if not (second := os.fork()):
            os._exit(7)
        os.write(write, f"{first} {second}".encode())
        os._exit(0)
    os.waitpid(runtime, 0)
    return map(int, os.read(read, 100).split())

def has_ended(pid):
    return "\\nState:\\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text()

(a, in_a), (b, in_b) = container(), container()
assert waiting.until(lambda: has_ended(in_a) and has_ended(in_b), 30)
process.reap_orphans(a)
left = pathlib.Path(f"/proc/{in_a}").exists()
for pid in (a, b):
    os.kill(pid, signal.SIGKILL)
print(left, process.wait(in_b, 30), process.wait(a, 30), process.wait(b, 30))
process.reap_orphans(a)
"""


def test_who_takes_one_container_away_reaps_nothing_of_another():
    env = {"PYTHONPATH": ":".join(sys.path)}
    done = process.run([sys.executable, "-c", REAP], timeout=100, env=env)
    assert done.stdout.split() == ["False", "7", "-9", "-9"]


# Runs as a system container's root, beside a program that lies outside that and can be run alone.
# Prints what is told while that lives, what the self-test tells of a container of which it is the
# first process and no runtime can end it, and what is told of it when it has ended.
UNTOLD = """
import ctypes, os, pathlib, signal, sys
from machine import process, polling as waiting
from gpu_selftest.isolation import containers
program, bundles = sys.argv[1], pathlib.Path(sys.argv[2])
process.adopt_orphans()

def begun(what):
    if not (pid := os.fork()):
        what()
        os._exit(7)
    return pid

def has_ended(pid):
    return "\\nState:\\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text()

def told(pid):
    untold = process.reap_orphans(pid)
    return untold and str(untold.filename) == f"/proc/{hidden}/ns/pid"

first = begun(signal.pause)
hidden = begun(lambda: os.execv(program, [program, "60"]))
assert waiting.until(lambda: told(first), 30)
ended = begun(lambda: None)
assert waiting.until(lambda: told(first) and not os.path.exists(f"/proc/{ended}"), 30)
print(told(hidden))

containers._CALL = 0.5
containers._forget = lambda name: None
containers._BUNDLES = bundles
(bundles / "x").mkdir()
(bundles / "x/init.pid").write_text(str(hidden))
for error in (None, RuntimeError("the check's own")):
    try:
        with containers.Container("x", "/usr/bin/runc", "/work", []):
            if error:
                raise error
    except (containers.StarvedError, RuntimeError) as error:
        print(str(error).replace(str(hidden), "PID"))

os.kill(hidden, signal.SIGKILL)
os.kill(first, signal.SIGKILL)
assert waiting.until(lambda: has_ended(hidden) and has_ended(first), 30)
process.reap_orphans(hidden)
print(process.wait(hidden, 30), process.wait(first, 30))
"""


def test_a_namespace_that_is_not_told_is_neither_none_nor_the_end_of_a_self_test(tmp_path):
    left = "container x (pid PID) has not ended 0.5 s after it was killed"
    assert as_root_of_a_container(UNTOLD, hidden(tmp_path / "sleep"), tmp_path) == [
        "True",
        f"{left}: /proc/PID/ns/pid: Permission denied",
        "the check's own",
        "-9 -9",
    ]
