# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a Concourse worker leaves on a machine beside its own files, and how it is removed.

Its unit ends only its main process (KillMode=process), so containers, their shims and their
network outlive it.
"""

import json
import pathlib
import re
import socket
import typing

from machine import files, process
from machine import process_cleanup as leftovers

# containerd's namespace is "concourse" (8.2.5 worker/workercmd/containerd.go:25), in the state
# folders of runc and of the shims.
_CONTAINERD: typing.Final = pathlib.Path("/run/containerd")
RUNC_STATE: typing.Final = _CONTAINERD / "runc/concourse"
_TASKS: typing.Final = _CONTAINERD / "io.containerd.runtime.v2.task/concourse"

# Not concourse itself, which may be the web of this machine.
_PROGRAMS: typing.Final = ("containerd", "containerd-shim-runc-v2", "runc")

# containerd makes these for plugins (2.3.1 plugins/services/opt/service.go).
_PLUGINS: typing.Final = pathlib.Path("/opt/containerd")

# Concourse's containers have their control groups in "garden": below the unit's own in some
# hierarchies of cgroup v1, at the root in others, beside the unit's own in v2 (runc 1.5.1
# vendor/github.com/opencontainers/cgroups/fs2/defaultpath.go:33-56); privileged ones lack it.
_CGROUPS: typing.Final = r"/concourse-worker\.service(/|$)|^(/system\.slice)?/garden(/|$)"

# worker/runtime/cni_network.go of 8.2.5: bridge, name of the network, chain and addresses.
_BRIDGE: typing.Final = "concourse0"
_NETWORK: typing.Final = "concourse"
_OURS: typing.Final = re.compile(
    rf'-[io] {_BRIDGE}( |$)|CONCOURSE-OPERATOR|name: \\?"{_NETWORK}\\?" id:'
)
_ADDRESS: typing.Final = re.compile(
    r"-A (INPUT|FORWARD) -s 10\.80\.[0-9.]+/32 -j DROP|"
    r"-A CNI-FORWARD -s 10\.80\.[0-9.]+/32 -j ACCEPT|"
    r"-A CNI-FORWARD -d 10\.80\.[0-9.]+/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
)
_CNI_DATA: typing.Final = pathlib.Path("/var/lib/cni")


def remove(release: pathlib.Path, work_dir: pathlib.Path) -> bool:
    """Remove all of it: containers, and then their network. Return True if there was any.

    Args:
        release: the folder that Concourse's programs lie in.
        work_dir: the worker's, which has mounts below it.
    """
    removed = remove_containers(release, work_dir)
    return remove_network() or removed


def remove_containers(release: pathlib.Path, work_dir: pathlib.Path) -> bool:
    """End all containers of Concourse and what holds them. Return True if there were any.

    Args:
        release: the folder that Concourse's programs lie in.
        work_dir: the worker's, which has mounts below it.
    """
    removed = False
    runc = release / "current/bin/runc"
    if runc.exists() and RUNC_STATE.is_dir():
        for container in _containers(runc):
            process.run(
                [str(runc), f"--root={RUNC_STATE}", "delete", "--force", container],
                timeout=60,
                check=False,  # the rest of this function ends it in other ways
            )
            removed = True
    removed |= leftovers.end_processes(leftovers.processes_running(release, _PROGRAMS))
    removed |= leftovers.remove_control_groups(_CGROUPS)
    for folder in (work_dir, _TASKS, RUNC_STATE):
        removed |= leftovers.unmount_below(folder)
    removed |= _remove_state()
    for folder in (_PLUGINS / "bin", _PLUGINS / "lib", _PLUGINS):
        removed |= files.remove_if_empty(folder)
    return removed


def _containers(runc: pathlib.Path) -> list[str]:
    listed = process.run(
        [str(runc), f"--root={RUNC_STATE}", "list", "--format=json"], timeout=60, check=False
    )
    if listed.returncode:
        return []
    found: list[dict[str, str]] | None = json.loads(listed.stdout)
    return [container["id"] for container in found or []]


def _remove_state() -> bool:
    """Remove containerd's state, all of it if it was Concourse's alone."""
    removed = False
    for folder in (_TASKS, RUNC_STATE):
        removed |= files.ensure_absent(folder)
    others = [path for folder in (_TASKS, RUNC_STATE) for path in folder.parent.glob("*")]
    if _CONTAINERD.is_dir() and not others and not _somebody_listens():
        leftovers.unmount_below(_CONTAINERD)
        removed |= files.ensure_absent(_CONTAINERD)
    return removed


def _somebody_listens() -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(_CONTAINERD / "containerd.sock"))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def remove_network() -> bool:
    """Remove Concourse's bridge, addresses and iptables rules. Return True if any was there."""
    removed = False
    if pathlib.Path("/sys/class/net", _BRIDGE).exists():
        process.run(["/usr/sbin/ip", "link", "delete", _BRIDGE], timeout=60)
        removed = True
    for tool in ("iptables", "ip6tables"):
        removed |= _remove_rules(tool)
    removed |= files.ensure_absent(_CNI_DATA / "networks" / _NETWORK)
    for result in _CNI_DATA.glob(f"results/{_NETWORK}-*-eth0"):
        container = result.name[len(_NETWORK) + 1 : -len("-eth0")]
        files.ensure_absent(result.with_name(f"cni-loopback-{container}-lo"))
        removed |= files.ensure_absent(result)
    for folder in (_CNI_DATA / "networks", _CNI_DATA / "results", _CNI_DATA):
        removed |= files.remove_if_empty(folder)
    return removed


def _remove_rules(tool: str) -> bool:
    save = pathlib.Path("/usr/sbin", f"{tool}-save")
    if not save.exists():
        return False
    undo = undo_rules(process.run([str(save)], timeout=60).stdout)
    if not undo:
        return False
    restore = [f"/usr/sbin/{tool}-restore", "--noflush", "--wait=30"]
    process.run(restore, timeout=60, stdin=undo)
    return True


def undo_rules(saved: str) -> str:
    """What to give iptables-restore --noflush so that Concourse's rules and chains are gone.

    Args:
        saved: the output of iptables-save.

    Returns:
        Empty if there is nothing of Concourse's.
    """
    undo: list[str] = []
    for table in re.split(r"^(?=\*)", saved, flags=re.MULTILINE):
        name, *lines = table.splitlines() or [""]
        if name.startswith("*"):
            undo += _undo_table(name, lines)
    return "".join(f"{line}\n" for line in undo)


def _undo_table(name: str, lines: list[str]) -> list[str]:
    rules = [line for line in lines if line.startswith("-A ")]
    chains = [line[1:].split()[0] for line in lines if line.startswith(":")]
    gone = [rule for rule in rules if _OURS.search(rule) or _ADDRESS.fullmatch(rule)]
    left = [rule for rule in rules if rule not in gone]
    # The chain of CNI's firewall plugin goes if it was for Concourse alone, and so do those of its
    # containers and its own.
    dead = [chain for chain in chains if chain == "CONCOURSE-OPERATOR"]
    dead += [
        chain
        for chain in chains
        if chain.startswith("CNI-")
        and any(rule.split()[1] == chain or f"-j {chain}" in rule for rule in gone)
        and not any(rule.split()[1] == chain for rule in left)
    ]
    gone += [rule for rule in left if any(re.search(rf"-j {chain}(\s|$)", rule) for chain in dead)]
    if not gone and not dead:
        return []
    deletions = [f"-D{rule[2:]}" for rule in gone if rule.split()[1] not in dead]
    return [
        name,
        *deletions,
        *(f"-F {chain}" for chain in dead),
        *(f"-X {chain}" for chain in dead),
        "COMMIT",
    ]
