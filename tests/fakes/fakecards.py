# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Simulated GPUs as files: their state, and what /sys and /proc say of them.

The state is one small file a value, below a directory that libnvidia-ml.so.1 reads too
(nvml/nvml.c lists the names). Standard library alone: fakegpu takes this file into its machine.
"""

import dataclasses
import os
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

DRIVER_VERSION = "580.95.05"
CUDA_VERSION = "13.0"
DEFAULT_MODEL = "NVIDIA A100-SXM4-80GB"
# PCI device, MiB, compute capability (of AMD's the three parts of the gfx number); ids from
# pci.ids, memory as nvidia-smi and KFD show it.
MODELS = {
    DEFAULT_MODEL: ("0x20b2", 81920, "8.0"),
    "NVIDIA H100 80GB HBM3": ("0x2330", 81559, "9.0"),
    "NVIDIA L4": ("0x27b8", 23034, "8.9"),
    "Tesla T4": ("0x1eb8", 15360, "7.5"),
    "AMD Instinct MI210": ("0x740f", 65520, "9.0.10"),
    "AMD Instinct MI300X": ("0x74a1", 196592, "9.4.2"),
    "Intel Data Center GPU Flex 170": ("0x56c0", 16384, ""),
    "Stub Trial 1": ("0x0001", 16384, ""),
}
# Of each maker: PCI vendor and class, driver, the model that it is known by here. The stub is that
# of tests/unit/trial/vendor.
MAKERS = {
    "nvidia": ("0x10de", "0x030200", "nvidia", DEFAULT_MODEL),
    "amd": ("0x1002", "0x120000", "amdgpu", "AMD Instinct MI210"),
    "intel": ("0x8086", "0x038000", "xe", "Intel Data Center GPU Flex 170"),
    "stub": ("0x1ae0", "0x030200", "stub", "Stub Trial 1"),
}
MAX_CARDS = 32
MIG_SLICES = 7
# Above what a real desktop has: nodes of these numbers never open a card of the host.
FIRST_DRM = 32
CAPS_MAJOR = 511
KFD_MAJOR = 509
# Drivers whose GPUs have no other nodes than DRM's, but for amdgpu's /dev/kfd.
DRI_DRIVERS = ("amdgpu", "i915", "xe", "stub")
# An MI300 reserves nodes for eight partitions.
MAX_PARTITIONS = 8
# NVIDIA's kernel modules, each with the one that it needs.
MODULES = {
    "nvidia": "",
    "nvidia_uvm": "nvidia",
    "nvidia_modeset": "nvidia",
    "nvidia_drm": "nvidia_modeset",
}
# What `fakegpu set` changes; nvml/health.h has the healthy values.
SETTABLE = """
    uuid model memory-mib memory-used-mib minor partitions pci pci-device pci-class
    compute-capability brand mig-capable mig-max mig-profile persistence-mode power-mw
    power-limit-mw
    temperature temperature-slowdown temperature-shutdown temperature-margin sm-clock-mhz
    sm-clock-max-mhz throttle-reasons pcie-width pcie-width-max pcie-gen pcie-gen-max processes
    graphics-processes ecc-mode ecc-corrected-volatile ecc-corrected-aggregate
    ecc-uncorrected-volatile ecc-uncorrected-aggregate sram-corrected-volatile
    sram-uncorrected-volatile sram-uncorrected-aggregate sram-threshold-exceeded retired-pages
    retired-pages-single-bit retired-pages-pending remapped-rows-corrected
    remapped-rows-uncorrected remapped-rows-pending remapped-rows-failed
    utilisation energy-mj event-types
""".split()
DIRECTORIES = (
    "sys/bus/pci/devices",
    "sys/bus/pci/drivers",
    "sys/class",
    "sys/module",
    "proc/driver",
)


class Link(str):
    """The target of a symbolic link, where other texts are what a file holds."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Card:
    """One PCI function; by default a GPU that is well and bound to nvidia.

    The first 16 hex digits of an AMD card's UUID are its unique_id.
    """

    number: int = 0
    uuid: str = ""
    model: str = DEFAULT_MODEL
    memory_mib: int = 81920
    minor: int = -1
    pci: str = ""
    pci_vendor: str = "0x10de"
    pci_device: str = "0x20b2"
    pci_class: str = "0x030200"
    compute_capability: str = "8.0"
    brand: int = 14  # of nvml.h's nvmlBrandType_t: NVIDIA, as an A100's
    driver: str = "nvidia"  # or amdgpu, i915, xe, vfio-pci, nouveau, none
    # fallen-off-bus, nvml-only (the driver has it and does not answer), taken-away (this container
    # has its nodes no more)
    fault: str = ""
    partitions: int = 1  # of an AMD card
    mig: tuple[str, ...] | None = None  # UUIDs of MIG devices; None while MIG mode is off

    def __post_init__(self):
        number = self.number
        defaults = {
            "uuid": f"GPU-{number:08x}-1111-2222-3333-444444444444",
            "pci": f"0000:{number + 1:02x}:00.0",
            "minor": number,
        }
        for name, value in defaults.items():
            if getattr(self, name) in ("", -1):
                object.__setattr__(self, name, value)

    @property
    def on_bus(self):
        return self.fault != "fallen-off-bus"

    def write(self, state: Path):
        directory = state / "gpus" / str(self.number)
        directory.mkdir(parents=True, exist_ok=True)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in ("number", "mig"):
                put(directory / field.name.replace("_", "-"), str(value))
        shutil.rmtree(directory / "mig", ignore_errors=True)
        for index, mig in enumerate(self.mig or ()):
            put(directory / "mig" / str(index), mig)
        if self.mig is not None:
            (directory / "mig").mkdir(exist_ok=True)

    @classmethod
    def read(cls, directory: Path):
        values = {"number": int(directory.name)}
        for field in dataclasses.fields(cls):
            file = directory / field.name.replace("_", "-")
            if file.is_file():
                text = file.read_text().strip()
                values[field.name] = int(text, 0) if field.type in (int, "int") else text
            elif file.is_dir():
                slices = sorted(file.iterdir(), key=lambda path: int(path.name))
                values["mig"] = tuple(path.read_text().strip() for path in slices)
        return cls(**values)


def maker_card(maker: str, number: int = 0, model: str = "", **values) -> Card:
    """A card of `nvidia`, `amd` or `intel`, of one of the MODELS if it is to be like one."""
    vendor, pci_class, driver, usual = MAKERS[maker]
    device, memory_mib, capability = MODELS.get(model or usual, MODELS[usual])
    given = {
        "model": model or usual,
        "memory_mib": memory_mib,
        "pci_vendor": vendor,
        "pci_device": device,
        "pci_class": pci_class,
        "compute_capability": capability,
        "driver": driver,
    }
    return Card(number=number, **(given | values))


def put(path: Path, text: str):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n" if text else "")


def get(state: Path, name: str, otherwise: str = "") -> str:
    file = state / name
    return file.read_text().strip() if file.exists() else otherwise


def read_cards(state: Path) -> list[Card]:
    directories = (state / "gpus").glob("*")
    return sorted((Card.read(path) for path in directories), key=lambda card: card.number)


def write_state(
    state: Path, cards: Sequence[Card], driver: str = DRIVER_VERSION, cuda: str = CUDA_VERSION
):
    """Begins anew in `state` with these cards, for everything that reads FAKE_GPU_DIR."""
    shutil.rmtree(state, ignore_errors=True)
    put(state / "driver-version", driver)
    put(state / "cuda-version", cuda)
    put(state / "driver", "loaded")
    for card in cards:
        card.write(state)


def render(
    cards: Sequence[Card], version: str | None, users: Mapping[str, int] | None = None
) -> dict[str, str]:
    """What /sys and /proc say of these cards, by path below a root; version None: no nvidia.ko.

    `users` is how many use each of NVIDIA's loaded modules, where these are told one by one.
    """
    files: dict[str, str] = {}
    for card in cards:
        if card.on_bus:
            files.update(render_card(card, version))
    files.update(kfd(cards))
    modules = {card.driver.replace("-", "_") for card in cards if card.driver != "none"}
    if version is None or "nvidia" not in modules:
        modules -= {"nvidia"}
    else:
        files["sys/module/nvidia/version"] = f"{version}\n"
        files["proc/driver/nvidia/version"] = (
            f"NVRM version: NVIDIA UNIX {platform.machine()} Kernel Module  {version}  "
            "Tue Sep 23 10:11:40 UTC 2025\nGCC version:  gcc version 12.3.0\n"
        )
        # With 1, as a driver has it by default, NVIDIA's hook would mount a changed file over the
        # one in the container's own /proc, where only a real driver has one.
        files["proc/driver/nvidia/params"] = "ModifyDeviceFiles: 0\n"
        caps = {"config": 1, "monitor": 2, **mig_minors(cards)}
        files["proc/driver/nvidia-caps/mig-minors"] = "".join(
            f"{name} {minor}\n" for name, minor in caps.items()
        )
    counts = dict.fromkeys(modules, 1) | dict(users or {})
    for name, count in counts.items():
        files[f"sys/module/{name}/refcnt"] = f"{count}\n"
        files[f"sys/module/{name}/initstate"] = "live\n"
    for name in users or {}:
        if needed := MODULES[name]:
            files[f"sys/module/{needed}/holders/{name}"] = Link(f"../../{name}")
    files["proc/modules"] = "".join(
        f"{name} 1048576 {count} - Live 0x0000000000000000\n"
        for name, count in sorted(counts.items())
    )
    return files


def render_card(card: Card, version: str | None) -> dict[str, str]:
    device, driver = f"sys/bus/pci/devices/{card.pci}", card.driver
    if driver == "nvidia" and version is None:
        driver = "none"
    files = {
        f"{device}/vendor": f"{card.pci_vendor}\n",
        f"{device}/device": f"{card.pci_device}\n",
        f"{device}/class": f"{card.pci_class}\n",
        f"{device}/numa_node": "0\n",
        f"{device}/subsystem": Link("../.."),  # by which LXD takes its DRM card for one of PCI
        f"{device}/uevent": f"PCI_CLASS={int(card.pci_class, 16):X}\n"
        f"PCI_ID={card.pci_vendor[2:].upper()}:{card.pci_device[2:].upper()}\n"
        f"PCI_SLOT_NAME={card.pci}\n",
    }
    if driver != "none":
        files[f"{device}/driver"] = Link(f"../../drivers/{driver}")
        files[f"sys/bus/pci/drivers/{driver}/module"] = Link(
            f"../../../../module/{driver.replace('-', '_')}"
        )
    if driver in ("nvidia", "nouveau", *DRI_DRIVERS):
        for name, minor in drm(card):
            files[f"{device}/drm/{name}/dev"] = f"226:{minor}\n"
            files[f"{device}/drm/{name}/device"] = Link(f"../../../{card.pci}")
            files[f"sys/class/drm/{name}"] = Link(f"../../bus/pci/devices/{card.pci}/drm/{name}")
    files.update(told_by_driver(card, device))
    if driver == "nvidia":
        files[f"proc/driver/nvidia/gpus/{card.pci}/information"] = (
            f"Model: \t\t {card.model}\nGPU UUID: \t {card.uuid}\n"
            f"Bus Location: \t {card.pci}\nDevice Minor: \t {card.minor}\n"
        )
    return files


def drm(card: Card) -> tuple[tuple[str, int], tuple[str, int]]:
    primary, node = FIRST_DRM + card.number, 128 + FIRST_DRM + card.number
    return (f"card{primary}", primary), (f"renderD{node}", node)


def told_by_driver(card: Card, device: str) -> dict[str, str]:
    """What amdgpu, i915 and xe put on the card's own folder: its name or its memory."""
    size = f"{card.memory_mib << 20}\n"
    if card.driver == "amdgpu":
        return {f"{device}/product_name": f"{card.model}\n"}
    if card.memory_mib and card.driver == "i915":
        return {f"{device}/drm/{drm(card)[0][0]}/lmem_total_bytes": size}
    if card.memory_mib and card.driver == "xe":
        return {f"{device}/tile0/physical_vram_size_bytes": size}
    return {}


def partitions(card: Card) -> list[tuple[str, int]]:
    """Name and minor of each render node that an AMD card computes through, its own one first."""
    more = 128 + FIRST_DRM + MAX_CARDS + MAX_PARTITIONS * card.number
    rest = [(f"renderD{more + n}", more + n) for n in range(1, card.partitions)]
    return [drm(card)[1], *rest]


def kfd(cards: Sequence[Card]) -> dict[str, str]:
    """KFD's topology: the processor, then each partition of each card, as an MI300 tells it."""
    amd = [card for card in cards if card.driver == "amdgpu" and card.on_bus]
    if not amd:
        return {}
    nodes = ["cpu_cores_count 16\nsimd_count 0\nlocation_id 0\ndomain 0\ndrm_render_minor 0\n"]
    banks = [f"heap_type 0\nsize_in_bytes {64 << 30}\n"]
    for card in amd:
        domain, bus, device, function = (int(part, 16) for part in re.split("[:.]", card.pci))
        major, minor, step = (int(part) for part in card.compute_capability.split("."))
        for number, (_, render) in enumerate(partitions(card) if not card.fault else ()):
            nodes.append(
                f"cpu_cores_count 0\nsimd_count 416\n"
                f"gfx_target_version {major * 10000 + minor * 100 + step}\nvendor_id 4098\n"
                f"device_id {int(card.pci_device, 16)}\n"
                f"location_id {bus << 8 | device << 3 | function + number}\ndomain {domain}\n"
                f"drm_render_minor {render}\n"
                f"unique_id {int(card.uuid[4:].replace('-', '')[:16], 16)}\n"
            )
            banks.append(
                f"heap_type 1\nsize_in_bytes {(card.memory_mib << 20) // card.partitions}\n"
            )
    top = "sys/class/kfd/kfd/topology/nodes"
    files = {f"{top}/{n}/properties": text for n, text in enumerate(nodes)}
    files |= {f"{top}/{n}/mem_banks/0/properties": text for n, text in enumerate(banks)}
    return files | {f"{top}/{n}/name": "ip discovery\n" for n in range(1, len(nodes))}


def dri_nodes(cards: Sequence[Card]) -> dict[str, tuple[int, int, str]]:
    """AMD's and Intel's nodes below /dev: major, minor and group; made 0660 as udev does."""
    nodes: dict[str, tuple[int, int, str]] = {}
    for card in cards:
        if card.driver in DRI_DRIVERS and card.on_bus:
            name, minor = drm(card)[0]
            nodes[f"dri/{name}"] = (226, minor, "video")
            for name, minor in partitions(card):
                nodes[f"dri/{name}"] = (226, minor, "render")
            if card.driver == "amdgpu":
                nodes["kfd"] = (KFD_MAJOR, 0, "render")
    return nodes


def dri_links(cards: Sequence[Card]) -> dict[str, Link]:
    """udev's links to AMD's and Intel's nodes, below /dev."""
    return {
        f"dri/by-path/pci-{card.pci}-{kind}": Link(f"../{name}")
        for card in cards
        if card.driver in DRI_DRIVERS and card.on_bus
        for kind, (name, _) in zip(("card", "render"), drm(card), strict=True)
    }


def mig_minors(cards: Sequence[Card]) -> dict[str, int]:
    """Capability names and minors; slice n is GPU instance n + 1, as in nvml/health.h."""
    minors = {}
    for card in cards:
        for index in range(len(card.mig or ()) if card.on_bus and card.driver == "nvidia" else 0):
            minor = 3 + 2 * (MIG_SLICES * card.number + index)
            instance = f"gpu{card.minor}/gi{index + 1}"
            minors |= {f"{instance}/access": minor, f"{instance}/ci0/access": minor + 1}
    return minors


def sync(root: Path, files: dict[str, str]):
    """Writes what differs below `root`, and removes all else from the DIRECTORIES there."""
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
        for path in sorted((root / name).rglob("*"), reverse=True):
            if path.is_symlink() or path.is_file():
                if str(path.relative_to(root)) not in files:
                    path.unlink()
            elif not any(path.iterdir()):
                path.rmdir()
    write_links(root, {name: text for name, text in files.items() if isinstance(text, Link)})
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, Link) and (not path.exists() or path.read_text() != content):
            path.write_text(content)


def write_links(root: Path, links: dict[str, Link]):
    """Makes the symbolic links that are not there yet below `root`."""
    for name, target in links.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink() or os.readlink(path) != target:
            path.unlink(missing_ok=True)
            path.symlink_to(target)
