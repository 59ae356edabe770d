# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Copies of what the kernel and containerd tell of containers, for tests that read them later.

The copies lie below a folder at the paths that they had (tests/unit/recorded/README.md).
"""

import pathlib

MOUNTINFO = pathlib.Path("/proc/self/mountinfo")


def record(target, bundles):
    """Copy below `target` what tells whether the containers of these bundles are in use."""
    pids = set()
    for bundle in bundles:
        for file in bundle.glob("*.pid"):
            pids.add(copy(target, file).strip())
        init = (bundle / "init.pid").read_text()
        for mount, folder in control_groups(init):
            # That one is there tells that the mount is; what is in it is none of the containers'.
            write(target, mount / "cgroup.procs", "")
            for file in folder.rglob("cgroup.procs"):
                pids.update(copy(target, file).split())
    for pid in pids:
        for name in ("cgroup", "stat"):
            copy(target, pathlib.Path("/proc") / pid / name)
    for file in (MOUNTINFO, pathlib.Path("/proc/uptime")):
        copy(target, file)


def copy(target, file):
    text = file.read_text()
    write(target, file, text)
    return text


def write(target, file, text):
    there = target / str(file)[1:]
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_text(text)


def control_groups(pid):
    """A process's control groups, v1's for devices and v2's: (where it is mounted, folder)."""
    paths = {}
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths[controllers] = path
    for line in MOUNTINFO.read_text().splitlines():
        point, source = line.split()[4], line.partition(" - ")[2].split()
        if source[0] == "cgroup2":
            yield pathlib.Path(point), pathlib.Path(point + paths[""])
        elif source[0] == "cgroup" and "devices" in source[2].split(","):
            yield pathlib.Path(point), pathlib.Path(point + paths["devices"])
