# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The number of devices that a task requests, and its grant: devices, nodes and variables."""

from __future__ import annotations

import os
import stat

from gpu_runtime.environment import COUNT, Variables
from gpu_runtime.fast_json import dumps
from gpu_runtime.lease_table import NOUNS, STEP
from gpu_runtime.policy import Device, Policy
from gpu_runtime.refusal import Refused, again, failed


def asked_for(policy: Policy, variables: Variables, *, privileged: bool) -> int | None:
    """Return the number of devices that a task requests; None: all.

    A privileged task is root of the host in effect: no runtime could confine it to its devices.

    Raises:
        Refused: its GPU_COUNT is invalid, or not allowed for a privileged task.
    """
    text = variables.asked()
    if text is None:
        return 0 if privileged and not policy.privileged else policy.gpus_per_task
    count = None
    if text != "all":
        # int() refuses numbers of thousands of digits, so longer ones are refused here.
        if not (text.isdecimal() and text.isascii() and len(text) < 10):
            raise Refused(
                "gpu-count-invalid",
                f"{COUNT}='{text[:64]}' is not a number of GPUs. Set this param to 0 for none, to "
                "the number that the task needs, or to all",
            )
        count = int(text)
    if privileged and not policy.privileged and count != 0:
        raise Refused(
            "privileged-not-allowed",
            f"{COUNT}={text} requests a GPU, but privileged tasks get none on this worker (its "
            "option gpu-for-privileged-tasks). Remove `privileged` from the step, or set "
            f"{COUNT} to 0",
        )
    return count


class Node:
    """A device node for a container.

    Attributes:
        path: its path, on the host and in the container.
        major, minor: its numbers.
        gid: the group that may open it.
    """

    __slots__ = ("gid", "major", "minor", "path")

    def __init__(self, path: str) -> None:
        """Read the node at `path`, which may be a link.

        Raises:
            OSError: it does not exist.
            ValueError: it is not a character device.
        """
        self.path = os.path.realpath(path)
        found = os.stat(self.path)
        if not stat.S_ISCHR(found.st_mode):
            raise ValueError(f"{self.path} is not a device")
        self.major = os.major(found.st_rdev)
        self.minor = os.minor(found.st_rdev)
        self.gid = found.st_gid


class Grant:
    """The grant of one container.

    Attributes:
        ids: the ids of its devices, in index order; empty: none.
        environment: the variables of the grant, the same at create and at each exec.
        nodes: the device nodes that no runtime adds.
    """

    __slots__ = ("environment", "ids", "nodes")

    def __init__(self, policy: Policy, devices: list[Device], kind: str = STEP) -> None:
        """Make the grant of `devices` to a holder of this kind.

        Raises:
            Refused: a device node is missing.
        """
        self.ids = [device.id for device in devices]
        by_runtime = bool(devices) and policy.vendor.by_runtime
        listed = [
            {"index": device.index, "uuid": device.id, "model": device.model} for device in devices
        ]
        self.environment = {
            # `void` denies: unset or `none` would still give something (toolkit 1.18 to 1.20).
            "NVIDIA_VISIBLE_DEVICES": ",".join(self.ids) if by_runtime else "void",
            COUNT: str(len(devices)),
            "GPU_CI_DEVICES": dumps(listed),
        }
        # Two devices may share one, such as /dev/kfd.
        paths = dict.fromkeys(path for device in devices for path in device.nodes)
        try:
            self.nodes = [Node(path) for path in paths]
        except (OSError, ValueError) as error:
            raise Refused(
                "device-node-missing",
                f"{failed(NOUNS[kind])}: {error}. The worker detects its GPUs again within 5 "
                f"minutes; {again(NOUNS[kind])} then",
            ) from error

    @property
    def groups(self) -> list[int]:
        """The groups that a process needs to open its nodes, which keep their host group."""
        return sorted({node.gid for node in self.nodes})
