# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The states of GPUs and driver, as a table: the first row that applies counts. Pure.

scripts/tables writes this table to docs/reference/status.md.
"""

import typing

from gpu_agent.diagnosis.facts import Facts, HostState, Kind
from gpu_agent.model.inventory import State

# modprobe's messages for a module that no enrolled key has signed: strerror of EKEYREJECTED and
# ENOKEY (errno(3)).
_UNSIGNED: typing.Final = ("Key was rejected by service", "Required key not available")
_LIBRARIES: typing.Final = (
    "installs the libraries of exactly the loaded driver version, if the archive has them"
)
_MODULE: typing.Final = "installs the module for its own driver, if the archive has it"
_REBOOT: typing.Final = (
    "with auto-reboot=driver, and if the charm installed the driver: drains the worker, for at "
    "most drain-timeout, and reboots once"
)
_INSTALLS: typing.Final = (
    "installs the recommended server branch, or that of gpu-driver, and loads it"
)
_REBOOT_BY_HAND: typing.Final = "sudo reboot when no build runs"
_SIGNED: typing.Final = (
    "install Ubuntu's signed module (sudo ubuntu-drivers install --gpgpu), or enrol the DKMS key "
    "(sudo mokutil --import /var/lib/shim-signed/mok/MOK.der) and reboot"
)


def _is_refused_by_firmware(facts: Facts) -> bool:
    refused = facts.driver.refused
    return any(words in refused for words in _UNSIGNED) or bool(
        refused and facts.driver.secure_boot and "Operation not permitted" in refused
    )


def _works_on_a_machine(facts: Facts) -> bool:
    return facts.is_in(State.READY) and facts.vendor.packaged_driver and not facts.driver.container


def _lacks_boot_module(facts: Facts) -> bool:
    lacks = facts.is_installed and bool(facts.boot_kernel) and not facts.is_built_for_next_boot
    return lacks and _works_on_a_machine(facts)


TABLE: typing.Final = (
    HostState(
        "no-gpu-of-vendor",
        Kind.BLOCKS,
        "gpu-vendor names a vendor, and the machine has no GPU of that vendor.",
        lambda facts: facts.is_in(State.NO_GPU) and facts.options.gpu_vendor != "auto",
        "gpu-vendor={vendor}: no such GPU on the PCI bus{integrated}",
        "{find_one}; or juju config {application} gpu-vendor=auto; or juju config {application} "
        "enable-gpu=false",
    ),
    HostState(
        "no-gpu",
        Kind.BLOCKS,
        "The PCI bus has no GPU, or only one that is part of the processor.",
        lambda facts: facts.is_in(State.NO_GPU),
        "No GPU on the PCI bus{integrated}",
        "{find_one}; or juju config {application} enable-gpu=false",
    ),
    HostState(
        "gpu-passthrough",
        Kind.BLOCKS,
        "Each GPU is reserved for virtual machines, by vfio-pci or a similar driver.",
        lambda facts: facts.is_in(State.VFIO),
        "{gpus_are} bound to vfio-pci for a virtual machine",
        "bind it to the {kernel_driver} driver again, or juju config {application} "
        "enable-gpu=false",
    ),
    HostState(
        "gpu-not-passed",
        Kind.BLOCKS,
        "The host's driver has the GPU, but this container has no device node of it.",
        lambda facts: facts.is_in(State.NOT_PASSED),
        "{gpus_are} on the host but not in this container",
        "run scripts/lxd-gpu {application} on the LXD host, which divides the cards among all "
        "units, or juju config {application} enable-gpu=false",
    ),
    HostState(
        "no-driver-on-host",
        Kind.BLOCKS,
        "In a container: its host has no driver for the GPU, or only nouveau.",
        lambda facts: facts.driver.container and facts.is_in(State.NO_DRIVER, State.NOUVEAU),
        "{gpus_have} no compute driver on the host of this container",
        "install it on the host ({driver_source}) and reboot the host, or juju config "
        "{application} enable-gpu=false",
        charm="nothing: a container uses its host's kernel",
    ),
    HostState(
        "reboot-needed-nouveau",
        Kind.BLOCKS,
        "NVIDIA's driver is installed, but nouveau has the GPU in this boot.",
        lambda facts: facts.is_in(State.NOUVEAU) and facts.is_built_for_next_boot,
        "Reboot needed (driver {installed} installed, nouveau loaded)",
        _REBOOT_BY_HAND,
        f"if the charm installed the driver: disables nouveau from the next boot on; {_REBOOT}",
        reboots=True,
    ),
    HostState(
        "nouveau",
        Kind.BLOCKS,
        "The kernel's own driver has the GPU, and NVIDIA's is not installed.",
        lambda facts: facts.is_in(State.NOUVEAU),
        "{gpus_have} the driver nouveau, which cannot run CUDA",
        "install NVIDIA's driver (sudo ubuntu-drivers install --gpgpu) and reboot",
        f"{_INSTALLS}; unloads nouveau if nothing uses it",
        needs_driver_option=True,
    ),
    HostState(
        "no-kernel-driver",
        Kind.BLOCKS,
        "No driver has the GPU; the drivers of its vendor come with the kernel.",
        lambda facts: facts.is_in(State.NO_DRIVER) and not facts.vendor.packaged_driver,
        "{gpus_have} no driver",
        "install linux-modules-extra for this kernel, or a newer kernel, and reboot",
    ),
    HostState(
        "module-unsigned",
        Kind.BLOCKS,
        "Secure Boot is on, and the key that signed the module is not enrolled.",
        lambda facts: facts.is_in(State.NO_DRIVER) and _is_refused_by_firmware(facts),
        "Secure Boot refuses the nvidia module ({refused})",
        _SIGNED,
        "installs signed modules only",
    ),
    HostState(
        "module-refused",
        Kind.BLOCKS,
        "The kernel rejects the module for another reason.",
        lambda facts: facts.is_in(State.NO_DRIVER) and bool(facts.driver.refused),
        "the kernel refuses the nvidia module ({refused})",
        "check sudo dmesg for NVRM lines, or change the driver branch: {other_branch}",
        "tries again after each boot",
    ),
    HostState(
        "gpu-not-driven",
        Kind.BLOCKS,
        "The module is loaded but does not drive the GPU: wrong branch for it, or a fault.",
        lambda facts: facts.is_in(State.NO_DRIVER) and bool(facts.driver.loaded),
        "NVIDIA driver {loaded} is loaded but does not drive GPU {gpus}",
        "check sudo dmesg for NVRM lines; choose a branch of sudo ubuntu-drivers list --gpgpu: "
        "{other_branch}",
    ),
    HostState(
        "module-not-loaded-secure-boot",
        Kind.BLOCKS,
        "As module-not-loaded, with Secure Boot on; the driver was not installed by the charm.",
        lambda facts: (
            facts.is_in(State.NO_DRIVER)
            and facts.is_built_for_this_kernel
            and facts.driver.secure_boot
            and facts.driver.is_anothers
        ),
        "{gpus_have} no driver: NVIDIA driver {installed} is not loaded, and Secure Boot is on",
        f"sudo modprobe nvidia; if its key is rejected, {_SIGNED}",
    ),
    HostState(
        "module-not-loaded",
        Kind.BLOCKS,
        "The module for the running kernel is on the disk but not loaded.",
        lambda facts: facts.is_in(State.NO_DRIVER) and facts.is_built_for_this_kernel,
        "{gpus_have} no driver: NVIDIA driver {installed} is not loaded",
        "sudo modprobe nvidia; if that fails, check sudo dmesg",
        "loads the module if the charm installed the driver",
        needs_driver_option=True,
    ),
    HostState(
        "reboot-needed-kernel",
        Kind.BLOCKS,
        "The running kernel has no module; the kernel of the next boot has one.",
        lambda facts: facts.is_in(State.NO_DRIVER) and facts.is_built_for_next_boot,
        "Reboot needed (driver {installed} installed for kernel {boot_kernel}, {kernel} runs)",
        _REBOOT_BY_HAND,
        _REBOOT,
        reboots=True,
    ),
    HostState(
        "module-missing",
        Kind.BLOCKS,
        "A driver is installed without a module for the running kernel or the next boot's.",
        lambda facts: facts.is_in(State.NO_DRIVER) and facts.is_installed,
        "Driver {installed} is installed, but kernel {kernel} has no nvidia module",
        "{module}",
        _MODULE,
        needs_driver_option=True,
    ),
    HostState(
        "no-driver",
        Kind.BLOCKS,
        "No part of NVIDIA's driver is installed.",
        lambda facts: facts.is_in(State.NO_DRIVER),
        "{gpus_have} no driver",
        "install it with sudo ubuntu-drivers install --gpgpu and reboot",
        _INSTALLS,
        needs_driver_option=True,
    ),
    HostState(
        "lxd-libraries-missing",
        Kind.BLOCKS,
        "In a container: LXD has mounted the host's libraries, but not NVML's.",
        lambda facts: facts.is_in(State.NO_LIBRARY) and facts.driver.bound,
        "NVIDIA driver {loaded} is loaded, but LXD has not mounted libnvidia-ml.so.1 of the host",
        "sudo ldconfig; if that does not help, lxc restart {instance}",
        "installs nothing next to LXD's libraries",
    ),
    HostState(
        "container-libraries-missing",
        Kind.BLOCKS,
        "In a container: the devices are here, but NVML's library is not.",
        lambda facts: facts.is_in(State.NO_LIBRARY) and facts.driver.container,
        "NVIDIA driver {loaded} is loaded, but this container has no libnvidia-ml.so.1",
        "install {libraries} of that version, or let LXD 6 mount the host's (lxc config device "
        "set {instance} <device> id=nvidia.com/gpu=all)",
        _LIBRARIES,
        needs_driver_option=True,
    ),
    HostState(
        "library-missing",
        Kind.BLOCKS,
        "On a machine: the module is loaded, but NVML's library is missing.",
        lambda facts: facts.is_in(State.NO_LIBRARY),
        "NVIDIA driver {loaded} is loaded, but libnvidia-ml.so.1 is missing",
        "install {libraries} of that version",
        "installs the library for its own driver",
        needs_driver_option=True,
    ),
    HostState(
        "lxd-libraries-differ",
        Kind.BLOCKS,
        "The host's driver has changed since LXD mounted its libraries in this container.",
        lambda facts: facts.is_in(State.MISMATCH) and facts.driver.bound,
        "NVIDIA driver and the libnvidia-ml.so.1 that LXD has mounted differ ({versions})",
        "lxc restart {instance}, so that LXD mounts the libraries of the loaded driver",
        "installs nothing next to LXD's libraries",
    ),
    HostState(
        "container-libraries-differ",
        Kind.BLOCKS,
        "The host's driver has changed since this container's libraries were installed.",
        lambda facts: facts.is_in(State.MISMATCH) and facts.driver.container,
        "NVIDIA driver and libnvidia-ml.so.1 differ ({versions})",
        "install {libraries} of version {loaded} in this container",
        _LIBRARIES,
        needs_driver_option=True,
    ),
    HostState(
        "reboot-needed",
        Kind.BLOCKS,
        "The driver's packages were upgraded; the old module is still loaded.",
        lambda facts: (
            facts.is_in(State.MISMATCH) and facts.is_upgraded and facts.has_module_of_upgrade
        ),
        "Reboot needed (driver {installed} installed, {loaded} loaded)",
        _REBOOT_BY_HAND,
        _REBOOT,
        reboots=True,
    ),
    HostState(
        "module-behind",
        Kind.BLOCKS,
        "As reboot-needed, but the kernel of the next boot has no module of the new version.",
        lambda facts: facts.is_in(State.MISMATCH) and facts.is_upgraded,
        "Driver {installed} is installed ({loaded} is loaded), but kernel {boot_kernel} has no "
        "module of it",
        "{boot_module}, then sudo reboot",
        _MODULE,
        needs_driver_option=True,
    ),
    HostState(
        "libraries-differ",
        Kind.BLOCKS,
        "On a machine, and no upgrade of packages explains it.",
        lambda facts: facts.is_in(State.MISMATCH),
        "NVIDIA driver and libnvidia-ml.so.1 differ ({versions})",
        "sudo reboot, or install matching versions",
    ),
    HostState(
        "driver-hangs",
        Kind.BLOCKS,
        "The driver does not answer; a hook gives up after 20 s.",
        lambda facts: facts.is_in(State.HUNG),
        "The GPU driver does not answer",
        "check sudo dmesg for NVRM and Xid lines; if it stays so, sudo reboot when no build runs",
        "asks again at each event; running builds are not stopped, new tasks get no GPU",
    ),
    HostState(
        "nvml-failed",
        Kind.BLOCKS,
        "Driver and library match; the GPU or its driver is faulty.",
        lambda facts: facts.is_in(State.NVML_ERROR),
        "NVML failed: {nvml}",
        "check sudo dmesg for NVRM and Xid lines, then sudo reboot",
    ),
    HostState(
        "not-in-kfd",
        Kind.BLOCKS,
        "amdgpu has the GPU, but KFD, its compute interface, does not, or /dev/kfd is missing.",
        lambda facts: facts.is_in(State.NO_KFD),
        "{gpus_are} not in KFD, which ROCm programs need",
        "pass /dev/kfd to the container (lxc config device add {instance} kfd unix-char "
        "source=/dev/kfd), or check sudo dmesg for kfd",
    ),
    HostState(
        "gpus-ready-lxd",
        Kind.FINE,
        "In a container where LXD has mounted the libraries of the host's driver.",
        lambda facts: (
            facts.is_in(State.READY) and facts.driver.bound and facts.vendor.packaged_driver
        ),
        charm="installs nothing next to LXD's libraries",
    ),
    HostState(
        "gpus-ready",
        Kind.FINE,
        "The machine has a GPU, and driver and libraries answer.",
        lambda facts: facts.is_in(State.READY),
        charm="uses a pre-installed driver unchanged; holds the packages of its own driver",
    ),
)

NOTES: typing.Final = (
    HostState(
        "reboot-pending",
        Kind.NOTE,
        "As reboot-needed, but the loaded version still works. The next reboot loads the new one.",
        lambda facts: (
            _works_on_a_machine(facts) and facts.is_upgraded and facts.has_module_of_upgrade
        ),
        "reboot pending (driver {installed} installed, {loaded} loaded)",
        charm="nothing, as long as the loaded driver works",
    ),
    HostState(
        "other-branch-installed",
        Kind.NOTE,
        "gpu-driver names another branch than the charm's installed driver, which works.",
        lambda facts: facts.wants_another_branch and facts.driver.ours,
        "driver {branch} is installed and stays, although gpu-driver={chosen_driver}",
        "juju run {unit} upgrade-driver",
        "nothing: only upgrade-driver changes the branch",
    ),
    HostState(
        "gpu-driver-ignored",
        Kind.NOTE,
        "As other-branch-installed, with a driver that the charm did not install.",
        lambda facts: facts.wants_another_branch and not facts.driver.ours,
        "driver {branch} was not installed by the charm and stays; gpu-driver={chosen_driver} is "
        "ignored",
        "juju config {application} gpu-driver=auto",
        "nothing: it uses the driver unchanged",
    ),
    HostState(
        "next-boot-without-module",
        Kind.NOTE,
        "If the machine rebooted now, tasks would get no GPU; the charm installed the driver.",
        lambda facts: _lacks_boot_module(facts) and facts.driver.ours,
        "kernel {boot_kernel} of the next boot has no nvidia module",
        "juju run {unit} upgrade-driver",
        "installs the module if the archive has it for the loaded version",
    ),
    HostState(
        "next-boot-without-module-of-others",
        Kind.NOTE,
        "As next-boot-without-module, with a driver that the charm did not install.",
        lambda facts: _lacks_boot_module(facts) and not facts.driver.ours,
        "kernel {boot_kernel} of the next boot has no nvidia module",
        "{boot_module}",
    ),
)
