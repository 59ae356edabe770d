# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a state of the host is told by, and what a row of the tables of states says. Pure."""

import collections.abc
import dataclasses
import enum
import typing

from gpu_agent.diagnosis import toolkit_versions as toolkit_policy
from gpu_agent.model.host import Driver, Packaged, Toolkit
from gpu_agent.model.inventory import Inventory, State, Vendor
from options.table import Options

_KERNEL_DRIVERS: typing.Final = {
    Vendor.NVIDIA: "nvidia",
    Vendor.AMD: "amdgpu",
    Vendor.INTEL: "i915 or xe",
}
_DRIVER_SOURCES: typing.Final = {
    Vendor.NVIDIA: "sudo ubuntu-drivers install --gpgpu",
    **dict.fromkeys((Vendor.AMD, Vendor.INTEL), "linux-modules-extra of its kernel"),
}


# How a GPU comes to a machine, and to a container, which is shown all that its host has.
_FIND_ONE: typing.Final = {
    False: "put one in, or, where this is a virtual machine, pass one through to it",
    True: "put one into the host of this container",
}


class Kind(enum.Enum):
    """What a state comes to."""

    BLOCKS = "Blocked"
    NOTE = "note"
    FINE = "fine"


@dataclasses.dataclass(frozen=True)
class Facts:
    """Everything that tells the state of the host, read once.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        rebooted_for: the version of the driver for which the charm last rebooted the machine.
        instance: this container's name on its host; empty on a machine, or if unknown.
    """

    inventory: Inventory
    unit: str
    driver: Driver = Driver()
    toolkit: Toolkit | None = None
    packaged: Packaged = Packaged()
    options: Options = Options()
    rebooted_for: str = ""
    instance: str = ""

    @property
    def application(self) -> str:
        """This unit's application, as the operator's next command names it."""
        return self.unit.partition("/")[0]

    def is_in(self, *states: State) -> bool:
        """Whether the GPUs are in one of these states."""
        return self.inventory.state in states

    @property
    def is_nvidias(self) -> bool:
        """Whether it is NVIDIA's GPUs that were looked for or found."""
        return self.inventory.vendor is Vendor.NVIDIA

    @property
    def boot_kernel(self) -> str:
        """The kernel that the next boot takes, as far as that can be told."""
        return self.driver.next_kernel or self.driver.kernel

    @property
    def is_built_for_this_kernel(self) -> bool:
        """Whether the running kernel has NVIDIA's module on the disk."""
        return self.driver.kernel in dict(self.driver.modules)

    @property
    def is_built_for_next_boot(self) -> bool:
        """The same for the kernel that the next boot takes."""
        return self.boot_kernel in dict(self.driver.modules)

    @property
    def is_installed(self) -> bool:
        """Whether a driver of NVIDIA's is on the disk, as packages or otherwise."""
        return bool(self.driver.version or self.driver.modules)

    @property
    def installed(self) -> str:
        """Version of the driver on the disk; empty if there is none or it can't be told."""
        modules = dict(self.driver.modules)
        return self.driver.version or modules.get(self.boot_kernel, "")

    @property
    def loaded(self) -> str:
        """Version of the driver in the kernel; empty if there is none or it can't be told."""
        return self.driver.loaded or self.inventory.driver

    @property
    def is_upgraded(self) -> bool:
        """Whether another version of the driver is on the disk than the loaded one."""
        return bool(self.installed and self.loaded) and self.installed != self.loaded

    @property
    def has_module_of_upgrade(self) -> bool:
        """Whether the next boot loads the version on the disk; its module may be behind."""
        return dict(self.driver.modules).get(self.boot_kernel) in ("", self.installed)

    @property
    def can_reboot(self) -> bool:
        """Whether a reboot would be the charm's, were it let: its own driver needs one."""
        return self.driver.ours and not self.driver.refused

    @property
    def wants_another_branch(self) -> bool:
        """Whether gpu-driver names a branch, and that of the driver here is another, or none."""
        branch = self.options.gpu_driver
        there = self.driver.branch or self.driver.is_anothers
        named = branch not in ("auto", "none", self.driver.branch)
        return bool(there) and named and self.is_nvidias and not self.driver.container

    @property
    def has_rebooted(self) -> bool:
        """Whether the charm has rebooted the machine for this driver, which did not help."""
        return bool(self.driver.version) and self.rebooted_for == self.driver.version

    @property
    def words(self) -> dict[str, str]:
        """What stands in the braces of the tables' texts."""
        driver, found = self.driver, self.inventory
        kernel = driver.kernel or "of this machine"
        return {
            "application": self.application,
            "unit": self.unit,
            "instance": self.instance or "<instance>",
            "find_one": _FIND_ONE[driver.container],
            "libraries": f"libnvidia-compute-{self.loaded.partition('.')[0] or '<branch>'}",
            "gpus": found.detail,
            "gpus_are": f"GPU {found.detail} {'are' if ', ' in found.detail else 'is'}",
            "gpus_have": f"GPU {found.detail} {'have' if ', ' in found.detail else 'has'}",
            "versions": found.detail,
            "nvml": found.detail,
            "integrated": f" ({found.detail})" if found.detail else "",
            "vendor": self.options.gpu_vendor,
            "kernel_driver": _KERNEL_DRIVERS[found.vendor],
            "driver_source": _DRIVER_SOURCES[found.vendor],
            "kernel": kernel,
            "boot_kernel": self.boot_kernel or kernel,
            "loaded": self.loaded or "of an unknown version",
            "installed": self.installed or "of an unknown version",
            "refused": driver.refused,
            "chosen_driver": self.options.gpu_driver,
            "branch": driver.branch or self.loaded or "one without packages",
            "other_branch": _other_branch(driver, self.unit),
            "module": _module(driver, kernel),
            "boot_module": _module(driver, self.boot_kernel or kernel),
            **self._toolkit_words,
        }

    @property
    def _toolkit_words(self) -> dict[str, str]:
        version = self.toolkit.version if self.toolkit else ""
        return {
            "runtime": self.toolkit.path if self.toolkit else "",
            "toolkit": version,
            "chosen": self.chosen_toolkit,
            "gravest": _gravest(version),
            "gravest_chosen": _gravest(self.chosen_toolkit),
            "cves": ", ".join(one.cve for one in toolkit_policy.advisories(version)),
            "breaks": " ".join(one.breaks for one in unmended(version)),
            "wanted": self.wanted_toolkit,
            "good": toolkit_policy.KNOWN_GOOD,
            "safe": toolkit_policy.SAFE,
            "oldest": toolkit_policy.OLDEST,
            "tested": toolkit_policy.TESTED,
        }

    @property
    def wanted_toolkit(self) -> str:
        """Version of the toolkit's packages that there should be."""
        return self.options.toolkit_version or toolkit_policy.KNOWN_GOOD

    @property
    def chosen_toolkit(self) -> str:
        """The version that the operator names for us to have; empty: none, or it is not ours."""
        ours = self.toolkit is None or self.packaged.ours
        return self.options.toolkit_version if ours else ""


def unmended(version: str) -> tuple[toolkit_policy.Fault, ...]:
    """What a version of the toolkit breaks for tasks, since the charm can't get round it."""
    return tuple(one for one in toolkit_policy.faults(version) if not one.here)


def _gravest(version: str) -> str:
    """The CVEs of a version, in status's one line."""
    known = sorted(toolkit_policy.advisories(version), key=lambda one: -one.severity)
    others = f" and {len(known) - 1} more" if len(known) > 1 else ""
    return f"{known[0].cve}{others}" if known else ""


def pass_in(instance: str, address: str) -> str:
    """The command of LXD's host by which a container gets a GPU: as scripts/lxd-gpu gives it.

    By PCI address: LXD 5.0.2 gives all cards for an id that it does not know.
    """
    device = f"gpuci-{address.replace(':', '-')} gpu gputype=physical pci={address} mode=0666"
    return f"lxc config device add {instance} {device}"


def _other_branch(driver: Driver, unit: str) -> str:
    """How the operator gets a driver of another branch."""
    if driver.is_anothers:
        return "install one of another branch the way this one came"
    return f"juju run {unit} upgrade-driver branch=<branch>"


def _module(driver: Driver, kernel: str) -> str:
    """How the operator gets NVIDIA's module for a kernel."""
    if driver.branch:
        return f"sudo apt-get install linux-modules-nvidia-{driver.branch}-{kernel}"
    return f"sudo dkms autoinstall -k {kernel}, or install the driver anew"


@dataclasses.dataclass(frozen=True)
class HostState:
    """One row of a table of states. Texts have `{words}` of Facts in braces.

    Attributes:
        name: short, for documents and tests, such as `reboot needed`.
        kind: whether it keeps GPUs from tasks.
        when: what is the matter, for a reader of the documents.
        applies: whether these facts are in it, where no row above applies.
        status: what status says; of fine ones nothing.
        remedy: what the operator does; a command where there is one.
        charm: what the charm does by itself.
        needs_driver_option: it does not where gpu-driver is none; then the remedy says so.
        reboots: a reboot is the remedy, and with auto-reboot the charm's.
    """

    name: str
    kind: Kind
    when: str
    applies: collections.abc.Callable[[Facts], bool]
    status: str = ""
    remedy: str = ""
    charm: str = ""
    needs_driver_option: bool = False
    reboots: bool = False
