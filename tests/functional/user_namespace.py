# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A user namespace with cgroup v1, as an unprivileged container of LXD is on such a host.

Root in it is no root of the machine. Its control groups are its own: made for it, handed to its
root, and seen as the whole tree (cgroup_namespaces(7)). There is no CAP_SYS_RESOURCE in it where
this machine has none, as in the bounding set of a container.
"""

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import subprocess
import sys
import traceback

CGROUPS = pathlib.Path("/sys/fs/cgroup")
FIRST, COUNT = 100_000, 131_072
# CLONE_NEWUSER, _NEWNS, _NEWCGROUP, _NEWPID, _NEWNET, _NEWIPC of sched.h.
_SPACES = 0x10000000 | 0x20000 | 0x02000000 | 0x20000000 | 0x40000000 | 0x08000000
_BOOT = """
set -e
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /sys/fs/cgroup
cd /sys/fs/cgroup
for one in $HIERARCHIES; do
  mkdir $one
  case $one in
    unified) mount -t cgroup2 cgroup2 $one ;;
    systemd) mount -t cgroup -o none,name=systemd cgroup $one ;;
    *) mount -t cgroup -o $one cgroup $one ;;
  esac
done
cd /
exec "$@"
"""


def missing() -> str:
    """Why there can be none here; empty where there can."""
    return "" if (CGROUPS / "unified").is_dir() else "needs cgroup v1 with v2 beside it"


def run(argv: list[str], seconds: float) -> str:
    """Run a program as its root, and return what it says; nothing of it is left then."""
    name = f"gpuci-nested-{os.getpid()}"
    # cpu and cpuacct may be one, with links of these names.
    tops = [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]
    groups = [path / name for path in tops]
    said, says = os.pipe()
    ready, go = os.pipe(), os.pipe()
    try:
        for group in groups:
            group.mkdir()
            # Nothing may be in a group of cpuset's without these.
            for path in group.glob("cpuset.[cm][pe][um]s"):
                path.write_text((group.parent / path.name).read_text())
            for path in (group, *group.glob("cgroup.*"), *group.glob("tasks")):
                os.chown(path, FIRST, FIRST)
        child = os.fork()
        if not child:
            _become(argv, groups, says, ready[1], go[0])
        os.close(says)
        assert select.select([ready[0]], [], [], 10)[0]
        for kind in ("uid_map", "gid_map"):
            pathlib.Path(f"/proc/{child}/{kind}").write_text(f"0 {FIRST} {COUNT}")
        os.write(go[1], b"x")
        # Its first process's end ends all others in it.
        return _heard(said, seconds)
    finally:
        with contextlib.suppress(ProcessLookupError, UnboundLocalError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for descriptor in (said, *ready, *go):
            os.close(descriptor)
        for group in groups:
            subprocess.run(["find", str(group), "-depth", "-type", "d", "-delete"], timeout=30)


def _become(argv, groups, says, ready, go):
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        for group in groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))
        os.dup2(says, 1)
        os.dup2(says, 2)
        if libc.unshare(_SPACES):
            raise OSError(ctypes.get_errno(), "unshare")
        os.write(ready, b"x")
        os.read(go, 1)
        os.setgroups([])
        os.setgid(0)
        os.setuid(0)
        first = os.fork()
        if not first:
            libc.prctl(1, signal.SIGKILL)
            os.environ["HIERARCHIES"] = " ".join(group.parent.name for group in groups)
            os.execv("/bin/sh", ["sh", "-c", _BOOT, "sh", *argv])
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
    except (OSError, ValueError):
        traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
    os._exit(1)


def _heard(said: int, seconds: float) -> str:
    heard = b""
    while select.select([said], [], [], seconds)[0]:
        piece = os.read(said, 65536)
        if not piece:
            return heard.decode(errors="replace")
        heard += piece
    raise TimeoutError(f"it says no more within {seconds:g} s: {heard[-4000:].decode()}")
