# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What there is of NVIDIA's driver, from trees like a machine's own, and what its packages say."""

import json
import shutil

import pytest

from gpu_agent.gpu.vendors.nvidia import driver_packages, driver_state, kernel_modules
from gpu_agent.model import errors
from gpu_agent.model.host import Driver
from machine import packages, process
from tests.fakes.kernelmodule import module

KERNEL = "6.8.0-60-generic"
NEXT = "6.8.0-62-generic"
BOOT = "0653c282-290e-4237-a691-94b060226bda"
PROC_VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs)\n"
    "GCC version:  gcc version 13.3.0\n"
)
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def dpkg(monkeypatch):
    """What dpkg has, and which of it came for the driver."""
    have: dict[str, str] = {}
    ours: set[str] = set()
    monkeypatch.setattr(packages, "installed", lambda *globs: dict(have))
    monkeypatch.setattr(
        packages,
        "owned",
        lambda owner: {n: have[n] for n in ours & have.keys() if owner == "driver"},
    )
    monkeypatch.setattr(packages, "begun", lambda owner: ours - have.keys())
    return have, ours


@pytest.fixture
def root(tmp_path, dpkg):
    """A machine with a kernel and nothing of NVIDIA's."""
    put(tmp_path / "proc/sys/kernel/osrelease", f"{KERNEL}\n")
    put(tmp_path / "proc/sys/kernel/random/boot_id", f"{BOOT}\n")
    put(tmp_path / f"boot/vmlinuz-{KERNEL}")
    return tmp_path


def put(path, content: str | bytes = ""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def test_machine_without_any(root):
    assert driver_state.look(root) == Driver(kernel=KERNEL, next_kernel=KERNEL)


def test_what_a_killed_hook_has_left_by_halves_is_ours(root, dpkg):
    put(root / LIBRARIES / "libnvidia-ml.so.580.65.06")
    assert not driver_state.look(root).ours
    have, ours = dpkg
    ours.add("libnvidia-compute-580-server")
    assert driver_state.look(root).ours
    have["libnvidia-compute-570"] = "570.1.2-0ubuntu1"  # somebody else's is whole
    assert not driver_state.look(root).ours


def test_loaded_module_by_either_file(root):
    put(root / "proc/driver/nvidia/version", PROC_VERSION)
    assert driver_state.look(root).loaded == "580.65.06"
    put(root / "sys/module/nvidia/version", "580.95.05\n")
    assert driver_state.look(root).loaded == "580.95.05"


@pytest.mark.parametrize(
    ("name", "content", "version"),
    [
        ("kernel/nvidia-580srv-open/nvidia.ko", module("580.65.06"), "580.65.06"),
        ("kernel/nvidia-580srv-open/nvidia.ko", b"no ELF file", ""),
        ("kernel/nvidia-580srv-open/nvidia.ko", module("580.65.06")[:90], ""),
        ("updates/dkms/nvidia.ko.zst", b"", "570.1.2"),
        ("kernel/somewhere/else/nvidia.ko.xz", b"", ""),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_module_on_the_disk(root, name, content, version, listed):
    put(root / f"lib/modules/{KERNEL}" / name, content)
    (root / f"var/lib/dkms/nvidia/570.1.2/{KERNEL}/x86_64").mkdir(parents=True)
    if listed:
        others = "kernel/x/not-nvidia.ko: a\nkernel/nvidia-580srv/nvidia-drm.ko: b\n"
        put(root / f"lib/modules/{KERNEL}/modules.dep", f"{others}{name}: kernel/c.ko\n")
    elif "else" in name:
        assert driver_state.look(root).modules == ()
        return
    assert driver_state.look(root).modules == ((KERNEL, version),)


def test_module_that_was_removed_is_none_though_it_is_listed(root):
    put(root / f"lib/modules/{KERNEL}/modules.dep", "kernel/nvidia-580/nvidia.ko:\n")
    assert driver_state.look(root).modules == ()


def test_next_kernel_is_where_the_link_leads_else_the_highest(root):
    for name in ("6.8.0-9-generic", NEXT, "6.8.0-99-generic.old"):
        put(root / f"boot/vmlinuz-{name}")
    put(root / f"lib/modules/{NEXT}/kernel/nvidia-580srv/nvidia.ko", module("580.95.05"))
    found = driver_state.look(root)
    assert (found.next_kernel, found.modules) == (NEXT, ((NEXT, "580.95.05"),))
    (root / "boot/vmlinuz").symlink_to(f"vmlinuz-{KERNEL}")
    assert driver_state.look(root).next_kernel == KERNEL
    (root / "boot/vmlinuz").unlink()
    (root / "boot/vmlinuz").symlink_to("vmlinuz-5.15.0-1-gone")
    assert driver_state.look(root).next_kernel == NEXT


def test_no_boot_folder(root):
    (root / f"boot/vmlinuz-{KERNEL}").unlink()
    (root / "boot").rmdir()
    assert driver_state.look(root).next_kernel == ""


def test_container_has_no_kernel_of_its_own(root):
    put(root / "run/systemd/container", "lxc")
    put(root / f"lib/modules/{KERNEL}/kernel/nvidia-580srv/nvidia.ko", module("580.95.05"))
    put(root / "sys/module/nvidia/version", "580.65.06\n")
    nvswitch(root)
    assert driver_state.look(root) == Driver(container=True, kernel=KERNEL, loaded="580.65.06")


@pytest.mark.parametrize("linked", [True, False])
def test_library(root, linked):
    put(root / LIBRARIES / "libnvidia-ml.so.580.65.06")
    if linked:
        (root / LIBRARIES / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.65.06")
        put(root / LIBRARIES / "libnvidia-ml.so.570.1.2")
    else:
        put(root / LIBRARIES / "libnvidia-ml.so.1")
    assert driver_state.look(root).library == "580.65.06"


def test_library_without_its_file_or_a_version(root):
    (root / LIBRARIES).mkdir(parents=True)
    (root / LIBRARIES / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.65.06")
    assert driver_state.look(root).library == ""
    put(root / LIBRARIES / "libnvidia-ml.so.580.65.06")
    assert driver_state.look(root).library == "580.65.06"
    (root / LIBRARIES / "libnvidia-ml.so.580.65.06").rename(root / LIBRARIES / "x")
    (root / LIBRARIES / "libnvidia-ml.so.1").unlink()
    put(root / LIBRARIES / "libnvidia-ml.so.1")
    assert driver_state.look(root).library == ""


MOUNT = "101 90 0:50 / /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.65.06 ro - tmpfs none rw\n"


@pytest.mark.parametrize(
    ("path", "content", "bound"),
    [
        ("etc/ld.so.conf.d/00-lxdcdi.conf", "", True),
        ("proc/self/mountinfo", f"1 0 8:1 / / rw - ext4 x rw\n{MOUNT}", True),
        ("proc/self/mountinfo", MOUNT.replace("libnvidia-ml", "libc"), False),
        ("etc/ld.so.conf.d/x86_64-linux-gnu.conf", "", False),
    ],
)
def test_libraries_that_lxd_has_bound_in(root, path, content, bound):
    put(root / path, content)
    assert not driver_state.look(root).bound
    put(root / "run/systemd/container", "lxc")
    assert driver_state.look(root).bound is bound


@pytest.mark.parametrize(
    ("content", "on"),
    [(b"\6\0\0\0\1", True), (b"\6\0\0\0\0", False), (b"\6\0\0\0", False), (None, False)],
)
def test_secure_boot(root, content, on):
    if content is not None:
        put(root / SECURE_BOOT, content)
    assert driver_state.look(root).secure_boot is on


def nvswitch(root, vendor="0x10de", kind="0x068000"):
    put(root / "sys/bus/pci/devices/0000:05:00.0/vendor", f"{vendor}\n")
    put(root / "sys/bus/pci/devices/0000:05:00.0/class", f"{kind}\n")


@pytest.mark.parametrize(
    ("vendor", "kind", "found"),
    [
        ("0x10de", "0x068000", True),
        ("0x10de", "0x030200", False),
        ("0x15b3", "0x068000", False),
        ("", "", False),
    ],
)
def test_nvswitch(root, vendor, kind, found):
    nvswitch(root, vendor, kind)
    assert driver_state.look(root).nvswitch is found


def test_what_modprobe_said_lasts_until_the_next_boot(root, monkeypatch):
    said = "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"
    record = root / "var/lib/gpu-ci/driver-refused.json"
    put(record, json.dumps({"boot": BOOT, "said": said}))
    assert driver_state.look(root).refused == said
    put(root / "proc/sys/kernel/random/boot_id", "another\n")
    assert driver_state.look(root).refused == ""


@pytest.mark.parametrize(
    "name", ["sys/module/nvidia/version", "proc/sys/kernel/osrelease", SECURE_BOOT, "boot"]
)
def test_what_cannot_be_read_is_no_absence(root, name):
    path = root / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(path)
    with pytest.raises(errors.UnknownError, match="Too many levels of symbolic links"):
        driver_state.look(root)


SERVER = "580.65.06-0ubuntu0.24.04.1"
UBUNTU = {
    "libnvidia-compute-580-server": SERVER,
    "nvidia-utils-580-server": SERVER,
    "nvidia-kernel-common-580-server": SERVER,
}


@pytest.mark.parametrize(
    ("have", "branch", "version"),
    [
        ({}, "", ""),
        (UBUNTU, "580-server", "580.65.06"),
        (UBUNTU | {"nvidia-headless-no-dkms-580-server": SERVER}, "580-server", "580.65.06"),
        (
            UBUNTU | {"nvidia-headless-no-dkms-580-server-open": SERVER},
            "580-server-open",
            "580.65.06",
        ),
        (
            UBUNTU | {f"linux-modules-nvidia-580-server-open-{KERNEL}": "6.8.0-60.63+1"},
            "580-server-open",
            "580.65.06",
        ),
        # The modules of an old kernel are there still.
        (
            UBUNTU | {f"linux-modules-nvidia-535-server-open-{KERNEL}": "6.8.0-60.63"},
            "580-server",
            "580.65.06",
        ),
        ({f"linux-modules-nvidia-535-server-{KERNEL}": "6.8.0-60.63"}, "535-server", ""),
        ({"linux-modules-nvidia-580-open-oem-24.04": "6.8.0-60.63"}, "580-open", ""),
        ({"libnvidia-compute-550": "550.1.2-0ubuntu1"}, "550", "550.1.2"),
        # An old branch's name stands for a newer one.
        (
            {
                "libnvidia-compute-565-server": "580.65.06-0ubuntu1",
                "libnvidia-compute-580-server": "580.65.06-0ubuntu1",
            },
            "580-server",
            "580.65.06",
        ),
        # NVIDIA's own repository.
        ({"libnvidia-compute": "1:595.1.2-1ubuntu1"}, "595", "595.1.2"),
        (
            {"nvidia-driver-580-open": "580.65.06-1", "nvidia-open": "580.65.06-1"},
            "580-open",
            "580.65.06",
        ),
    ],
)
def test_branch_and_version_of_the_packages(root, dpkg, have, branch, version):
    dpkg[0].update(have)
    found = driver_state.look(root)
    assert (found.branch, found.version, found.ours) == (branch, version, False)
    dpkg[1].update(have)
    assert driver_state.look(root).ours is bool(have)


RECOMMENDED = "nvidia-driver-580-server-open linux-modules-nvidia-580-server-open-generic\n"
LISTED = """\
nvidia-driver-595-server, (kernel modules provided by nvidia-dkms-595-server)
nvidia-driver-590-open, (kernel modules provided by linux-modules-nvidia-590-open-generic)
nvidia-driver-580-server, (kernel modules provided by linux-modules-nvidia-580-server-generic)
nvidia-driver-535-server, (kernel modules provided by linux-modules-nvidia-535-server-generic)
"""
OLD = (
    "nvidia-headless-no-dkms-535-server, "
    "(kernel modules provided by linux-modules-nvidia-535-server-generic-hwe-22.04)\n"
)


@pytest.fixture
def ubuntu_drivers(monkeypatch):
    """What ubuntu-drivers answers, by whether it is asked for what it recommends."""
    answers: dict[bool, process.Completed] = {}
    monkeypatch.setattr(packages, "ensure_installed", lambda name: name == "ubuntu-drivers-common")
    monkeypatch.setattr(process, "run", lambda argv, **_: answers["--recommended" in argv])

    def answer(recommended, listed, code=0):
        answers[True] = process.Completed(code, recommended, "")
        answers[False] = process.Completed(0, listed, "")

    return answer


@pytest.mark.parametrize(
    ("recommended", "listed", "code", "branch", "chosen"),
    [
        (RECOMMENDED, LISTED, 0, "", ("580-server-open", "580-server-open-generic")),
        # Not one whose modules would be compiled here, as long as there is another.
        ("", LISTED, 0, "", ("580-server", "580-server-generic")),
        ("", LISTED, 2, "", ("580-server", "580-server-generic")),
        (RECOMMENDED, LISTED, 0, "535-server", ("535-server", "535-server-generic")),
        (RECOMMENDED, LISTED, 0, "590-open", ("590-open", "590-open-generic")),
        ("", OLD, 0, "", ("535-server", "535-server-generic-hwe-22.04")),
        ("", LISTED.splitlines()[1], 0, "", ("590-open", "590-open-generic")),
        ("udevadm hwdb is deprecated\n" + RECOMMENDED, "", 0, "", ("580-server-open",) * 2),
    ],
)
def test_recommended_branch(ubuntu_drivers, recommended, listed, code, branch, chosen):
    ubuntu_drivers(recommended, listed, code)
    found, meta = driver_packages.recommended(branch)
    assert found == chosen[0]
    assert meta.removesuffix("-generic").startswith("linux-modules-nvidia-" + chosen[0])
    assert chosen[1] in meta


def test_branch_that_is_not_for_this_machine(ubuntu_drivers):
    ubuntu_drivers(RECOMMENDED, LISTED)
    with pytest.raises(
        driver_packages.DriverError, match=r"^570-server is not an NVIDIA driver .* 580-server,"
    ):
        driver_packages.recommended("570-server")


def test_no_driver_for_this_machine(ubuntu_drivers):
    ubuntu_drivers("", "Please update your kernel\n")
    with pytest.raises(
        driver_packages.DriverError, match="'ubuntu-drivers list --gpgpu'"
    ) as caught:
        driver_packages.recommended("")
    assert not caught.value.passes


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("580.65.06-0ubuntu0.24.04.1", "580.65.06"),
        ("1:595.71.05-1ubuntu1", "595.71.05"),
        ("580.65.06", "580.65.06"),
        ("580.65-0ubuntu1", "580.65"),
        ("unknown", ""),
    ],
)
def test_version_of_nvidia_in_a_package_version(version, upstream):
    assert driver_packages.upstream(version) == upstream


def test_kernels_are_in_the_order_of_their_numbers():
    names = ["6.8.0-9-generic", "6.8.0-60-generic", "6.11.0-1-generic", "6.8.0-60-lowlatency"]
    assert sorted(names, key=kernel_modules._natural) == [names[0], names[1], names[3], names[2]]
