# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The OCI spec of a step's container, in Concourse's exact shape.

Source of every list and order here: Concourse 8.2.5, worker/runtime/spec/*.go and
worker/runtime/user_namespace.go; seccomp.json is what 8.3.0 writes into an unprivileged one's. One
thing differs: ``USER`` and a default ``PATH``, which Concourse appends at exec, stand at the end
of the environment from the start, since ``ctr task exec`` cannot add any.
"""

import json
from pathlib import Path
from typing import Any

# CAP_* of linux/capability.h by number; the privileged list is all of these 38.
ALL_CAPABILITIES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE "
    "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO "
    "SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME "
    "SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG "
    "WAKE_ALARM BLOCK_SUSPEND AUDIT_READ"
)
UNPRIVILEGED_CAPABILITIES = (
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE NET_RAW SETFCAP "
    "SETGID SETPCAP SETUID SYS_CHROOT"
)
INIT = "/tmp/gdn-init"
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USER_PATH = "/usr/local/bin:/usr/bin:/bin"


def highest_id() -> int:
    """The highest user id of this user namespace; it is root of the unprivileged containers."""
    lines = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return max(int(first) + int(size) - 1 for first, _, size in lines)


def environment(image_env: list[str], step_env: list[str], user: str) -> list[str]:
    """The environment that the step's process gets, in Concourse's order."""
    env = [*image_env, *step_env]
    names = {entry.partition("=")[0] for entry in env}
    if user and "USER" not in names:
        env.append(f"USER={user}")
    if "PATH" not in names:
        env.append(f"PATH={ROOT_PATH if user in ('', 'root') else USER_PATH}")
    return env


def oci_spec(
    handle: str,
    rootfs: Path,
    env: list[str],
    image_user: str,
    privileged: bool,
    binds: list[tuple[str, Path]],
) -> dict[str, Any]:
    """The config.json of a container whose pid 1 only waits; ``binds`` are (inside, outside)."""
    names = _held(ALL_CAPABILITIES) if privileged else UNPRIVILEGED_CAPABILITIES.split()
    capabilities = [f"CAP_{name}" for name in names]
    sets = ("bounding", "effective", "inheritable", "permitted")
    return {
        "ociVersion": "1.3.0",
        "hostname": handle,
        "annotations": {"user": image_user},
        "process": {
            "args": [INIT],
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
            "env": env,
            "capabilities": dict.fromkeys(sets, capabilities),
        },
        "root": {"path": str(rootfs)},
        "mounts": _mounts(privileged, binds),
        "hooks": {},
        "linux": _linux(handle, privileged),
    }


def limits(wanted: dict[str, int]) -> dict[str, Any]:
    """A task's container_limits: its share of the processors, and bytes of memory."""
    found: dict[str, Any] = {}
    if "cpu" in wanted:
        found["cpu"] = {"shares": wanted["cpu"]}
    if "memory" in wanted:
        found["memory"] = {"limit": wanted["memory"]}
    return found


def _linux(handle: str, privileged: bool) -> dict[str, Any]:
    fuse = {"type": "c", "major": 10, "minor": 229}
    linux: dict[str, Any] = {
        "resources": {"devices": [{"allow": True, **fuse, "access": "rwm"}]},
        "namespaces": [{"type": name} for name in ("pid", "ipc", "uts", "mount", "network")],
    }
    if privileged:
        linux["cgroupsPath"] = ""
        linux["devices"] = [{"path": "/dev/fuse", **fuse, "fileMode": 0o666}]
    else:
        highest = highest_id()
        mappings = [
            {"containerID": 0, "hostID": highest, "size": 1},
            {"containerID": 1, "hostID": 1, "size": highest - 1},
        ]
        linux["namespaces"] += [{"type": "user"}, {"type": "cgroup"}]
        linux["uidMappings"] = linux["gidMappings"] = mappings
        linux["cgroupsPath"] = f"garden/{handle}"
        linux["seccomp"] = json.loads(Path(__file__).with_name("seccomp.json").read_text())
    return linux


def _held(names: str) -> list[str]:
    """Those that this process may give away: a lab's machine does not have them all."""
    status = Path("/proc/self/status").read_text().splitlines()
    bounding = int(next(line for line in status if line.startswith("CapBnd")).split()[1], 16)
    return [name for number, name in enumerate(names.split()) if bounding >> number & 1]


def _mounts(privileged: bool, binds: list[tuple[str, Path]]) -> list[dict[str, Any]]:
    cgroup = "cgroup2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "cgroup"
    read_only = "" if privileged else " ro"
    table = (
        ("/proc", "proc", "proc", "nosuid noexec nodev"),
        ("/dev", "tmpfs", "tmpfs", "nosuid strictatime mode=755 size=65536k"),
        (
            "/dev/pts",
            "devpts",
            "devpts",
            "nosuid noexec newinstance ptmxmode=0666 mode=0620 gid=5",
        ),
        ("/dev/shm", "tmpfs", "shm", "nosuid noexec nodev mode=1777"),
        ("/dev/mqueue", "mqueue", "mqueue", "nosuid noexec nodev"),
        ("/sys", "sysfs", "sysfs", "nosuid noexec nodev" + read_only),
        ("/sys/fs/cgroup", cgroup, cgroup, "nosuid noexec nodev" + read_only),
    )
    rows = [*table]
    for inside, outside in binds:
        rows.append((inside, "bind", str(outside), "bind" if inside == INIT else "bind rw"))
    return [
        {"destination": destination, "type": kind, "source": source, "options": options.split()}
        for destination, kind, source, options in rows
    ]
