# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check that the GPUs' device nodes exist, are the right ones, and open for tasks."""

import collections.abc
import grp
import os
import pathlib
import re
import stat
import typing

from gpu_agent.diagnosis import machine as facts
from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.vendor import Node
from gpu_agent.model.inventory import Gpu
from gpu_selftest.check import Check, Level, Outcome, Result

CHECK: typing.Final = Check(
    "device-nodes",
    Level.QUICK,
    "every GPU's device nodes exist, and a task that is not root can open them",
    source="Linux Documentation/admin-guide/devices.txt; /proc/devices",
    each_gpu=True,
)


def run(gpus: collections.abc.Sequence[Gpu], root: pathlib.Path) -> list[Result]:
    """Return a result for each of these GPUs, all of one vendor, and one for shared nodes."""
    vendor = registry.find(gpus[0].vendor)
    results = [_judge(vendor.own_nodes(gpu), gpu.uuid, root) for gpu in gpus]
    shared = vendor.shared_nodes(gpus, _majors(root))
    return [_judge(shared, "", root), *results] if shared else results


def _judge(nodes: tuple[Node, ...], gpu: str, root: pathlib.Path) -> Result:
    """Return the result for some nodes: the text has all faults, the outcome is the gravest."""
    wrong = [(node, *found) for node in nodes if (found := _fault(node, root))]
    if not wrong:
        paths = ", ".join(node.path for node in nodes)
        return CHECK.result(Outcome.PASSED, f"{paths} can be opened", gpu=gpu)
    wrong.sort(key=lambda one: one[0].optional)
    _, what, _ = wrong[0]
    clauses = "; ".join(f"{node.path} {clause}" for node, _, clause in wrong)
    remedies = dict.fromkeys(_remedy(node, what, root) for node, what, _ in wrong)
    outcome = Outcome.WARNING if wrong[0][0].optional else Outcome.FAILED
    text = f"device node {what}: {clauses}"
    return CHECK.result(outcome, text, gpu=gpu, remedy="; ".join(remedies))


def _fault(node: Node, root: pathlib.Path) -> tuple[str, str] | None:
    """Return what is wrong with a node, as a word and as a clause."""
    path = root / node.path.lstrip("/")
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "missing", "does not exist"
    if not stat.S_ISCHR(found.st_mode):
        return "wrong", "is not a character device"
    number = re.search(r"[0-9]+$", path.resolve().name)
    minor = int(number.group()) if node.minor < 0 and number else node.minor
    expected = node.major if node.major is not None else os.major(found.st_rdev), minor
    numbers = os.major(found.st_rdev), os.minor(found.st_rdev)
    if numbers != expected:
        seen, right = (f"{major}:{minor}" for major, minor in (numbers, expected))
        return "wrong", f"has numbers {seen}, not {right}"
    mode = stat.S_IMODE(found.st_mode)
    # The GPU runtime adds tasks to the group of a node that it hands out itself.
    if mode & 0o006 == 0o006 or (node.by_group and mode & 0o060 == 0o060):
        return None
    owner = f"{found.st_uid}:{_group(found.st_gid)}"
    return "closed", f"has mode {mode:04o} ({owner}): only root can open it"


def _remedy(node: Node, what: str, root: pathlib.Path) -> str:
    if instance := facts.instance(root):
        return (
            f"lxc config device set {instance} <device> mode=0666 on the host (for {node.path})"
            if what == "closed"
            else f"lxc config device add {instance} {pathlib.Path(node.path).name} unix-char "
            f"source={node.path} mode=0666 on the host"
        )
    if what != "closed":
        # A reboot empties /dev. What a reboot does not make has to be removed by hand.
        remove = f"sudo rm {node.path}; " if what == "wrong" and not node.by_group else ""
        return remove + node.make
    if not node.by_group:
        return (
            f"sudo chmod 666 {node.path}; to keep the mode, put `options nvidia "
            "NVreg_DeviceFileMode=0666` into /etc/modprobe.d/nvidia-nodes.conf, and remove rules "
            "in /etc/udev/rules.d that set another one"
        )
    return f"sudo chmod 660 {node.path}; to keep the mode, fix the rule in /etc/udev/rules.d"


def _majors(root: pathlib.Path) -> dict[str, int]:
    """Return the major numbers of character devices, by the driver's name."""
    said = kernel.text(root / "proc/devices").partition("Block devices:")[0]
    return {name: int(number) for number, name in re.findall(r"^ *([0-9]+) (\S+)$", said, re.M)}


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
