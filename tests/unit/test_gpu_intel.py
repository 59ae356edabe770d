# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Intel's GPUs, as PCI, DRM and /dev tell of them."""

import functools

import pytest

from gpu_agent.gpu.vendors import detect
from gpu_agent.model.inventory import Gpu, Inventory, State
from tests.unit.gpu_rig import PCI_IDS, integrated, intel, make_place, put, uuids


@pytest.fixture
def place(tmp_path):
    return functools.partial(make_place, tmp_path)


@pytest.mark.parametrize("driver", ["xe", "i915"])
def test_intel_gpus_are_what_their_drivers_show(place, driver):
    root = place(intel(driver=driver), intel(1, driver=driver))
    assert detect.detect("intel", root) == Inventory(
        State.READY,
        tuple(
            Gpu(
                index=index,
                uuid=f"PCI-0000:0{index + 1}:00.0",
                vendor="intel",
                model="Intel 0x56c0",
                memory_mib=16384,
                pci_address=f"0000:0{index + 1}:00.0",
                minor=-1,
                nodes=tuple(
                    f"/dev/dri/by-path/pci-0000:0{index + 1}:00.0-{kind}"
                    for kind in ("card", "render")
                ),
            )
            for index in range(2)
        ),
        vendor="intel",
    )


def test_a_card_with_two_tiles_has_the_memory_of_both(place):
    root = place(intel())
    put(root, "sys/bus/pci/devices/0000:01:00.0/tile1/physical_vram_size_bytes", f"{1 << 30}\n")
    assert detect.detect("intel", root).gpus[0].memory_mib == 16384 + 1024


def test_a_card_whose_driver_tells_no_memory_is_a_gpu_all_the_same(place):
    found = detect.detect(root=place(intel(driver="i915", memory_mib=0)))
    assert [gpu.memory_mib for gpu in found.gpus] == [0]


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("0x56c0", "Intel Data Center GPU Flex 170"),
        ("0xe20b", "Intel Arc B580"),
        ("0x4680", "Intel AlderLake-S GT1"),
        ("0x0101", "Intel 0x0101"),  # Beijing Wangxun's
        ("0x744c", "Intel 0x744c"),
    ],
)
@pytest.mark.parametrize("place_of_ids", ["misc", "hwdata"])
def test_intels_names_are_those_of_pci_ids(place, device, name, place_of_ids):
    root = place(intel(pci_device=device))
    put(root, f"usr/share/{place_of_ids}/pci.ids", PCI_IDS)
    assert detect.detect("intel", root).gpus[0].model == name


@pytest.mark.parametrize("driver", ["i915", "xe", "none", "vfio-pci"])
def test_intels_processors_do_not_make_gpu_workers_by_themselves(place, driver):
    found = detect.detect(root=place(integrated(driver=driver)))
    assert found == Inventory(
        State.NO_GPU,
        detail="Intel 0000:00:02.0 is part of the processor: gpu-vendor=intel would use it",
        vendor="intel",
    )


def test_intels_processors_are_taken_when_asked_for(place):
    root = place(integrated(), intel(1))
    assert uuids(detect.detect("intel", root)) == ["PCI-0000:00:02.0", "PCI-0000:02:00.0"]
    assert uuids(detect.detect("auto", root)) == ["PCI-0000:02:00.0"]


def test_a_card_that_a_virtual_machine_has_at_that_address_is_a_card(place):
    root = place(integrated(driver="xe", memory_mib=12288))
    assert detect.detect(root=root).state is State.READY


@pytest.mark.parametrize(
    ("cards", "state", "detail"),
    [
        ([], State.NO_GPU, ""),
        ([intel(driver="none")], State.NO_DRIVER, "0000:01:00.0"),
        ([intel(driver="xe-vfio-pci")], State.VFIO, "0000:01:00.0"),
        ([intel(driver="intel_vpu", pci_class="0x120000")], State.NO_GPU, ""),  # an NPU
    ],
)
def test_why_there_is_no_intel_gpu(place, cards, state, detail):
    expected = Inventory(state, detail=detail, vendor="intel")
    assert detect.detect("intel", place(*cards)) == expected


def test_an_intel_card_without_a_render_node_can_not_be_used(place):
    root = place(intel(), intel(1), dev=[intel(1)])
    found = detect.detect("intel", root)
    assert (uuids(found), found.lost) == (["PCI-0000:02:00.0"], ("0000:01:00.0",))
    for node in (root / "dev/dri").glob("renderD*"):
        node.unlink()
    found = detect.detect("intel", root)
    assert (found.state, found.detail) == (State.NO_DRIVER, "0000:01:00.0, 0000:02:00.0")


def test_a_container_has_the_intel_gpus_that_were_passed_in(place):
    root = place(intel(), intel(1), dev=[intel(1)], container=True)
    found = detect.detect("intel", root)
    assert (uuids(found), found.lost) == (["PCI-0000:02:00.0"], ())
    for node in (root / "dev/dri").glob("card*"):
        node.unlink()
    nodes = ("/dev/dri/by-path/pci-0000:02:00.0-render",)
    assert detect.detect("intel", root).gpus[0].nodes == nodes
    for node in (root / "dev/dri").glob("renderD*"):
        node.unlink()
    found = detect.detect("intel", root)
    assert (found.state, found.detail) == (State.NOT_PASSED, "0000:01:00.0, 0000:02:00.0")


def test_nodes_go_by_their_own_names_where_udev_has_no_link_to_them(place):
    root = place(intel())
    links = root / "dev/dri/by-path"
    (links / "pci-0000:01:00.0-card").unlink()
    (links / "pci-0000:01:00.0-render").unlink()
    (links / "pci-0000:01:00.0-render").symlink_to("../renderD199")
    found = detect.detect("intel", root)
    assert found.gpus[0].nodes == ("/dev/dri/card32", "/dev/dri/renderD160")
