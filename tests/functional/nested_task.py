# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A program: one task of Concourse's shape by the real runc, and what is seen of it; see the test.

It is root of a user namespace, and the task's container has users of its own in that.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from ci.concourse.restart import cgroup_freezer as freezer
from ci.concourse.restart import running_steps as steps
from gpu_runtime import cgroups as groups
from gpu_runtime import holder_usage as usage
from gpu_runtime.lease_table import Holder

NAME = "0d9b1f3c-0000-4000-8000-000000000001"
BUNDLE = steps.TASKS / NAME

# The first process of another container, which can't be dumped, and so are its children: one that
# has ended and is not waited for, and one whose first thread has.
NEIGHBOUR = """
import ctypes, os, signal, threading
libc = ctypes.CDLL(None)
libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
os.fork() or os._exit(0)
if not os.fork():
    threading.Thread(target=signal.pause).start()
    libc.pthread_exit(None)
print("there", flush=True)
signal.pause()
"""


def runc(*words, **options):
    return subprocess.run(
        ["runc", "--root", "/run/runc", *words], check=True, timeout=60, **options
    )


def create():
    rootfs = BUNDLE / "rootfs"
    for name in ("bin", "proc", "dev"):
        (rootfs / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), rootfs / "bin/busybox")
    for name in ("sh", "sleep", "setsid"):
        (rootfs / "bin" / name).symlink_to("busybox")
    runc("spec", "--bundle", str(BUNDLE))
    path = BUNDLE / "config.json"
    spec = json.loads(path.read_text())
    spec["process"] |= {"terminal": False, "args": ["sleep", "1000"]}
    spec["mounts"] = [one for one in spec["mounts"] if one["destination"] in ("/proc", "/dev")]
    spec["linux"]["cgroupsPath"] = f"garden/{NAME}"
    spec["linux"]["namespaces"].append({"type": "user"})
    # The root of Concourse's tasks is the highest user that there is.
    ids = [
        {"containerID": 0, "hostID": 131071, "size": 1},
        {"containerID": 1, "hostID": 1, "size": 99},
    ]
    spec["linux"] |= {"uidMappings": ids, "gidMappings": ids}
    path.write_text(json.dumps(spec))
    for folder in (rootfs, *rootfs.iterdir()):
        os.chown(folder, 131071, 131071)
    pid_file = str(BUNDLE / "init.pid")
    runc("run", "-d", "--bundle", str(BUNDLE), "--pid-file", pid_file, NAME, stdout=2)


def step():
    words = ("exec", "-d", "--pid-file", str(BUNDLE / "task.pid"), NAME)
    runc(*words, "sh", "-c", "setsid sleep 1000 & sleep 1000", stdout=2)
    return int((BUNDLE / "task.pid").read_text())


def seen(host, holder):
    """All that is asked of a container, a minute and more after its grant."""
    return {
        "in_use": host.in_use(NAME, holder),
        "processes": host.processes(NAME, holder),
        "steps": len(host.steps(NAME, str(BUNDLE))),
        "running": [*steps.running()],
        "leftovers": host.has_leftovers(NAME, holder),
    }


def frozen(init, pid):
    """Whether all of a step stand still by the switch of its container, and go on."""
    path = freezer.switch(init, pid, NAME)
    path.write_text("1")
    # cgroup.events(5) of cgroups(7) says so when all do.
    until(lambda: "frozen 1" in (path.parent / "cgroup.events").read_text())
    path.write_text("0")
    return path.name


def until(answer):
    end = time.monotonic() + 10
    while not answer():
        assert time.monotonic() < end
        time.sleep(0.05)


def main():
    os.makedirs(steps.TASKS)
    argv = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", NEIGHBOUR]
    neighbour = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert neighbour.stdout.readline() == b"there\n"
    create()
    pid, init = step(), int((BUNDLE / "init.pid").read_text())
    host = usage.Host()
    holder = Holder(str(BUNDLE), ["GPU-0"], [], exclusive=True, since=host.now() - 100)
    holder.execs = True
    found = {"init": groups.of("", f"/proc/{init}")[0], "step": groups.of("", f"/proc/{pid}")[0]}
    found["while"] = seen(host, holder)
    found["switch"] = frozen(init, pid)
    # As its first process can do by itself where the group is handed to the container.
    inner = pathlib.Path(freezer.switch(init, pid, NAME).parent, "inner", NAME)
    inner.mkdir(parents=True)
    (inner / "cgroup.procs").write_text(str(init))
    found["inner"] = frozen(init, pid)
    host.note_groups(NAME, holder)
    os.kill(pid, 9)
    until(lambda: host.processes(NAME, holder) == [])
    found["left"] = seen(host, holder)
    begun = time.monotonic()
    found["cleared"] = host.clear(NAME, holder)
    found["took"] = time.monotonic() - begun
    found["gone"] = host.is_gone(NAME, holder)
    # All that lives in this namespace is seen by it; the dead have no arguments.
    files = [*pathlib.Path("/proc").glob("[0-9]*/cmdline")]
    found["alive"] = [path.parent.name for path in files if "sleep" in path.read_text()]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
