# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Copies of recorded trees of /proc, bundles and control groups: what is killed there is gone."""

import os
import pathlib
import re
import shutil

from gpu_runtime import holder_usage as usage
from gpu_runtime import proc
from gpu_runtime.lease_table import Holder

RECORDED = pathlib.Path(__file__).parent / "recorded"
BUNDLES = "/run/containerd/io.containerd.runtime.v2.task/concourse"
SHELL = 4711  # a process that is in no container
DEATHS = ("left-behind", "below")
UPTIME = {}


class Killable:
    """A process of a recorded tree."""

    def __init__(self, tree, pid):
        if pid not in tree.alive():
            raise ProcessLookupError
        self.tree, self.pid = tree, pid

    def kill(self):
        self.tree.killed.append(self.pid)
        self.tree.die(self.pid)

    def close(self):
        pass


class Host(usage.Host):
    """The machine of a recorded tree, whose time stands still but for its patience."""

    def __init__(self, tree, files):
        super().__init__(str(tree.root), files)
        self.tree = tree

    def now(self):
        return UPTIME[self.tree.version] + self.tree.patience

    def sleep(self, seconds):
        self.tree.patience += seconds

    def take_hold(self, pid):
        return Killable(self.tree, pid)


class Files:
    """The kernel's files, but that a test replaces some of the ways to read them."""

    def __getattr__(self, name):
        return getattr(proc, name)


class Tree:
    """A copy of a recorded tree: what is killed there is gone from it."""

    def __init__(self, folder, version):
        self.root, self.version = folder / version, version
        shutil.copytree(RECORDED / f"cgroups-{version}", self.root)
        UPTIME[version] = float(self.read("/proc/uptime").split()[0])
        self.files = Files()
        self.host = Host(self, self.files)
        self.killed = []
        self.undying = set()
        self.patience = 0
        self.write(f"/proc/{SHELL}/stat", f"{SHELL} (sh) S {'1 ' * 18}5 0")
        self.write(f"/proc/{SHELL}/cgroup", "5:devices:/user.slice\n0::/user.slice\n")

    def path(self, path):
        return self.root / path[1:]

    def read(self, path):
        return self.path(path).read_text()

    def write(self, path, text):
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(text)

    def bundle(self, name):
        return f"{BUNDLES}/{name}"

    def pid(self, name, process="init"):
        return int(self.read(f"{self.bundle(name)}/{process}.pid"))

    def holder(self, name, calls=(), *, execs=True):
        holder = Holder(self.bundle(name), ["GPU-0"], [*calls], exclusive=True, since=0)
        holder.execs = execs
        return holder

    def cgroup(self, name, bundle=""):
        """The control group of a container, as the process noted in a bundle tells it."""
        holder = self.holder(bundle or name)
        self.host.note_groups(name, holder)
        return holder.cgroup

    def its(self, name):
        """The processes of a container."""
        return {int(pid) for pid in self.read(procs(self, name)).split()}

    def in_use(self, name, calls=(), *, execs=True):
        return self.host.in_use(name, self.holder(name, calls, execs=execs))

    def host_folder(self, name):
        """Where the control group of a container lies."""
        return procs(self, name).removesuffix("/cgroup.procs")

    def started(self, pid):
        return int(self.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[19])

    def stat(self, pid, state, threads):
        name, _, rest = self.read(f"/proc/{pid}/stat").rpartition(")")
        fields = rest.split()
        fields[0], fields[17] = state, str(threads)
        self.write(f"/proc/{pid}/stat", f"{name}) {' '.join(fields)}\n")

    def started_at(self, pid, seconds):
        ticks = int(seconds * os.sysconf("SC_CLK_TCK"))
        self.write(f"/proc/{pid}/stat", f"{pid} (sh) S {'1 ' * 18}{ticks} 0")

    def die(self, pid):
        if pid in self.undying:
            return
        for file in self.root.rglob("cgroup.procs"):
            left = [line for line in file.read_text().split() if int(line) != pid]
            file.write_text("".join(f"{line}\n" for line in left))
        shutil.rmtree(self.path(f"/proc/{pid}"), ignore_errors=True)

    def alive(self):
        return {int(path.name) for path in self.path("/proc").glob("[0-9]*")}


def procs(tree, name):
    line = "devices:" if "v1" in tree.root.name else "0::"
    text = tree.read(f"/proc/{tree.pid(name)}/cgroup")
    path = re.search(rf"{line}(.*)", text)[1]
    mount = "/sys/fs/cgroup/devices" if "v1" in tree.root.name else "/sys/fs/cgroup"
    return f"{mount}{path}/cgroup.procs"
