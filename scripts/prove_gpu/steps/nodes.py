# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The device nodes of real GPUs: by the project's modules, and by their numbers in /dev."""

import os
import pathlib
import re
import stat
import tempfile

from gpu_agent.gpu.kernel import sysfs
from gpu_agent.gpu.vendors import device_nodes
from gpu_runtime.device_nodes import Nodes
from prove_gpu import rig
from prove_gpu.proof import Proof

Numbers = tuple[int, int]

_DEV = pathlib.Path("/dev")
_FOLDERS = (_DEV, _DEV / "dri", _DEV / "nvidia-caps")
# Numbers of NVIDIA's driver (nv-chardev-numbers.h) and of Linux (devices.txt).
_NVIDIA, _CONTROL, _MODESET, _DRM = 195, 255, 254, 226
_MIG_MINORS = pathlib.Path("/proc/driver/nvidia-caps/mig-minors")


def nodes(proof: Proof) -> None:
    """Compare what is found by name with what is there by number."""
    found = rig.inventory()
    majors, there = _majors(), _in_dev()
    uvm, caps = majors.get("nvidia-uvm"), majors.get("nvidia-caps")
    proof.figure("major number of nvidia-uvm", uvm)
    proof.figure("major number of nvidia-caps", caps)

    cards = {
        one: path
        for one, path in there.items()
        if one[0] == _NVIDIA and one[1] not in (_CONTROL, _MODESET)
    }
    capabilities = {one: path for one, path in there.items() if caps and one[0] == caps}
    drm = {one: path for one, path in there.items() if one[0] == _DRM}
    named = {*cards.values(), *capabilities.values(), *drm.values()}
    named |= {path for one, path in there.items() if one == (_NVIDIA, _CONTROL)}
    named |= {path for one, path in there.items() if uvm and one == (uvm, 0)}
    named |= {path for path in there.values() if path == "/dev/kfd"}
    by_name = {*device_nodes.present()}
    for driver, name in (("nvidia-uvm", "nvidia-uvm"), ("nvidia-caps", "nvidia-cap[0-9]+")):
        if driver not in majors:
            proof.left_out(f"nodes of {driver}", "/proc/devices does not have it")
            by_name = {one for one in by_name if not re.fullmatch(name, one)}
    proof.equal("nodes by name, to those by number", _names(named), by_name)
    proof.equal("a node is half made", False, device_nodes.is_half_made())

    for gpu in found.gpus:
        path = f"/dev/nvidia{gpu.minor}"
        proof.equal(f"GPU {gpu.index}: numbers of {path}", (_NVIDIA, gpu.minor), _of(path, there))
    proof.equal("/dev/nvidiactl", (_NVIDIA, _CONTROL), _of("/dev/nvidiactl", there))
    if uvm is not None:
        proof.equal("/dev/nvidia-uvm", (uvm, 0), _of("/dev/nvidia-uvm", there))

    with tempfile.TemporaryDirectory() as folder:
        _, policy = rig.write_policy(pathlib.Path(folder), found)
    seen = Nodes(policy)
    proof.equal("the runtime's whole GPUs", set(cards), seen.gpus())
    others = {one for one, path in there.items() if path.startswith("/dev/nvidia")}
    unknown = {one for one in others if not seen.has(one)}
    proof.equal("nodes of NVIDIA that the runtime takes for no GPU's", set(), unknown)
    watched = {tuple(seen.of(device)) for device in policy.devices if device.watched}
    whole = [gpu for gpu in found.gpus if not gpu.mig_enabled]
    proof.equal("nodes of one GPU alone", {((_NVIDIA, gpu.minor),) for gpu in whole}, watched)
    _render_nodes(proof, found.gpus, seen, there)
    if _MIG_MINORS.exists() and caps:
        minors = re.findall(r" ([0-9]+)$", _MIG_MINORS.read_text(), re.MULTILINE)
        possible = {(caps, int(minor)) for minor in minors}
        proof.equal(
            "capability nodes that the driver does not list", set(), {*capabilities} - possible
        )


def _render_nodes(proof, gpus, seen: Nodes, there: dict[Numbers, str]) -> None:
    """Compare /dev/dri with what /sys says of each GPU."""
    root = pathlib.Path("/")
    for gpu in gpus:
        folder = root / "sys/bus/pci/devices" / gpu.pci_address / "drm"
        told = f"GPU {gpu.index}: nodes in /dev/dri"
        if not folder.is_dir():
            proof.left_out(told, f"{folder} does not exist: nvidia-drm is not loaded")
            continue
        numbers = {}
        for entry in folder.iterdir():
            if (entry / "dev").exists() and re.fullmatch(r"(card|renderD)[0-9]+", entry.name):
                major, minor = (entry / "dev").read_text().strip().split(":")
                numbers[entry.name] = (int(major), int(minor))
        names = sysfs.drm_nodes(root, gpu.pci_address)
        proof.equal(f"{told}, names by /sys", set(numbers), {*names.values()})
        passed = {one for one in numbers.values() if one in there}
        if not passed:
            proof.left_out(told, "/dev/dri has none of them")
            continue
        proof.equal(f"{told}, the runtime's", passed, passed & {*seen.cards})


def _majors() -> dict[str, int]:
    said = pathlib.Path("/proc/devices").read_text().partition("Block devices:")[0]
    return {name: int(number) for number, name in re.findall(r"^ *([0-9]+) (\S+)$", said, re.M)}


def _in_dev() -> dict[Numbers, str]:
    """Return the path of each character device by its numbers, in the folders that matter."""
    found: dict[Numbers, str] = {}
    for folder in filter(pathlib.Path.is_dir, _FOLDERS):
        for path in sorted(folder.iterdir()):
            status = path.lstat()
            if stat.S_ISCHR(status.st_mode):
                number = os.major(status.st_rdev), os.minor(status.st_rdev)
                found[number] = str(path)
    return found


def _of(path: str, there: dict[Numbers, str]) -> Numbers | None:
    return next((one for one, place in there.items() if place == path), None)


def _names(places: set[str]) -> set[str]:
    return {place.rpartition("/")[2] for place in places}
