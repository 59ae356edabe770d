# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Policies of every vendor, and the grants that the golden files hold."""

import json

from gpu_runtime.grant import Grant
from gpu_runtime.policy import Device, Policy, task_folders
from gpu_runtime.unavailable import EXTERNAL, EXTERNAL_PROCESS, Unavailable
from tests.unit.wrapper_rig import GOLDEN, GPUS
from tests.unit.wrapper_rig import TASKS as _PLANNED

TASKS = task_folders({"parent": _PLANNED.parent, "others": [*_PLANNED.others]})
_MIG = "MIG-0000000{}-5555-6666-7777-888888888888"
MIG_GPUS = [{**GPUS[0], "devices": [_MIG.format(0), _MIG.format(1)]}]
AMD_GPUS = [
    {
        "index": index,
        "uuid": name,
        "model": "AMD Instinct MI210",
        "devices": [name],
        "nodes": ["/dev/kfd", f"/dev/dri/by-path/pci-0000:{bus}:00.0-render"],
    }
    for index, (name, bus) in enumerate([("GPU-7391e8d0c1a2b3f4", "03"), ("PCI-0000:83:00.0", 83)])
]
INTEL_GPUS = [
    {
        "index": 0,
        "uuid": "PCI-0000:03:00.0",
        "model": "Intel Data Center GPU Flex 170",
        "devices": ["PCI-0000:03:00.0"],
        "nodes": [
            "/dev/dri/by-path/pci-0000:03:00.0-card",
            "/dev/dri/by-path/pci-0000:03:00.0-render",
        ],
    }
]


# Path behind each, major, minor and group, as on a machine with such GPUs.
_RECORDED = {
    "/dev/kfd": ("/dev/kfd", 235, 0, 104),
    "/dev/dri/by-path/pci-0000:03:00.0-card": ("/dev/dri/card1", 226, 1, 44),
    "/dev/dri/by-path/pci-0000:03:00.0-render": ("/dev/dri/renderD128", 226, 128, 104),
    "/dev/dri/by-path/pci-0000:83:00.0-render": ("/dev/dri/renderD129", 226, 129, 104),
}


class RecordedNode:
    """Stands for gpu_runtime.grant.Node, which looks at this machine."""

    def __init__(self, path: str) -> None:
        self.path, self.major, self.minor, self.gid = _RECORDED[path]


def content(**changes: object) -> dict[str, object]:
    """What policy.json holds, for NVIDIA's GPUs unless `changes` say otherwise."""
    return {
        "version": 3,
        "allocation": "exclusive",
        "gpus_per_task": 1,
        "wait_timeout": 0,
        "hijack_limit": 1800,
        "privileged_tasks": "no-gpu",
        "vendor": "nvidia",
        "nvidia_runtime": "/usr/bin/nvidia-container-runtime",
        "config_home": "/etc/gpu-ci",
        "cordons": [],
        "gpus": GPUS,
        **changes,
    }


NVIDIA = Policy(content())
MIG = Policy(content(gpus=MIG_GPUS))
AMD = Policy(content(vendor="amd", nvidia_runtime="", gpus=AMD_GPUS))
INTEL = Policy(content(vendor="intel", nvidia_runtime="", gpus=INTEL_GPUS))

# Golden file: the one that it was before, and what was granted.
GRANTED: dict[str, tuple[str, Policy, list[Device]]] = {
    "task.granted": ("task", NVIDIA, NVIDIA.devices[:1]),
    "task.shared": ("task", NVIDIA, NVIDIA.devices),
    "task.mig": ("task", MIG, MIG.devices[1:]),
    "task.intel": ("task", INTEL, INTEL.devices),
    "task-cuda-image.granted": ("task-cuda-image", NVIDIA, NVIDIA.devices[:1]),
    "task-hostile.granted": ("task-hostile", NVIDIA, NVIDIA.devices[:1]),
    "task-hostile.amd": ("task-hostile", AMD, AMD.devices),
    "task-none.denied": ("task-none", NVIDIA, []),
    "task-privileged.denied": ("task-privileged", NVIDIA, []),
    "task-privileged.granted": ("task-privileged", NVIDIA, NVIDIA.devices[:1]),
    "task-privileged.amd": ("task-privileged", AMD, AMD.devices[:1]),
}


def golden(name: str) -> dict[str, object]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def granted(name: str) -> Grant:
    """The grant of a golden file; RecordedNode must stand for gpu_runtime.grant.Node."""
    _, policy, devices = GRANTED[name]
    return Grant(policy, devices)


def in_use(reason):
    """Why tasks do not get a GPU that is in use outside CI, such as by `pid 4711 (python3)`."""
    return Unavailable(EXTERNAL, EXTERNAL_PROCESS, reason)
