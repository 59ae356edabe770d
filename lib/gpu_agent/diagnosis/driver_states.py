# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The states of GPUs and driver, as a table: the first row that applies counts. Pure.

docs/reference/host-states.md is made of it: .venv/bin/python scripts/tables.
"""

import typing

from gpu_agent.diagnosis.facts import Facts, HostState, Kind
from gpu_agent.model.inventory import State

# What modprobe says of a module that the firmware's keys do not vouch for: the errors EKEYREJECTED
# and ENOKEY in words (errno(3)).
_UNSIGNED: typing.Final = ("Key was rejected by service", "Required key not available")
_LIBRARIES: typing.Final = (
    "installs the libraries of exactly the loaded driver, or says that the archive has none such"
)
_MODULE: typing.Final = "installs the module for a driver of its own, if the archive has it"
_REBOOT: typing.Final = (
    "with auto-reboot=true and a driver of its own: reboots once, when no job runs"
)
_INSTALLS: typing.Final = (
    "installs the recommended server branch, or that of gpu-driver, and loads it"
)
_REBOOT_BY_HAND: typing.Final = "sudo reboot when no job runs"
_SIGNED: typing.Final = (
    "have the signed module in place of DKMS's (sudo ubuntu-drivers install --gpgpu), or enrol "
    "its key (sudo mokutil --import /var/lib/shim-signed/mok/MOK.der) and reboot"
)


def _is_refused_by_firmware(facts: Facts) -> bool:
    refused = facts.driver.refused
    return any(words in refused for words in _UNSIGNED) or bool(
        refused and facts.driver.secure_boot and "Operation not permitted" in refused
    )


def _works_on_a_machine(facts: Facts) -> bool:
    return facts.is_in(State.READY) and facts.is_nvidias and not facts.driver.container


def _lacks_boot_module(facts: Facts) -> bool:
    lacks = facts.is_installed and bool(facts.boot_kernel) and not facts.is_built_for_next_boot
    return lacks and _works_on_a_machine(facts)


TABLE: typing.Final = (
    HostState(
        "no such GPU",
        Kind.BLOCKS,
        "The option gpu-vendor names a maker of whom there is no GPU.",
        lambda facts: facts.is_in(State.NO_GPU) and facts.options.gpu_vendor != "auto",
        "gpu-vendor '{vendor}': no such GPU found on the PCI bus{integrated}",
        "{find_one}, juju config {application} gpu-vendor=auto, or juju config {application} "
        "enable-gpu=false",
    ),
    HostState(
        "no GPU",
        Kind.BLOCKS,
        "The PCI bus has none, or one that is part of a processor.",
        lambda facts: facts.is_in(State.NO_GPU),
        "No GPU found on the PCI bus{integrated}",
        "{find_one}, or juju config {application} enable-gpu=false",
    ),
    HostState(
        "passthrough",
        Kind.BLOCKS,
        "Each GPU is set aside for virtual machines: vfio-pci and its kin.",
        lambda facts: facts.is_in(State.VFIO),
        "{gpus_are} bound to vfio-pci for a virtual machine",
        "give it back to the {kernel_driver} driver, or juju config {application} "
        "enable-gpu=false",
    ),
    HostState(
        "container without devices",
        Kind.BLOCKS,
        "The host's driver has the GPU, this container has no device node of it.",
        lambda facts: facts.is_in(State.NOT_PASSED),
        "{gpus_are} on the host but not in this container",
        "scripts/lxd-gpu {application} on that host, which divides the cards of all units, or "
        "juju config {application} enable-gpu=false",
    ),
    HostState(
        "no driver on the host",
        Kind.BLOCKS,
        "In a container: its host has no driver for the GPU, or nouveau.",
        lambda facts: facts.driver.container and facts.is_in(State.NO_DRIVER, State.NOUVEAU),
        "{gpus_have} no driver that computes on the host of this container",
        "install it on the host ({driver_source}) and reboot that, or juju config {application} "
        "enable-gpu=false",
        charm="nothing: a container has its host's kernel",
    ),
    HostState(
        "reboot needed, nouveau",
        Kind.BLOCKS,
        "NVIDIA's driver is installed, but nouveau has the GPU in this boot.",
        lambda facts: facts.is_in(State.NOUVEAU) and facts.is_built_for_next_boot,
        "reboot needed (driver {installed} installed, nouveau loaded)",
        _REBOOT_BY_HAND,
        f"for a driver of its own: keeps nouveau from the next boot; {_REBOOT}",
        reboots=True,
    ),
    HostState(
        "nouveau",
        Kind.BLOCKS,
        "The kernel's own driver has the GPU, and NVIDIA's is not there.",
        lambda facts: facts.is_in(State.NOUVEAU),
        "{gpus_are} driven by nouveau, which runs no CUDA",
        "install NVIDIA's driver (sudo ubuntu-drivers install --gpgpu) and reboot",
        f"{_INSTALLS}; unloads nouveau where nothing uses it",
        needs_driver_option=True,
    ),
    HostState(
        "no driver, AMD and Intel",
        Kind.BLOCKS,
        "No driver has the GPU: amdgpu, i915 and xe come with the kernel.",
        lambda facts: facts.is_in(State.NO_DRIVER) and not facts.is_nvidias,
        "{gpus_have} no driver",
        "install linux-modules-extra for this kernel, or a newer kernel, and reboot",
    ),
    HostState(
        "refused by Secure Boot",
        Kind.BLOCKS,
        "The firmware lets only signed modules in, and this one's key is not enrolled.",
        lambda facts: facts.is_in(State.NO_DRIVER) and _is_refused_by_firmware(facts),
        "Secure Boot refuses the nvidia module ({refused})",
        _SIGNED,
        "installs signed modules only",
    ),
    HostState(
        "module refused",
        Kind.BLOCKS,
        "The kernel does not take the module for another reason.",
        lambda facts: facts.is_in(State.NO_DRIVER) and bool(facts.driver.refused),
        "the kernel refuses the nvidia module ({refused})",
        "see sudo dmesg for NVRM lines, or take another branch: {other_branch}",
        "tries again after each boot",
    ),
    HostState(
        "GPU not taken",
        Kind.BLOCKS,
        "The module is loaded and leaves the GPU alone: too old or too new for it, or a fault.",
        lambda facts: facts.is_in(State.NO_DRIVER) and bool(facts.driver.loaded),
        "NVIDIA driver {loaded} is loaded but does not take GPU {gpus}",
        "see sudo dmesg for NVRM lines; sudo ubuntu-drivers list --gpgpu names the branches for "
        "it: {other_branch}",
    ),
    HostState(
        "module not loaded, Secure Boot",
        Kind.BLOCKS,
        "The same as the next, where the firmware lets only signed modules in; the driver is "
        "somebody else's.",
        lambda facts: (
            facts.is_in(State.NO_DRIVER)
            and facts.is_built_for_this_kernel
            and facts.driver.secure_boot
            and facts.driver.is_anothers
        ),
        "{gpus_have} no driver: NVIDIA's {installed} is installed but not loaded, under Secure "
        "Boot",
        f"sudo modprobe nvidia; if its key is rejected, {_SIGNED}",
    ),
    HostState(
        "module not loaded",
        Kind.BLOCKS,
        "The running kernel has the module on the disk.",
        lambda facts: facts.is_in(State.NO_DRIVER) and facts.is_built_for_this_kernel,
        "{gpus_have} no driver: NVIDIA's {installed} is installed but not loaded",
        "sudo modprobe nvidia; if it is refused, see sudo dmesg",
        "loads that of a driver of its own",
        needs_driver_option=True,
    ),
    HostState(
        "reboot needed, other kernel",
        Kind.BLOCKS,
        "The running kernel lacks the module, the one that the next boot takes has it.",
        lambda facts: facts.is_in(State.NO_DRIVER) and facts.is_built_for_next_boot,
        "reboot needed (driver {installed} installed for kernel {boot_kernel}, {kernel} runs)",
        _REBOOT_BY_HAND,
        _REBOOT,
        reboots=True,
    ),
    HostState(
        "module missing",
        Kind.BLOCKS,
        "A driver is installed, and no module for the running kernel, nor for the next boot's.",
        lambda facts: facts.is_in(State.NO_DRIVER) and facts.is_installed,
        "kernel {kernel} has no nvidia module, though driver {installed} is installed",
        "{module}",
        _MODULE,
        needs_driver_option=True,
    ),
    HostState(
        "no driver",
        Kind.BLOCKS,
        "Nothing of NVIDIA's driver is there.",
        lambda facts: facts.is_in(State.NO_DRIVER),
        "{gpus_have} no driver",
        "install it with sudo ubuntu-drivers install --gpgpu and reboot",
        _INSTALLS,
        needs_driver_option=True,
    ),
    HostState(
        "LXD's libraries missing",
        Kind.BLOCKS,
        "In a container: LXD has bound the host's libraries in, NVML's is not among them.",
        lambda facts: facts.is_in(State.NO_LIBRARY) and facts.driver.bound,
        "NVIDIA driver {loaded} is loaded but libnvidia-ml.so.1 is missing among the libraries "
        "that LXD has bound in",
        "sudo ldconfig; if that does not help, lxc restart {instance}",
        "installs nothing beside LXD's",
    ),
    HostState(
        "container without libraries",
        Kind.BLOCKS,
        "In a container: the devices are here, NVML's library is not.",
        lambda facts: facts.is_in(State.NO_LIBRARY) and facts.driver.container,
        "NVIDIA driver {loaded} is loaded but libnvidia-ml.so.1 is missing in this container",
        "install {libraries} of that version, or have LXD 6 bind the host's in (lxc config device "
        "set {instance} <device> id=nvidia.com/gpu=all)",
        _LIBRARIES,
        needs_driver_option=True,
    ),
    HostState(
        "no library",
        Kind.BLOCKS,
        "On a machine: the module is loaded, NVML's library is not there.",
        lambda facts: facts.is_in(State.NO_LIBRARY),
        "NVIDIA driver {loaded} is loaded but libnvidia-ml.so.1 is missing",
        "install {libraries} of that version",
        "installs it for a driver of its own",
        needs_driver_option=True,
    ),
    HostState(
        "LXD's libraries differ",
        Kind.BLOCKS,
        "The host's driver has changed under a container into which LXD has bound libraries.",
        lambda facts: facts.is_in(State.MISMATCH) and facts.driver.bound,
        "NVIDIA driver and libnvidia-ml.so.1 differ in version ({versions}), and LXD has bound "
        "the library in",
        "lxc restart {instance}, so that LXD binds those of the loaded driver in",
        "installs nothing beside LXD's",
    ),
    HostState(
        "driver and library differ in a container",
        Kind.BLOCKS,
        "The host's driver has changed under this container.",
        lambda facts: facts.is_in(State.MISMATCH) and facts.driver.container,
        "NVIDIA driver and libnvidia-ml.so.1 differ in version ({versions})",
        "install {libraries} of version {loaded} in this container",
        _LIBRARIES,
        needs_driver_option=True,
    ),
    HostState(
        "reboot needed",
        Kind.BLOCKS,
        "The driver's packages were upgraded, the old module is still loaded.",
        lambda facts: (
            facts.is_in(State.MISMATCH) and facts.is_upgraded and facts.has_module_of_upgrade
        ),
        "reboot needed (driver {installed} installed, {loaded} loaded)",
        _REBOOT_BY_HAND,
        _REBOOT,
        reboots=True,
    ),
    HostState(
        "module behind",
        Kind.BLOCKS,
        "The same, and the kernel that the next boot takes has no module of the new version.",
        lambda facts: facts.is_in(State.MISMATCH) and facts.is_upgraded,
        "kernel {boot_kernel} has no nvidia module of driver {installed}, which is installed "
        "({loaded} is loaded)",
        "{boot_module}, then sudo reboot",
        _MODULE,
        needs_driver_option=True,
    ),
    HostState(
        "driver and library differ",
        Kind.BLOCKS,
        "On a machine, and no package explains it.",
        lambda facts: facts.is_in(State.MISMATCH),
        "NVIDIA driver and libnvidia-ml.so.1 differ in version ({versions})",
        "reboot, or install matching versions",
    ),
    HostState(
        "driver hangs",
        Kind.BLOCKS,
        "Whoever asks the driver gets no answer: a hook gives up after 20 s.",
        lambda facts: facts.is_in(State.HUNG),
        "The GPU driver does not answer",
        "see sudo dmesg for NVRM and Xid lines; where it stays so, sudo reboot when no job runs",
        "nothing: jobs that run are left alone, no task gets a GPU, and each event asks again",
    ),
    HostState(
        "NVML failed",
        Kind.BLOCKS,
        "Driver and library fit, and the GPU or its driver is faulty.",
        lambda facts: facts.is_in(State.NVML_ERROR),
        "NVML failed: {nvml}",
        "see dmesg for NVRM and Xid lines, then reboot",
    ),
    HostState(
        "not in KFD",
        Kind.BLOCKS,
        "amdgpu has the GPU, its compute interface KFD does not, or /dev/kfd is not here.",
        lambda facts: facts.is_in(State.NO_KFD),
        "{gpus_are} not in KFD, through which ROCm programs compute",
        "pass /dev/kfd in (lxc config device add {instance} kfd unix-char source=/dev/kfd), or "
        "look for kfd in dmesg",
    ),
    HostState(
        "ready, LXD's libraries",
        Kind.FINE,
        "In a container into which LXD has bound the libraries of its host's driver.",
        lambda facts: facts.is_in(State.READY) and facts.driver.bound and facts.is_nvidias,
        charm="installs nothing beside LXD's",
    ),
    HostState(
        "ready",
        Kind.FINE,
        "There is a GPU, and driver and libraries answer.",
        lambda facts: facts.is_in(State.READY),
        charm="takes a driver that is there as it is, and holds the packages of its own",
    ),
)

NOTES: typing.Final = (
    HostState(
        "reboot pending",
        Kind.NOTE,
        "Another version of the driver is installed than is loaded, and the loaded one works.",
        lambda facts: (
            _works_on_a_machine(facts) and facts.is_upgraded and facts.has_module_of_upgrade
        ),
        "reboot needed (driver {installed} installed, {loaded} loaded)",
        charm="nothing as long as it works",
    ),
    HostState(
        "other branch installed",
        Kind.NOTE,
        "gpu-driver names another branch than that of the charm's driver, which works.",
        lambda facts: facts.wants_another_branch and facts.driver.ours,
        "gpu-driver={chosen_driver}, and {branch} is installed",
        "juju run {unit} upgrade-driver branch={chosen_driver}",
        "nothing: no hook replaces a driver by another",
    ),
    HostState(
        "other branch installed, other driver",
        Kind.NOTE,
        "The same with a driver that somebody else installed.",
        lambda facts: facts.wants_another_branch and not facts.driver.ours,
        "gpu-driver={chosen_driver}, and {branch} is somebody else's",
        "juju config {application} gpu-driver=auto",
        "nothing: it is used as it is",
    ),
    HostState(
        "module missing for the next boot",
        Kind.NOTE,
        "The GPUs would be gone after a reboot; the driver is the charm's.",
        lambda facts: _lacks_boot_module(facts) and facts.driver.ours,
        "kernel {boot_kernel}, which the next boot takes, has no nvidia module",
        "juju run {unit} upgrade-driver",
        "installs the module if the archive has it for the loaded version",
    ),
    HostState(
        "module missing for the next boot, other driver",
        Kind.NOTE,
        "The same with a driver that somebody else installed.",
        lambda facts: _lacks_boot_module(facts) and not facts.driver.ours,
        "kernel {boot_kernel}, which the next boot takes, has no nvidia module",
        "{boot_module}",
    ),
)
