# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The facts that decide the state of the host, and the row type of the tables. Pure."""

import collections.abc
import dataclasses
import enum
import typing

from gpu_agent.diagnosis import toolkit_versions as toolkit_policy
from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.vendor import Vendor
from gpu_agent.model.host import Driver, Packaged, Toolkit
from gpu_agent.model.inventory import Inventory, State

# How the operator adds a GPU. A container sees all cards of its host on the PCI bus.
_FIND_ONE: typing.Final = {
    False: "install a GPU (in a virtual machine, pass one through)",
    True: "install a GPU in the host of this container",
}


class Kind(enum.Enum):
    """The effect of a state."""

    BLOCKS = "Blocked"
    NOTE = "note"
    FINE = "fine"


@dataclasses.dataclass(frozen=True)
class Options:
    """The operator's options that the state of the host depends on.

    Attributes:
        gpu_vendor: the option gpu-vendor.
        gpu_driver: the option gpu-driver.
        may_reboot: whether auto-reboot lets the charm reboot for the driver.
        toolkit_version: version of the container toolkit's packages; empty: the newest good one.
        allow_vulnerable_toolkit: the option allow-vulnerable-toolkit.
    """

    gpu_vendor: str
    gpu_driver: str
    may_reboot: bool
    toolkit_version: str
    allow_vulnerable_toolkit: bool


@dataclasses.dataclass(frozen=True)
class Facts:
    """Everything that decides the state of the host, read once.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        rebooted_for: the version of the driver for which the charm last rebooted the machine.
        instance: this container's name on its host; empty on a machine, or if unknown.
    """

    inventory: Inventory
    unit: str
    options: Options
    driver: Driver = Driver()
    toolkit: Toolkit | None = None
    packaged: Packaged = Packaged()
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
    def vendor(self) -> Vendor:
        """The vendor of the GPUs that were found or looked for."""
        return registry.find(self.inventory.vendor)

    @property
    def boot_kernel(self) -> str:
        """The kernel of the next boot; the running one if the next is unknown."""
        return self.driver.next_kernel or self.driver.kernel

    @property
    def is_built_for_this_kernel(self) -> bool:
        """Whether the running kernel has NVIDIA's module on the disk."""
        return self.driver.kernel in dict(self.driver.modules)

    @property
    def is_built_for_next_boot(self) -> bool:
        """Whether the kernel of the next boot has NVIDIA's module on the disk."""
        return self.boot_kernel in dict(self.driver.modules)

    @property
    def is_installed(self) -> bool:
        """Whether an NVIDIA driver is on the disk, from packages or not."""
        return bool(self.driver.version or self.driver.modules)

    @property
    def installed(self) -> str:
        """Version of the driver on the disk; empty if there is none or it is unknown."""
        modules = dict(self.driver.modules)
        return self.driver.version or modules.get(self.boot_kernel, "")

    @property
    def loaded(self) -> str:
        """Version of the driver in the kernel; empty if there is none or it is unknown."""
        return self.driver.loaded or self.inventory.driver

    @property
    def is_upgraded(self) -> bool:
        """Whether the driver on the disk has another version than the loaded one."""
        return bool(self.installed and self.loaded) and self.installed != self.loaded

    @property
    def has_module_of_upgrade(self) -> bool:
        """Whether the next boot loads the version on the disk, rather than an older module."""
        return dict(self.driver.modules).get(self.boot_kernel) in ("", self.installed)

    @property
    def can_reboot(self) -> bool:
        """Whether the charm may reboot for the driver if auto-reboot allows it."""
        return self.driver.ours and not self.driver.refused

    @property
    def wants_another_branch(self) -> bool:
        """Whether gpu-driver names a branch other than that of the driver here."""
        branch = self.options.gpu_driver
        there = self.driver.branch or self.driver.is_anothers
        named = branch not in ("auto", "none", self.driver.branch)
        return bool(there) and named and self.vendor.packaged_driver and not self.driver.container

    @property
    def has_rebooted(self) -> bool:
        """Whether the charm has already rebooted the machine for this driver version."""
        return bool(self.driver.version) and self.rebooted_for == self.driver.version

    @property
    def values(self) -> dict[str, str]:
        """The values for the braces in the tables' texts."""
        driver, found = self.driver, self.inventory
        kernel = driver.kernel or "of this machine"
        gpus = _shortened(found.detail)
        return {
            "application": self.application,
            "unit": self.unit,
            "instance": self.instance or "<instance>",
            "find_one": _FIND_ONE[driver.container],
            "libraries": f"libnvidia-compute-{self.loaded.partition('.')[0] or '<branch>'}",
            "gpus": gpus,
            "gpus_are": f"GPU {gpus} {'are' if ', ' in found.detail else 'is'}",
            "gpus_have": f"GPU {gpus} {'have' if ', ' in found.detail else 'has'}",
            "versions": found.detail,
            "nvml": found.detail,
            "integrated": f" ({found.detail})" if found.detail else "",
            "vendor": self.options.gpu_vendor,
            "kernel_driver": self.vendor.kernel_driver,
            "driver_source": self.vendor.driver_source,
            "kernel": kernel,
            "boot_kernel": self.boot_kernel or kernel,
            "loaded": self.loaded or "of an unknown version",
            "installed": self.installed or "of an unknown version",
            "refused": driver.refused,
            "chosen_driver": self.options.gpu_driver,
            "branch": driver.branch or self.loaded or "without packages",
            "other_branch": _other_branch(driver, self.unit),
            "module": _module(driver, kernel),
            "boot_module": _module(driver, self.boot_kernel or kernel),
            **self._toolkit_values,
        }

    @property
    def _toolkit_values(self) -> dict[str, str]:
        version = self.toolkit.version if self.toolkit else ""
        return {
            "runtime": self.toolkit.path if self.toolkit else "",
            "toolkit": version,
            "chosen": self.chosen_toolkit,
            "gravest": _gravest(version),
            "gravest_chosen": _gravest(self.chosen_toolkit),
            "breaks": " ".join(one.breaks for one in unfixed(version)),
            "wanted": self.wanted_toolkit,
            "good": toolkit_policy.KNOWN_GOOD,
            "safe": toolkit_policy.SAFE,
            "oldest": toolkit_policy.OLDEST,
            "tested": toolkit_policy.TESTED,
        }

    @property
    def wanted_toolkit(self) -> str:
        """Version of the toolkit's packages that should be installed."""
        return self.options.toolkit_version or toolkit_policy.KNOWN_GOOD

    @property
    def chosen_toolkit(self) -> str:
        """The version that the operator has chosen for the charm's own toolkit; or empty."""
        ours = self.toolkit is None or self.packaged.ours
        return self.options.toolkit_version if ours else ""


def unfixed(version: str) -> tuple[toolkit_policy.Fault, ...]:
    """Return what a version of the toolkit breaks for tasks, without a workaround by the charm."""
    return tuple(one for one in toolkit_policy.faults(version) if not one.here)


def _shortened(addresses: str) -> str:
    """Return at most two of the PCI addresses of GPUs, and the number of the others."""
    first, *others = addresses.split(", ")
    return f"{first} and {len(others)} more" if others[1:] else addresses


def _gravest(version: str) -> str:
    """Return the worst CVE of a version and the number of the others, for status."""
    known = sorted(toolkit_policy.advisories(version), key=lambda one: -one.severity)
    others = f" and {len(known) - 1} more" if len(known) > 1 else ""
    return f"{known[0].cve}{others}" if known else ""


def pass_in(instance: str, address: str) -> str:
    """Return the command for the LXD host that passes a GPU to a container, as scripts/lxd-gpu.

    It uses the PCI address, since LXD 5.0.2 passes all cards for an id that it does not know.
    """
    device = f"gpuci-{address.replace(':', '-')} gpu gputype=physical pci={address} mode=0666"
    return f"lxc config device add {instance} {device}"


def _other_branch(driver: Driver, unit: str) -> str:
    """Return how the operator changes to a driver of another branch."""
    if driver.is_anothers:
        return "install another branch in the same way as this one"
    return f"juju run {unit} upgrade-driver branch=<branch>"


def _module(driver: Driver, kernel: str) -> str:
    """Return how the operator installs NVIDIA's module for a kernel."""
    if driver.branch:
        return f"sudo apt-get install linux-modules-nvidia-{driver.branch}-{kernel}"
    return f"sudo dkms autoinstall -k {kernel}, or reinstall the driver"


@dataclasses.dataclass(frozen=True)
class HostState:
    """One row of a table of states. Texts have values of Facts in braces.

    Attributes:
        code: names the state and never changes, such as `reboot-needed`.
        kind: whether it keeps GPUs from tasks.
        when: the meaning, for docs/reference/status.md.
        applies: whether facts are in this state, if no row above applies.
        status: the text of status; empty for a state that is fine.
        remedy: what the operator does, with a command if there is one.
        charm: what the charm does by itself.
        needs_driver_option: the charm does nothing if gpu-driver is `none`; the remedy says so.
        reboots: the remedy is a reboot, which the charm makes if auto-reboot allows it.
    """

    code: str
    kind: Kind
    when: str
    applies: collections.abc.Callable[[Facts], bool]
    status: str = ""
    remedy: str = ""
    charm: str = ""
    needs_driver_option: bool = False
    reboots: bool = False
