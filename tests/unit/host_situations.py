# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Each state of a host: facts that are in it, and what status says of it."""

import dataclasses

from gpu_agent.diagnosis.facts import Facts
from gpu_agent.model.host import Driver, Packaged, Toolkit
from gpu_agent.model.inventory import Inventory, State, Vendor
from options.table import Options
from tests.unit.situations import GPUS, RUNTIME, TOOLKIT

CARD, SECOND = "0000:01:00.0", "0000:02:00.0"
NOW, NEXT = "6.8.0-59-generic", "6.8.0-60-generic"
METAL = Driver(kernel=NOW, next_kernel=NOW)
OLD, NEW = "580.54.01", "580.65.06"
# As after an installation by the charm, and as after its packages were upgraded.
INSTALLED = dataclasses.replace(
    METAL, modules=((NOW, NEW),), library=NEW, branch="580-server", version=NEW, ours=True
)
LOADED = dataclasses.replace(INSTALLED, loaded=NEW)
UPGRADED = dataclasses.replace(INSTALLED, loaded=OLD)
CONTAINER = Driver(container=True, kernel=NOW, loaded=NEW)
BOUND = dataclasses.replace(CONTAINER, bound=True, library=NEW)
REFUSED = "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"


def facts(state=State.READY, driver=LOADED, toolkit=TOOLKIT, packaged=None, **options):
    """What is found on a worker; detail as the rooms that look write it."""
    given = {name: options.pop(name) for name in ("vendor", "detail") if name in options}
    if state is State.READY:
        given |= {"gpus": GPUS}
    else:
        given.setdefault("detail", CARD)
    instance = options.pop("instance", "")
    return Facts(
        inventory=Inventory(state, driver=driver.loaded, **given),
        driver=driver,
        toolkit=toolkit,
        packaged=packaged or Packaged(),
        options=Options(**options),
        unit="worker/0",
        instance=instance,
    )


def changed(driver, **values):
    return dataclasses.replace(driver, **values)


def runtime(version):
    return Toolkit(RUNTIME, version)


GPU_ROWS = {
    "no such GPU": (
        facts(State.NO_GPU, vendor=Vendor.AMD, detail="", gpu_vendor="amd"),
        (
            "gpu-vendor 'amd': no such GPU found on the PCI bus: put one in, or, where this is a "
            "virtual machine, pass one through to it, juju config worker gpu-vendor=auto, or juju "
            "config worker enable-gpu=false"
        ),
    ),
    "no GPU": (
        facts(State.NO_GPU, METAL, detail=""),
        (
            "No GPU found on the PCI bus: put one in, or, where this is a virtual machine, pass "
            "one through to it, or juju config worker enable-gpu=false"
        ),
    ),
    "passthrough": (
        facts(State.VFIO, METAL),
        (
            f"GPU {CARD} is bound to vfio-pci for a virtual machine: give it back to the nvidia "
            "driver, or juju config worker enable-gpu=false"
        ),
    ),
    "container without devices": (
        facts(State.NOT_PASSED, CONTAINER, instance="juju-a1b2-0", detail=f"{CARD}, {SECOND}"),
        (
            f"GPU {CARD}, {SECOND} are on the host but not in this container: scripts/lxd-gpu "
            "worker on that host, which divides the cards of all units, or juju config worker "
            "enable-gpu=false"
        ),
    ),
    "no driver on the host": (
        facts(State.NOUVEAU, changed(CONTAINER, loaded="")),
        (
            f"GPU {CARD} has no driver that computes on the host of this container: install it "
            "on the host (sudo ubuntu-drivers install --gpgpu) and reboot that, or juju config "
            "worker enable-gpu=false"
        ),
    ),
    "reboot needed, nouveau": (
        facts(State.NOUVEAU, INSTALLED),
        (
            f"reboot needed (driver {NEW} installed, nouveau loaded): sudo reboot when no job "
            "runs, or juju config worker auto-reboot=true"
        ),
    ),
    "nouveau": (
        facts(State.NOUVEAU, METAL),
        (
            f"GPU {CARD} is driven by nouveau, which runs no CUDA: install NVIDIA's driver (sudo "
            "ubuntu-drivers install --gpgpu) and reboot"
        ),
    ),
    "no driver, AMD and Intel": (
        facts(State.NO_DRIVER, METAL, vendor=Vendor.AMD),
        (
            f"GPU {CARD} has no driver: install linux-modules-extra for this kernel, or a newer "
            "kernel, and reboot"
        ),
    ),
    "refused by Secure Boot": (
        facts(State.NO_DRIVER, changed(INSTALLED, refused=REFUSED, secure_boot=True)),
        (
            f"Secure Boot refuses the nvidia module ({REFUSED}): have the signed module in place "
            "of DKMS's (sudo ubuntu-drivers install --gpgpu), or enrol its key (sudo mokutil "
            "--import /var/lib/shim-signed/mok/MOK.der) and reboot"
        ),
    ),
    "module refused": (
        facts(State.NO_DRIVER, changed(INSTALLED, refused="No such device", secure_boot=True)),
        (
            "the kernel refuses the nvidia module (No such device): see sudo dmesg for NVRM "
            "lines, or take another branch: juju run worker/0 upgrade-driver branch=<branch>"
        ),
    ),
    "GPU not taken": (
        facts(State.NO_DRIVER, LOADED),
        (
            f"NVIDIA driver {NEW} is loaded but does not take GPU {CARD}: see sudo dmesg for NVRM "
            "lines; sudo ubuntu-drivers list --gpgpu names the branches for it: juju run worker/0 "
            "upgrade-driver branch=<branch>"
        ),
    ),
    "module not loaded, Secure Boot": (
        facts(State.NO_DRIVER, changed(INSTALLED, ours=False, secure_boot=True)),
        (
            f"GPU {CARD} has no driver: NVIDIA's {NEW} is installed but not loaded, under Secure "
            "Boot: sudo modprobe nvidia; if its key is rejected, have the signed module in place "
            "of DKMS's (sudo ubuntu-drivers install --gpgpu), or enrol its key (sudo mokutil "
            "--import /var/lib/shim-signed/mok/MOK.der) and reboot"
        ),
    ),
    "module not loaded": (
        facts(State.NO_DRIVER, INSTALLED),
        (
            f"GPU {CARD} has no driver: NVIDIA's {NEW} is installed but not loaded: sudo modprobe "
            "nvidia; if it is refused, see sudo dmesg"
        ),
    ),
    "reboot needed, other kernel": (
        facts(State.NO_DRIVER, changed(INSTALLED, next_kernel=NEXT, modules=((NEXT, NEW),))),
        (
            f"reboot needed (driver {NEW} installed for kernel {NEXT}, {NOW} runs): sudo reboot "
            "when no job runs, or juju config worker auto-reboot=true"
        ),
    ),
    "module missing": (
        facts(State.NO_DRIVER, changed(INSTALLED, modules=())),
        (
            f"kernel {NOW} has no nvidia module, though driver {NEW} is installed: sudo apt-get "
            f"install linux-modules-nvidia-580-server-{NOW}"
        ),
    ),
    "no driver": (
        facts(State.NO_DRIVER, METAL),
        (
            f"GPU {CARD} has no driver: install it with sudo ubuntu-drivers install --gpgpu and "
            "reboot"
        ),
    ),
    "LXD's libraries missing": (
        facts(State.NO_LIBRARY, BOUND),
        (
            f"NVIDIA driver {NEW} is loaded but libnvidia-ml.so.1 is missing among the libraries "
            "that LXD has bound in: sudo ldconfig; if that does not help, lxc restart <instance>"
        ),
    ),
    "container without libraries": (
        facts(State.NO_LIBRARY, CONTAINER),
        (
            f"NVIDIA driver {NEW} is loaded but libnvidia-ml.so.1 is missing in this container: "
            "install libnvidia-compute-580 of that version, or have LXD 6 bind the host's in (lxc "
            "config device set <instance> <device> id=nvidia.com/gpu=all)"
        ),
    ),
    "no library": (
        facts(State.NO_LIBRARY, changed(METAL, loaded=NEW)),
        (
            f"NVIDIA driver {NEW} is loaded but libnvidia-ml.so.1 is missing: install "
            "libnvidia-compute-580 of that version"
        ),
    ),
    "LXD's libraries differ": (
        facts(State.MISMATCH, BOUND, detail=f"{NEW} and {OLD}"),
        (
            f"NVIDIA driver and libnvidia-ml.so.1 differ in version ({NEW} and {OLD}), and LXD "
            "has bound the library in: lxc restart <instance>, so that LXD binds those of the "
            "loaded driver in"
        ),
    ),
    "driver and library differ in a container": (
        facts(
            State.MISMATCH,
            changed(CONTAINER, version=OLD, library=OLD),
            detail=f"{NEW} and {OLD}",
        ),
        (
            f"NVIDIA driver and libnvidia-ml.so.1 differ in version ({NEW} and {OLD}): install "
            f"libnvidia-compute-580 of version {NEW} in this container"
        ),
    ),
    "reboot needed": (
        facts(State.MISMATCH, UPGRADED),
        (
            f"reboot needed (driver {NEW} installed, {OLD} loaded): sudo reboot when no job runs, "
            "or juju config worker auto-reboot=true"
        ),
    ),
    "module behind": (
        facts(State.MISMATCH, changed(UPGRADED, next_kernel=NEXT, modules=((NEXT, OLD),))),
        (
            f"kernel {NEXT} has no nvidia module of driver {NEW}, which is installed ({OLD} is "
            f"loaded): sudo apt-get install linux-modules-nvidia-580-server-{NEXT}, then sudo "
            "reboot"
        ),
    ),
    "driver and library differ": (
        facts(State.MISMATCH, changed(METAL, loaded=OLD), detail=f"{OLD} and {NEW}"),
        (
            f"NVIDIA driver and libnvidia-ml.so.1 differ in version ({OLD} and {NEW}): reboot, or "
            "install matching versions"
        ),
    ),
    "driver hangs": (
        facts(State.HUNG, detail="no answer within 20 s"),
        (
            "The GPU driver does not answer: see sudo dmesg for NVRM and Xid lines; where it "
            "stays so, sudo reboot when no job runs"
        ),
    ),
    "NVML failed": (
        facts(State.NVML_ERROR, detail="Unknown Error"),
        "NVML failed: Unknown Error: see dmesg for NVRM and Xid lines, then reboot",
    ),
    "not in KFD": (
        facts(State.NO_KFD, METAL, vendor=Vendor.AMD),
        (
            f"GPU {CARD} is not in KFD, through which ROCm programs compute: pass /dev/kfd in "
            "(lxc config device add <instance> kfd unix-char source=/dev/kfd), or look for kfd in "
            "dmesg"
        ),
    ),
    "ready, LXD's libraries": (facts(driver=BOUND), ""),
    "ready": (facts(), ""),
}
TOOLKIT_ROWS = {
    "no toolkit needed": (facts(vendor=Vendor.INTEL, toolkit=None), ""),
    "chosen toolkit too old": (
        facts(toolkit=None, toolkit_version="1.9.0-1", allow_vulnerable_toolkit=True),
        (
            "nvidia-container-toolkit-version '1.9.0-1' is too old: before 1.13.0 annotations get "
            "GPUs past this charm: juju config worker nvidia-container-toolkit-version=1.20.0-1"
        ),
    ),
    "chosen toolkit vulnerable": (
        facts(packaged=Packaged("1.20.0-1", ours=True), toolkit_version="1.17.8-1"),
        (
            "nvidia-container-toolkit-version '1.17.8-1' has known vulnerabilities "
            "(CVE-2026-24260): juju config worker nvidia-container-toolkit-version=1.20.0-1, or "
            "accept them: juju config worker allow-vulnerable-toolkit=true"
        ),
    ),
    "toolkit missing": (
        facts(toolkit=None),
        "nvidia-container-runtime is missing: install nvidia-container-toolkit 1.19.1 or newer",
    ),
    "toolkit without a version": (
        facts(toolkit=runtime("")),
        (
            "/usr/bin/nvidia-container-runtime --version tells no version: install "
            "nvidia-container-toolkit 1.19.1 or newer"
        ),
    ),
    "toolkit too old": (
        facts(toolkit=runtime("1.12.1"), allow_vulnerable_toolkit=True),
        (
            "nvidia-container-runtime 1.12.1 is too old: before 1.13.0 annotations get GPUs past "
            "this charm: install nvidia-container-toolkit 1.19.1 or newer"
        ),
    ),
    "toolkit vulnerable": (
        facts(toolkit=runtime("1.17.7")),
        (
            "nvidia-container-runtime 1.17.7 has known vulnerabilities (CVE-2025-23266 and 2 "
            "more): install nvidia-container-toolkit 1.19.1 or newer, or accept them: juju config "
            "worker allow-vulnerable-toolkit=true"
        ),
    ),
    "toolkit ready": (facts(), ""),
}
NOTES = {
    "reboot pending": (
        facts(driver=UPGRADED),
        f"reboot needed (driver {NEW} installed, {OLD} loaded)",
    ),
    "other branch installed": (
        facts(gpu_driver="595-server"),
        (
            "gpu-driver=595-server, and 580-server is installed: juju run worker/0 upgrade-driver "
            "branch=595-server"
        ),
    ),
    "other branch installed, other driver": (
        facts(driver=changed(LOADED, ours=False, branch="", version=""), gpu_driver="580"),
        (f"gpu-driver=580, and {NEW} is somebody else's: juju config worker gpu-driver=auto"),
    ),
    "module missing for the next boot": (
        facts(driver=changed(LOADED, next_kernel=NEXT)),
        (
            f"kernel {NEXT}, which the next boot takes, has no nvidia module: juju run worker/0 "
            "upgrade-driver"
        ),
    ),
    "module missing for the next boot, other driver": (
        facts(driver=changed(LOADED, next_kernel=NEXT, ours=False, branch="", version="")),
        (
            f"kernel {NEXT}, which the next boot takes, has no nvidia module: sudo dkms "
            f"autoinstall -k {NEXT}, or install the driver anew"
        ),
    ),
    "toolkit vulnerable, and allowed": (
        facts(toolkit=runtime("1.17.7"), allow_vulnerable_toolkit=True),
        "vulnerable toolkit 1.17.7 is allowed: CVE-2025-23266, CVE-2025-23267, CVE-2026-24260",
    ),
    "toolkit harmful": (
        facts(toolkit=runtime("1.17.1"), allow_vulnerable_toolkit=True),
        (
            "toolkit 1.17.1 has a fault: Images with CUDA_VERSION and no NVIDIA_REQUIRE_CUDA do "
            "not start: unsupported IMEX channel value: all"
        ),
    ),
    "toolkit newer than tested": (
        facts(toolkit=runtime("1.21.0")),
        "toolkit 1.21.0 is newer than 1.20.0, the newest tested",
    ),
    "toolkit taken back": (
        facts(packaged=Packaged("1.19.1-1", ours=True, bad=("1.20.0-1",))),
        "toolkit 1.20.0-1 was taken back: no container worked with it",
    ),
}
