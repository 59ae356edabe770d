# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The inventory of GPUs and the driver's state against nvidia-smi, /proc and /sys."""

import pathlib
import re
import xml.etree.ElementTree as ET

from gpu_agent.gpu.vendors import detect, registry
from gpu_agent.model.inventory import Gpu, Inventory, State
from machine import packages
from prove_gpu import rig, smi
from prove_gpu.proof import NotRunError, Proof

_PROC = pathlib.Path("/proc/driver/nvidia")
_SYS = pathlib.Path("/sys/bus/pci/devices")
_FIELDS = ("index", "name", "memory.total", "pci.bus_id", "driver_version")


def gpus(proof: Proof) -> None:
    """Compare the inventory, field by field, with each other source that this machine has."""
    found = detect.detect("nvidia")
    proof.equal("state", State.READY.value, found.state.value)
    if found.state is not State.READY:
        return
    proof.equal("detected in a child with a time limit, of any vendor", found, detect.in_time())
    proof.equal("UUIDs are unique", len(found.gpus), len({gpu.uuid for gpu in found.gpus}))
    for gpu in found.gpus:
        vendor = registry.of_card(pathlib.Path("/"), gpu.uuid, gpu.pci_address)
        proof.equal(f"GPU {gpu.index}: vendor, by its id", found.vendor, vendor.name)
    _lost(proof, found)
    sources = _by_smi(proof, found) + _by_proc(proof, found) + _by_sys(proof, found)
    if not sources:
        raise NotRunError("nvidia-smi, /proc/driver/nvidia/gpus and /sys/bus/pci are all missing")


def _lost(proof: Proof, found: Inventory) -> None:
    """Judge GPUs that the driver has and that do not answer.

    In a container of a kind that is not known as one, /sys has the GPUs of others too.
    """
    hidden = [address for address in found.lost if not _has_node(address)]
    if hidden:
        why = f"/sys lists {len(hidden)} GPUs that the driver hides from this container"
        proof.left_out("GPUs of others", why)
    proof.equal("lost GPUs", [], [address for address in found.lost if address not in hidden])


def _has_node(address: str) -> bool:
    path = _PROC / "gpus" / address / "information"
    minor = (
        re.search(r"^Device Minor:\s*([0-9]+)", path.read_text(), re.M) if path.exists() else None
    )
    return minor is not None and pathlib.Path(f"/dev/nvidia{minor.group(1)}").exists()


def _by_smi(proof: Proof, found: Inventory) -> int:
    try:
        rows, whole = smi.query(*_FIELDS), smi.document()
    except NotRunError as why:
        proof.left_out("comparison with nvidia-smi", str(why))
        return 0
    parts = smi.gpus(whole)
    capability = smi.first_known("compute_cap")
    proof.equal("UUIDs, by nvidia-smi", set(rows), {gpu.uuid for gpu in found.gpus})
    proof.equal("UUIDs, by nvidia-smi -q -x", set(parts), {gpu.uuid for gpu in found.gpus})
    cuda = smi.text(whole, "cuda_version")
    if cuda is None:
        proof.left_out("CUDA version", "nvidia-smi -q -x does not report it")
    else:
        proof.equal("CUDA version", cuda, found.cuda)
    for gpu in found.gpus:
        if gpu.uuid in rows and gpu.uuid in parts:
            _one(proof, found, gpu, rows[gpu.uuid], parts[gpu.uuid])
            if capability.get(gpu.uuid):
                name = f"GPU {gpu.index}: compute capability"
                proof.equal(name, capability[gpu.uuid], gpu.arch)
    profiles = {device.uuid: device.profile for gpu in found.gpus for device in gpu.mig}
    proof.equal("MIG devices and their profiles", smi.mig_devices(), profiles)
    return 1


def _one(
    proof: Proof, found: Inventory, gpu: Gpu, row: dict[str, str | None], part: ET.Element
) -> None:
    told = f"GPU {gpu.index}: "
    proof.equal(f"{told}driver", row["driver_version"], found.driver)
    proof.equal(f"{told}index", row["index"], str(gpu.index))
    proof.equal(f"{told}model", row["name"], gpu.model)
    proof.equal(f"{told}model, by -q -x", smi.text(part, "product_name"), gpu.model)
    size = row["memory.total"]
    # nvidia-smi may round what NVML cuts off.
    proof.near(f"{told}memory in MiB", float(size) if size else None, gpu.memory_mib, 1)
    # A domain of eight digits, in upper case.
    address = (row["pci.bus_id"] or "")[-len("0000:00:00.0") :].lower()
    proof.equal(f"{told}PCI address", address, gpu.pci_address)
    minor = smi.number(part, "minor_number")
    if minor is None:
        proof.left_out(f"{told}minor number", "nvidia-smi -q -x does not report it")
    else:
        proof.equal(f"{told}minor number", int(minor), gpu.minor)
    mode = smi.text(part, "mig_mode/current_mig")
    proof.equal(f"{told}MIG mode", mode == "Enabled", gpu.mig_enabled)
    brand = smi.text(part, "product_brand")
    if brand is None:
        proof.left_out(f"{told}brand", "nvidia-smi -q -x does not report it")
    else:
        proof.equal(f"{told}brand", re.sub("[^a-z]", "", brand.lower()), gpu.brand)


def _by_proc(proof: Proof, found: Inventory) -> int:
    """Compare with the driver's own files."""
    version = _PROC / "version"
    if not version.exists():
        proof.left_out("comparison with /proc/driver/nvidia", "it does not exist here")
        return 0
    first = version.read_text().splitlines()[0]
    proof.check("driver, by /proc", f" {found.driver} " in f"{first} ", found.driver, first)
    for gpu in found.gpus:
        path = _PROC / "gpus" / gpu.pci_address / "information"
        if not path.exists():
            proof.left_out(f"GPU {gpu.index}: comparison with /proc", f"{path} does not exist")
            continue
        pairs = (line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        said = {name.strip(): value.strip() for name, value in pairs}
        told = f"GPU {gpu.index}, by /proc: "
        proof.equal(f"{told}UUID", said.get("GPU UUID"), gpu.uuid)
        proof.equal(f"{told}model", said.get("Model"), gpu.model)
        proof.equal(f"{told}minor number", said.get("Device Minor"), str(gpu.minor))
    return 1


def _by_sys(proof: Proof, found: Inventory) -> int:
    if not _SYS.is_dir() or not any(_SYS.iterdir()):
        proof.left_out("comparison with /sys/bus/pci", "it is empty here")
        return 0
    for gpu in found.gpus:
        device = _SYS / gpu.pci_address
        vendor = (device / "vendor").read_text().strip() if device.exists() else "no such device"
        proof.equal(f"GPU {gpu.index}, by /sys: PCI vendor", "0x10de", vendor)
        driver = device / "driver"
        bound = driver.readlink().name if driver.is_symlink() else "none"
        proof.equal(f"GPU {gpu.index}, by /sys: kernel driver", "nvidia", bound)
        if (device / "device").exists():
            proof.figure(f"GPU {gpu.index}: PCI device", (device / "device").read_text().strip())
    return 1


def driver(proof: Proof) -> None:
    """Read the driver's state as the charm does before it decides what to install."""
    found = rig.inventory()
    try:
        seen = registry.find(found.vendor).driver()
    except packages.PackageError as error:
        raise NotRunError(f"dpkg can't be asked: {error}") from error
    version = pathlib.Path("/sys/module/nvidia/version")
    if version.exists():
        proof.equal("loaded module", version.read_text().strip(), found.driver)
    proof.equal("loaded driver", found.driver, seen.loaded)
    if seen.library:
        proof.equal("library beside it", found.driver, seen.library)
    else:
        proof.left_out("library", "no libnvidia-ml.so.1 in /usr/lib/*-linux-gnu")
    for name in ("branch", "version", "container", "bound", "secure_boot", "nvswitch"):
        proof.figure(f"driver: {name}", getattr(seen, name))
