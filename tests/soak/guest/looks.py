# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the cases look at in the guest: processes, control groups, device nodes."""

import json
import os
import pathlib
import stat
import time
import traceback

from worker import BUNDLES, CGROUPS, SERVICE, V1, finish, state_of, until

GIVEN, DENIED, ABSENT = (
    "No such device or address",
    "Operation not permitted",
    "No such file or directory",
)
# From the end of a holder to the next one, in seconds: 2 is promised, of real processors.
SOON = 4


def processes(folder):
    try:
        return set(map(int, (folder / "cgroup.procs").read_text().split()))
    except OSError:  # the control group is gone, or goes
        return set()


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def program(pid):
    """The first word of a process's command line; empty if it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def make_node(path, major, minor):
    os.mknod(path, stat.S_IFCHR, os.makedev(major, minor))
    os.chmod(path, 0o666)
    return path


def gpu_of(index, node):
    """A GPU in the policy whose only node that is."""
    name = f"PCI-0000:0{index}:00.0"
    return {"index": index, "uuid": name, "model": "a GPU", "devices": [name], "nodes": [node]}


def planned(handle):
    """The control group that runc makes of `garden/<handle>`, called by containerd's shim."""
    if V1:
        return CGROUPS / "devices" / SERVICE / "garden" / handle
    return (CGROUPS / SERVICE).parent / "garden" / handle


def assert_over(folder, *pids):
    """The container with that control group is over as a whole, these processes among others."""
    left = {pid for file in folder.rglob("cgroup.procs") for pid in processes(file.parent)}
    left |= set(filter(state_of, pids))
    assert not left, f"{left} live"


def opened(said):
    return said.strip().rpartition(": ")[2]


def systemd_has_made_the_control_groups_and_they_are_v2(_):
    assert pathlib.Path("/proc/1/comm").read_text() == "systemd\n"
    mounts = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    kinds = [line.partition(" - ")[2].split()[0] for line in mounts if " - cgroup" in line]
    assert kinds == ["cgroup2"], kinds


def leave_behind(worker, handle):
    """Run a step that leaves a process behind in its container; the pid of that."""
    before = set(worker.inside(handle))
    worker.exec(handle, "setsid sleep 4321 &")
    (left,) = set(worker.inside(handle)) - before
    assert not (BUNDLES / handle / "task.pid").exists()
    return left


def gets_it(worker, waiting, handle, after):
    """`after` has just ended, and `handle` is to have its GPU."""
    began = time.monotonic()
    until(60, f"{handle} holds it", lambda: list(worker.holders()) == [handle])
    took = time.monotonic() - began
    said, code = finish(waiting)
    assert code == 0, said
    assert took < SOON, f"{took:.1f} s passed from the end of {after} to {handle}"
    assert opened(worker.exec(handle, "cat /dev/nvidia0")[0]) == GIVEN
    tell(note=f"{handle} had it {took:.2f} s after {after}'s end")


def tell(**line):
    print("soak:" + json.dumps(line))


def run(cases, world):
    """Try one case after the other on what is there, and tell how each went."""
    tell(note=f"kernel {os.uname().release}")
    for case in cases:
        began = time.monotonic()
        fault = ""
        try:
            case(world)
        except Exception:  # noqa: BLE001  the other cases are to run
            fault = f"{traceback.format_exc()}\n{world.evidence()}"
        tell(case=case.__name__, fault=fault, seconds=round(time.monotonic() - began, 1))
        world.clear()
    tell(end=True)
