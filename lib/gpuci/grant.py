# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which devices a task gets, and how it is told. Pure."""

from __future__ import annotations

import json

from gpuci import spec
from gpuci.policy import Device, Policy


class Grant:
    """What one container gets.

    Attributes:
        devices: the devices, in index order; empty: none.
        environment: the variables that say so, at create and at each exec alike.
    """

    __slots__ = ("devices", "environment")

    def __init__(self, devices: list[Device]) -> None:
        self.devices = devices
        listed = [
            {"index": device.index, "uuid": device.uuid, "model": device.model}
            for device in devices
        ]
        self.environment = {
            # `void` denies: unset or `none` would still give something (toolkit 1.18 to 1.20).
            "NVIDIA_VISIBLE_DEVICES": ",".join(device.uuid for device in devices) or "void",
            "GPU_COUNT": str(len(devices)),
            "GPU_CI_DEVICES": json.dumps(listed, separators=(",", ":")),
        }


def decide(policy: Policy, config: dict[str, object]) -> Grant:
    """What the task with the spec `config` gets: every allowed device, unless it is privileged.

    A privileged task is host root in all but name: no runtime could keep it to its devices.
    """
    return Grant([] if spec.is_privileged(config) else policy.devices)
