# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""AMD's GPUs, as PCI, KFD and /dev tell of them."""

import errno
import functools
import io
import os
import re

import pytest

from gpu_agent.gpu.vendors import detect
from gpu_agent.model.inventory import Gpu, Inventory, State
from tests.unit.gpu_rig import NODES, PCI_IDS, amd, make_place, put, uuids


@pytest.fixture
def place(tmp_path):
    return functools.partial(make_place, tmp_path)


def change(root, node, **properties):
    """Gives a node of KFD's other properties; None takes one away."""
    file = root / NODES / str(node) / "properties"
    text = file.read_text()
    for name, value in properties.items():
        text = re.sub(rf"^{name} .*\n", "", text, flags=re.MULTILINE)
        text += "" if value is None else f"{name} {value}\n"
    file.write_text(text)


def test_amd_gpus_are_what_kfd_lists(place):
    assert detect.detect("amd", place(amd(), amd(1))) == Inventory(
        State.READY,
        tuple(
            Gpu(
                index=index,
                uuid=f"GPU-0000000{index}11112222",
                vendor="amd",
                model="AMD Instinct MI210",
                memory_mib=65520,
                pci_address=f"0000:0{index + 1}:00.0",
                minor=-1,
                nodes=("/dev/kfd", f"/dev/dri/by-path/pci-0000:0{index + 1}:00.0-render"),
            )
            for index in range(2)
        ),
        vendor="amd",
    )


def test_partitions_as_an_mi308_tells_them_are_gpus_of_their_own(place):
    """Numbers as two cards with four partitions each had them, the second in PCI domain 1.

    They are from github.com/ROCm/k8s-device-plugin, testdata/topology-parsing-mi308. Each card
    has eight render nodes; those that KFD does not name belong to no partition.
    """
    cards = [amd(pci="0000:0a:00.0", partitions=4), amd(1, pci="0001:0b:00.0", partitions=4)]
    root = place(*cards)
    for node in range(8):
        card, partition = divmod(node, 4)
        change(
            root,
            node + 1,
            location_id=(2560, 2816)[card] + partition,
            domain=card,
            unique_id=(598046273873802902, 17466021589395472075)[card],
            drm_render_minor=(128, 160)[card] + partition,
        )
        bank = f"{NODES}/{node + 1}/mem_banks/0/properties"
        put(root, bank, "heap_type 1\nsize_in_bytes 51539607552\nflags 0\nwidth 8192\n")
    for card, first in zip(cards, (128, 160), strict=True):
        for minor in range(first, first + 8):
            put(root, f"dev/dri/renderD{minor}", "")
        link = root / f"dev/dri/by-path/pci-{card.pci}-render"
        link.unlink()
        link.symlink_to(f"../renderD{first}")
    found = detect.detect("amd", root)
    assert uuids(found) == [
        f"GPU-{unique}-{partition}"
        for unique in ("084cafeae17e7696", "f263c618bb387ecb")
        for partition in range(4)
    ]
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    assert {gpu.memory_mib for gpu in found.gpus} == {49152}
    assert [gpu.pci_address for gpu in found.gpus] == ["0000:0a:00.0"] * 4 + ["0001:0b:00.0"] * 4
    assert [gpu.nodes[1].removeprefix("/dev/dri/") for gpu in found.gpus] == [
        *("by-path/pci-0000:0a:00.0-render", "renderD129", "renderD130", "renderD131"),
        *("by-path/pci-0001:0b:00.0-render", "renderD161", "renderD162", "renderD163"),
    ]
    assert found.lost == ()


def test_a_partition_may_stand_in_the_highest_bits_of_the_location(place):
    root = place(amd(partitions=2), amd(1))
    change(root, 2, location_id=(1 << 28) | (1 << 8))
    first, second = "GPU-0000000011112222-0", "GPU-0000000011112222-1"
    assert uuids(detect.detect("amd", root)) == [first, second, "GPU-0000000111112222"]


def test_partitions_with_ids_of_their_own_keep_them(place):
    root = place(amd(partitions=2))
    change(root, 2, unique_id=0xABC)
    found = detect.detect("amd", root)
    assert uuids(found) == ["GPU-0000000011112222", "GPU-0000000000000abc"]


@pytest.mark.parametrize("unique_id", [0, None])
def test_a_card_without_an_id_is_called_by_its_place(place, unique_id):
    root = place(amd(), amd(1, partitions=2))
    for node in (1, 2, 3):
        change(root, node, unique_id=unique_id)
    assert uuids(detect.detect("amd", root)) == [
        "PCI-0000:01:00.0",
        "PCI-0000:02:00.0",
        "PCI-0000:02:00.1",
    ]


def test_two_nodes_with_one_render_node_are_one_gpu(place):
    root = place(amd(partitions=2))
    change(root, 2, drm_render_minor=160)
    assert len(detect.detect("amd", root).gpus) == 1


def test_memory_is_the_cards_own_in_sight_or_not(place):
    root = place(amd())
    for bank, (heap, size) in enumerate([(0, 1 << 40), (1, 1 << 28), (2, 3 << 28), (4, 1 << 16)]):
        text = f"heap_type {heap}\nsize_in_bytes {size}\n"
        put(root, f"{NODES}/1/mem_banks/{bank}/properties", text)
    assert detect.detect("amd", root).gpus[0].memory_mib == 1024


@pytest.mark.parametrize(
    ("product_name", "ids", "target", "model"),
    [
        ("AMD Instinct MI210\n", "libdrm pci", "90010", "AMD Instinct MI210"),
        ("Instinct MI100", "", "90010", "AMD Instinct MI100"),
        ("\n", "libdrm pci", "110000", "AMD Radeon RX 7900 XTX"),
        (None, "pci", "110000", "AMD Radeon RX 7900 XT/7900 XTX"),
        (None, "", "90402", "AMD gfx942"),
        (None, "", "90010", "AMD gfx90a"),
        (None, "", "120001", "AMD gfx1201"),
        (None, "", None, "AMD 0x744c"),
    ],
)
def test_amds_names_come_from_who_knows_best(place, product_name, ids, target, model):
    root = place(amd(pci_device="0x744c"))
    device = "sys/bus/pci/devices/0000:01:00.0"
    put(root, f"{device}/revision", "0xc8\n")
    put(root, f"{device}/product_name", product_name or "")
    if product_name is None:
        (root / device / "product_name").unlink()
    if "libdrm" in ids:
        lines = "# List\n744C,\tC4,\tAMD Radeon RX 7900 XT\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n"
        put(root, "usr/share/libdrm/amdgpu.ids", lines)
    if "pci" in ids:
        put(root, "usr/share/misc/pci.ids", PCI_IDS)
    change(root, 1, gfx_target_version=target)
    assert detect.detect("amd", root).gpus[0].model == model


def test_amdgpu_from_its_own_package_has_a_version(place):
    root = place(amd())
    put(root, "sys/module/amdgpu/version", "6.16.6\n")
    assert detect.detect("amd", root).driver == "6.16.6"


@pytest.mark.parametrize(
    ("cards", "state", "detail"),
    [
        ([], State.NO_GPU, ""),
        ([amd(driver="none")], State.NO_DRIVER, "0000:01:00.0"),
        ([amd(driver="vfio-pci"), amd(1, driver="none")], State.NO_DRIVER, "0000:02:00.0"),
        ([amd(driver="vfio-pci")], State.VFIO, "0000:01:00.0"),
        ([amd(driver="gim")], State.VFIO, "0000:01:00.0"),
        # A server's display chip, on which no ROCm ever ran.
        ([amd(driver="radeon", pci_class="0x030000")], State.NO_GPU, ""),
        ([amd(driver="none", pci_class="0x040300")], State.NO_GPU, ""),  # its audio function
        ([amd(fault="nvml-only")], State.NO_KFD, "0000:01:00.0"),
    ],
)
def test_why_there_is_no_amd_gpu(place, cards, state, detail):
    expected = Inventory(state, detail=detail, vendor="amd")
    assert detect.detect("amd", place(*cards)) == expected


@pytest.mark.parametrize("pci_class", ["0x030000", "0x038000", "0x120000"])
def test_every_class_that_amd_gives_its_gpus_is_found(place, pci_class):
    assert detect.detect("amd", place(amd(pci_class=pci_class))).state is State.READY


def test_without_dev_kfd_no_amd_gpu_computes(place):
    root = place(amd(), amd(1))
    (root / "dev/kfd").unlink()
    found = detect.detect("amd", root)
    assert (found.state, found.detail) == (State.NO_KFD, "0000:01:00.0, 0000:02:00.0")


def test_an_amd_card_that_kfd_does_not_list_is_lost(place):
    found = detect.detect("amd", place(amd(fault="nvml-only"), amd(1)))
    assert (found.state, found.lost) == (State.READY, ("0000:01:00.0",))
    assert uuids(found) == ["GPU-0000000111112222"]


def test_a_container_has_the_amd_gpus_that_were_passed_in(place):
    """KFD speaks in a container only of those; its files of the others can't be read."""
    cards = [amd(), amd(1), amd(2)]
    root = place(*cards, dev=cards[1:2], container=True)
    for node in (1, 3):
        (root / NODES / str(node) / "properties").unlink()
    found = detect.detect("amd", root)
    assert uuids(found) == ["GPU-0000000111112222"]
    assert (found.state, found.lost) == (State.READY, ())


def test_a_container_may_have_been_given_one_partition(place):
    root = place(amd(partitions=4), container=True)
    for node in (root / "dev/dri").glob("renderD*"):
        if not node.name.endswith("3"):
            node.unlink()
    found = detect.detect("amd", root)
    assert len(found.gpus) == 1
    assert found.gpus[0].uuid.startswith("GPU-0000000011112222")


def test_a_container_without_amd_nodes_is_told_from_one_without_kfd(place):
    root = place(amd(), container=True)
    (root / "dev/kfd").unlink()
    assert detect.detect("amd", root).state is State.NO_KFD
    for node in (root / "dev/dri").glob("renderD*"):
        node.unlink()
    found = detect.detect("amd", root)
    assert found == Inventory(State.NOT_PASSED, detail="0000:01:00.0", vendor="amd")


@pytest.mark.parametrize(
    ("metrics", "integrated"),
    [(b"\x78\x00\x01\x03", False), (b"\x80\x00\x02\x04", True), (b"\x08\x01\x03\x00", True)],
)
def test_amds_processors_are_taken_only_when_asked_for(place, metrics, integrated):
    root = place(amd())
    put(root, "sys/bus/pci/devices/0000:01:00.0/gpu_metrics", metrics)
    found = detect.detect(root=root)
    assert found.state is (State.NO_GPU if integrated else State.READY)
    if integrated:
        assert "gpu-vendor=amd would use it" in found.detail
    assert detect.detect("amd", root).state is State.READY


def test_a_card_beside_a_processors_gpu_is_taken_alone(place):
    root = place(amd(), amd(1))
    put(root, "sys/bus/pci/devices/0000:02:00.0/gpu_metrics", b"\x80\x00\x02\x04")
    assert uuids(detect.detect(root=root)) == ["GPU-0000000011112222"]
    assert len(detect.detect("amd", root).gpus) == 2


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_no_want_of_the_reader_is_taken_for_absence(place, monkeypatch, number):
    """Wherever it comes in a look: a GPU not seen would be taken from tasks."""
    root = place(amd(), amd(1))
    put(root, "sys/bus/pci/devices/0000:01:00.0/gpu_metrics", b"\x78\x00\x01\x03")
    whole = detect.detect(root=root)
    opened, fatal, real = [], set(), io.open

    def count(path, *args, **options):
        opened.append(path)
        if len(opened) in fatal:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(io, "open", count)
    assert detect.detect(root=root) == whole
    places = len(opened)
    assert places > 10
    for fatal_place in range(1, places + 1):
        opened.clear()
        fatal = {fatal_place}
        with pytest.raises(OSError, match=os.strerror(number)):
            detect.detect(root=root)


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EPERM, errno.EIO, errno.EINVAL])
def test_a_driver_that_refuses_an_answer_has_none(place, monkeypatch, number):
    """The card's own faults, for which the worker goes on without that card."""
    root, real = place(amd(), amd(1)), io.open

    def refuse(path, *args, **options):
        if str(path).endswith(f"{NODES}/2/properties"):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(io, "open", refuse)
    found = detect.detect("amd", root)
    assert (len(found.gpus), found.lost) == (1, ("0000:02:00.0",))
