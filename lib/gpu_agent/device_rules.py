# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which device nodes a systemd unit with some GPUs may open, and which it may not."""

import os
import pathlib
import re
import typing

from gpu_runtime.policy import Device
from gpu_runtime.refusal import Refused

# A process with any GPU needs these (NVIDIA's driver, nvidia-modprobe/modprobe-utils).
_COMMON: typing.Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_NEEDED: typing.Final = _COMMON[:2]
_GPU_NODES: typing.Final = re.compile(r"/dev/(?:nvidia[0-9]+|dri/renderD[0-9]+)")
_DEV: typing.Final = pathlib.Path("/dev")


def nodes(devices: list[Device]) -> list[str]:
    """Return the paths of the device nodes that a unit with these devices needs.

    Raises:
        Refused: one is missing.
    """
    own = [node for device in devices for node in (*device.watched, *device.nodes)]
    of_nvidia = any(not device.nodes for device in devices)
    missing = [device.index for device in devices if not (device.watched or device.nodes)]
    needed = [*own, *(_NEEDED if of_nvidia else ())]
    gone = [node for node in needed if not pathlib.Path(node).exists()]
    if missing or gone:
        what = gone[0] if gone else f"the device node of GPU {missing[0]}"
        raise Refused(
            "device-node-missing",
            f"{what} is missing. The worker detects its GPUs again within 5 minutes; run the "
            "command again then",
        )
    own += [node for node in _COMMON if of_nvidia and pathlib.Path(node).exists()]
    return list(dict.fromkeys(os.path.realpath(node) for node in own))


def others(own: list[str]) -> list[str]:
    """Return the nodes of the other GPUs."""
    there = [str(path) for path in (*_DEV.glob("nvidia*"), *_DEV.glob("dri/renderD*"))]
    return [path for path in there if _GPU_NODES.fullmatch(path) and path not in own]


def properties(own: list[str]) -> list[str]:
    """Return the properties of a systemd unit that may open these nodes and no others."""
    return ["DevicePolicy=closed", *(f"DeviceAllow={node} rw" for node in own)]
