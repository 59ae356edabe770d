# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What can stand between a machine and its GPUs, and what the operator does about it. Pure."""

import dataclasses
import typing

from gpu.inventory import Inventory, State, Vendor
from plan import versions
from plan.state import Toolkit


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """Why no task can get a GPU here. Written as one text, it is what status says."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


@dataclasses.dataclass(frozen=True)
class Advisory:
    """A vulnerability of NVIDIA's container toolkit, by which an image can harm the host.

    Attributes:
        cve: its id.
        severity: its CVSS base score.
        fixed: the first version without it; all before it have it.
    """

    cve: str
    severity: float
    fixed: tuple[int, ...]


# NVIDIA's product-security bulletins (github.com/NVIDIA/product-security) up to number 5850.
ADVISORIES: typing.Final = (
    Advisory("CVE-2024-0132", 9.0, (1, 16, 2)),
    Advisory("CVE-2024-0133", 4.1, (1, 16, 2)),
    Advisory("CVE-2024-0134", 4.1, (1, 17, 0)),
    Advisory("CVE-2024-0135", 7.6, (1, 17, 1)),
    Advisory("CVE-2024-0136", 7.6, (1, 17, 1)),
    Advisory("CVE-2024-0137", 5.5, (1, 17, 1)),
    Advisory("CVE-2025-23359", 8.3, (1, 17, 4)),
    Advisory("CVE-2025-23266", 9.0, (1, 17, 8)),
    Advisory("CVE-2025-23267", 8.5, (1, 17, 8)),
    Advisory("CVE-2026-24260", 8.5, (1, 19, 1)),
)

# The first version of the container toolkit in which none of them is left, such as `1.19.1`.
SAFE_TOOLKIT: typing.Final = ".".join(map(str, max(one.fixed for one in ADVISORIES)))

_UPDATE: typing.Final = f"install nvidia-container-toolkit {SAFE_TOOLKIT} or newer"


def of_state(inventory: Inventory, application: str, wanted: str) -> Obstacle | None:
    """What keeps this machine's GPUs from use; None where they can be used.

    Args:
        inventory: what was found.
        application: this unit's, as the operator's next command names it.
        wanted: the option gpu-vendor.
    """
    if inventory.state is State.READY:
        return None
    if inventory.state is State.NO_GPU:
        return _no_gpu(inventory, application, wanted)
    driver, install = _DRIVER[inventory.vendor]
    what, remedy = _STATES[inventory.state]
    return Obstacle(
        what.format(detail=inventory.detail),
        remedy.format(driver=driver, install=install, application=application),
    )


def of_toolkit(toolkit: Toolkit | None) -> Obstacle | None:
    """What is wrong with NVIDIA's container toolkit; None where nothing is."""
    if toolkit is None:
        return Obstacle("nvidia-container-runtime is missing", _UPDATE)
    if not versions.numbers(toolkit.version):
        return Obstacle(f"{toolkit.path} --version tells no version", _UPDATE)
    known = advisories(toolkit.version)
    if not known:
        return None
    # Status has one line for it: the gravest is named.
    gravest = max(known, key=lambda one: one.severity)
    others = f" and {len(known) - 1} more" if len(known) > 1 else ""
    return Obstacle(
        f"nvidia-container-runtime {toolkit.version} has known vulnerabilities "
        f"({gravest.cve}{others})",
        _UPDATE,
    )


def advisories(version: str) -> tuple[Advisory, ...]:
    """The vulnerabilities that a version of the container toolkit has, such as `1.17.8-1`."""
    # A package's own revision, and what comes after it, changes nothing.
    release = versions.numbers(version)[:3]
    return tuple(one for one in ADVISORIES if release < one.fixed)


def _no_gpu(inventory: Inventory, application: str, wanted: str) -> Obstacle:
    command = f"juju config {application}"
    seen = f" ({inventory.detail})" if inventory.detail else ""
    what, instead = "No GPU", ""
    if wanted != "auto":
        what, instead = f"gpu-vendor '{wanted}': no such GPU", f"{command} gpu-vendor=auto, "
    return Obstacle(
        f"{what} found on the PCI bus{seen}",
        "pass one through (lxc config device add <instance> gpu0 gpu), "
        f"{instead}or {command} enable-gpu=false",
    )


# The kernel's driver for each vendor's GPUs, and how to get it.
_DRIVER: typing.Final = {
    Vendor.NVIDIA: ("nvidia", "install it with sudo ubuntu-drivers install --gpgpu"),
    Vendor.AMD: ("amdgpu", "install linux-modules-extra for this kernel, or a newer kernel,"),
    Vendor.INTEL: (
        "i915 or xe",
        "install linux-modules-extra for this kernel, or a newer kernel,",
    ),
}

_STATES: typing.Final = {
    State.VFIO: (
        "GPU {detail} is bound to vfio-pci for a virtual machine",
        "give it back to the {driver} driver, or juju config {application} enable-gpu=false",
    ),
    State.NOUVEAU: (
        "GPU {detail} is driven by nouveau, which runs no CUDA",
        "install NVIDIA's driver and reboot",
    ),
    State.NO_DRIVER: ("GPU {detail} has no driver", "{install} and reboot"),
    State.NOT_PASSED: (
        "GPU {detail} is on the host but not in this container",
        (
            "pass it in (lxc config device add <instance> gpu0 gpu), or juju config {application} "
            "enable-gpu=false"
        ),
    ),
    State.NO_LIBRARY: (
        "NVIDIA driver {detail} is loaded but libnvidia-ml.so.1 is missing",
        "install libnvidia-compute of the same version",
    ),
    State.MISMATCH: (
        "NVIDIA driver and libnvidia-ml.so.1 differ in version ({detail})",
        "reboot, or install matching versions",
    ),
    State.NVML_ERROR: (
        "NVML failed: {detail}",
        "see dmesg for NVRM and Xid lines, then reboot",
    ),
    State.NO_KFD: (
        "GPU {detail} is not in KFD, through which ROCm programs compute",
        (
            "pass /dev/kfd in (lxc config device add <instance> kfd unix-char source=/dev/kfd), "
            "or look for kfd in dmesg"
        ),
    ),
}
