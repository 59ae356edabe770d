# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Describe a container to the runtime as a CI system does: config.json and the process file.

The shape is that of Concourse 8.3's unprivileged steps (worker/runtime/spec/spec.go, mounts.go,
namespaces.go, capabilities.go), except for the network files and the program that waits.
"""

import collections.abc
import typing

from gpu_selftest.isolation.rootfs import Mount

# The name of the folder that a task works in: the beginning of the SHA-256 of the task's name,
# here of `selftest` (atc/engine/step_factory.go).
TASK: typing.Final = "d354caf9"

# The control group of all these containers.
CGROUP: typing.Final = "gpu-ci-selftest"

# The variable that web sets between the image's and the author's (atc/exec/step_metadata.go).
_BORDER: typing.Final = "ATC_EXTERNAL_URL"

_PATH: typing.Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CAPABILITIES: typing.Final = [
    f"CAP_{name}"
    for name in """
    AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE NET_RAW SETFCAP SETGID
    SETPCAP SETUID SYS_CHROOT
    """.split()
]
# System calls that its profile leaves out (seccomp.go) and GPU programs are known to try.
# They get EPERM, as they would there, and have to cope.
_DENIED_CALLS: typing.Final = """
    bpf get_mempolicy io_uring_enter io_uring_register io_uring_setup mbind move_pages
    perf_event_open pidfd_getfd process_vm_readv process_vm_writev set_mempolicy unshare
    userfaultfd
""".split()
_NO_SUID: typing.Final = ["nosuid", "noexec"]
_SYSTEM_MOUNTS: typing.Final = (
    ("/proc", "proc", "proc", [*_NO_SUID, "nodev"]),
    ("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
    (
        "/dev/pts",
        "devpts",
        "devpts",
        [*_NO_SUID, "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
    ),
    ("/dev/shm", "tmpfs", "shm", [*_NO_SUID, "nodev", "mode=1777"]),  # noqa: S108
    ("/dev/mqueue", "mqueue", "mqueue", [*_NO_SUID, "nodev"]),
    ("/sys", "sysfs", "sysfs", [*_NO_SUID, "nodev", "ro"]),
    ("/sys/fs/cgroup", "cgroup", "cgroup", [*_NO_SUID, "nodev", "ro"]),
)
_NAMESPACES: typing.Final = ("pid", "ipc", "uts", "mount", "network", "user", "cgroup")


def variables(
    image: collections.abc.Iterable[str], params: collections.abc.Iterable[str]
) -> list[str]:
    """Return all variables of a step: the image's, then those of the task's author."""
    return [_PATH, *image, f"{_BORDER}=http://127.0.0.1:8080", *params]


def process(
    argv: collections.abc.Sequence[str], environment: list[str], folder: str = "/"
) -> dict[str, typing.Any]:
    """Return one process of a container, as its root, without a terminal."""
    sets = ("bounding", "effective", "inheritable", "permitted")
    return {
        "user": {"uid": 0, "gid": 0},
        "args": [*argv],
        "env": environment,
        "cwd": folder,
        "capabilities": dict.fromkeys(sets, _CAPABILITIES),
    }


def config(
    group: str,
    root: str,
    init: dict[str, typing.Any],
    mounts: collections.abc.Iterable[Mount],
    annotations: collections.abc.Mapping[str, str],
    highest_id: int,
) -> dict[str, typing.Any]:
    """Return a container's config.json.

    Args:
        group: its control group below CGROUP, the last part of which is its id. When a lease ends,
            the sibling containers that have its GPU open end too (gpu_runtime.holder_usage), and
            runc opens all nodes that it mounts. Containers that are made at once must therefore
            not be siblings.
        root: the folder that becomes its root.
        init: its first process.
        mounts: what it gets of this machine.
        annotations: in addition to the CI system's own.
        highest_id: the highest user and group id here, which is root in the container.
    """
    binds = (_mount(mount.destination, "bind", mount.source, [*mount.options]) for mount in mounts)
    return {
        "ociVersion": "1.3.0",
        "process": init,
        "root": {"path": root},
        "hostname": group.rpartition("/")[2],
        "mounts": [*(_mount(*mount) for mount in _SYSTEM_MOUNTS), *binds],
        "hooks": {},
        "annotations": {"user": "", **annotations},
        # Absolute: a relative one would be in the group of the process that started the self-test.
        "linux": _linux(f"/{CGROUP}/{group}", highest_id),
    }


def _linux(cgroup: str, highest_id: int) -> dict[str, typing.Any]:
    mapping = [
        {"containerID": 0, "hostID": highest_id, "size": 1},
        {"containerID": 1, "hostID": 1, "size": highest_id - 1},
    ]
    fuse = {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rwm"}
    return {
        "uidMappings": mapping,
        "gidMappings": mapping,
        "resources": {"devices": [fuse]},
        "cgroupsPath": cgroup,
        "namespaces": [{"type": kind} for kind in _NAMESPACES],
        "seccomp": {
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": _DENIED_CALLS, "action": "SCMP_ACT_ERRNO"}],
        },
    }


def _mount(destination: str, kind: str, source: str, options: list[str]) -> dict[str, typing.Any]:
    return {"destination": destination, "type": kind, "source": source, "options": options}
