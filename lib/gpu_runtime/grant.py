# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a task asks for, what it gets, and how it is told."""

from __future__ import annotations

import os
import stat

from gpu_runtime.environment import COUNT, Variables
from gpu_runtime.fast_json import dumps
from gpu_runtime.lease_table import NOUNS, STEP
from gpu_runtime.policy import Device, Policy
from gpu_runtime.refusal import Refused, failed


def asked_for(policy: Policy, variables: Variables, *, privileged: bool) -> int | None:
    """How many devices a task is to get; None: all there are.

    A privileged task is host root in all but name: no runtime could keep it to its devices.

    Raises:
        Refused: its GPU_COUNT can't be followed.
    """
    text = variables.asked()
    if text is None:
        return 0 if privileged and not policy.privileged else policy.gpus_per_task
    count = None
    if text != "all":
        # Longer ones would be no less wrong, but int() refuses numbers of thousands of digits.
        if not (text.isdecimal() and text.isascii() and len(text) < 10):
            raise Refused(
                f"{COUNT} '{text[:64]}' is no number of GPUs: set this param to 0 for none, "
                "to how many the task needs, or to all"
            )
        count = int(text)
    if privileged and not policy.privileged and count != 0:
        raise Refused(
            f"{COUNT} '{text}' asks for a GPU, and this task is privileged: such tasks get none "
            "on this worker (its operator's option privileged-tasks). Take privileged from the "
            f"step, or set the param {COUNT} to 0"
        )
    return count


class Node:
    """A device node as a container is to have it.

    Attributes:
        path: where it is, here and there.
        major, minor: its numbers.
        gid: the group that may open it.
    """

    __slots__ = ("gid", "major", "minor", "path")

    def __init__(self, path: str) -> None:
        """Look at the node at `path`, which may be a link.

        Raises:
            OSError: it is not there.
            ValueError: it is no character device.
        """
        self.path = os.path.realpath(path)
        found = os.stat(self.path)
        if not stat.S_ISCHR(found.st_mode):
            raise ValueError(f"{self.path} is no device")
        self.major = os.major(found.st_rdev)
        self.minor = os.minor(found.st_rdev)
        self.gid = found.st_gid


class Grant:
    """What one container gets.

    Attributes:
        ids: of its devices, in index order; empty: none.
        environment: the variables that say so, at create and at each exec alike.
        nodes: device nodes that no runtime brings in.
    """

    __slots__ = ("environment", "ids", "nodes")

    def __init__(self, policy: Policy, devices: list[Device], kind: str = STEP) -> None:
        """Word the grant of `devices` to a holder of a kind.

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
                f"{failed(NOUNS[kind])}: {error}; it looks for its GPUs again within minutes: "
                "run it again then"
            ) from error

    @property
    def groups(self) -> list[int]:
        """The groups that a process needs to open its nodes: in a container they keep theirs."""
        return sorted({node.gid for node in self.nodes})
