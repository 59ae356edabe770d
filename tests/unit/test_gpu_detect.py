# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs on the PCI bus, and what is decided from /sys, /proc and /dev before NVML is asked."""

import dataclasses
import json
import os
import pathlib
import time

import pytest

from gpu_agent.availability import external_processes as foreign
from gpu_agent.gpu.kernel import pci
from gpu_agent.gpu.vendors import detect, registry, report
from gpu_agent.gpu.vendors.nvidia import nvml
from gpu_agent.gpu.vendors.nvidia.maker import MAKER
from gpu_agent.model import errors
from gpu_agent.model.inventory import Inventory, State
from tests.fakes import Card, make_tree
from tests.unit.gpu_rig import Nvml
from tests.unit.situations import GPUS

READY = Inventory(State.READY, GPUS, driver="580.95.05", cuda="13.0", vendor="nvidia")


@pytest.fixture
def asked():
    """NVML answers with the two cards of `GPUS`, unless a test has it say something else."""
    return Nvml(nvml.Answer("580.95.05", "13.0", GPUS, ()), "575.57.08")


@pytest.fixture
def unasked(asked):
    """NVML is left alone, since /sys says enough."""
    yield asked
    assert not asked.asked


def in_container(root, *nodes):
    (root / "run/systemd").mkdir(parents=True)
    (root / "run/systemd/container").write_text("lxc\n")
    (root / "dev").mkdir()
    for node in nodes:
        (root / "dev" / node).symlink_to(os.devnull)


def test_a_gpu_has_an_address_a_driver_and_a_product(tmp_path):
    make_tree(tmp_path, [Card(), Card(number=1, driver="vfio-pci"), Card(number=2, driver="none")])
    assert pci.gpus(tmp_path, MAKER) == (
        pci.Device("0000:01:00.0", "nvidia", 0x20B2),
        pci.Device("0000:02:00.0", "vfio-pci", 0x20B2),
        pci.Device("0000:03:00.0", "", 0x20B2),
    )


@pytest.mark.parametrize(
    ("vendor", "pci_class", "is_gpu"),
    [
        ("0x10de", "0x030000", True),  # VGA
        ("0x10de", "0x030200", True),  # 3D
        ("0x10de", "0x040300", False),  # the audio function of a card
        ("0x10de", "0x0c0330", False),  # its USB port
        ("0x10de", "0x068000", False),  # NVSwitch
        ("0x15b3", "0x020000", False),  # Mellanox NIC
        ("0x10de", "0x020000", False),
        ("0x1002", "0x030000", False),
        ("0x8086", "0x030000", False),
    ],
)
def test_only_nvidias_display_controllers_are_gpus(tmp_path, vendor, pci_class, is_gpu):
    make_tree(tmp_path, [Card(pci_vendor=vendor, pci_class=pci_class, driver="none")])
    assert len(pci.gpus(tmp_path, MAKER)) == is_gpu


def test_a_virtual_function_is_no_card(tmp_path):
    make_tree(tmp_path, [Card(), Card(number=1)])
    devices = tmp_path / "sys/bus/pci/devices"
    (devices / "0000:02:00.0/physfn").symlink_to("../0000:01:00.0")
    assert [gpu.address for gpu in pci.gpus(tmp_path, MAKER)] == ["0000:01:00.0"]


def test_a_card_that_vanishes_while_it_is_read_is_none(tmp_path):
    make_tree(tmp_path, [Card()])
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0/vendor").unlink()
    assert pci.gpus(tmp_path, MAKER) == ()


@pytest.mark.parametrize(
    ("cards", "driver", "state", "detail"),
    [
        ([], None, State.NO_GPU, ""),
        ([Card(pci_vendor="0x8086", driver="none")], None, State.NO_GPU, ""),
        ([Card(driver="vfio-pci")], None, State.VFIO, "0000:01:00.0"),
        (
            [Card(driver="vfio-pci"), Card(number=1, driver="nvgrace-gpu-vfio-pci")],
            None,
            State.VFIO,
            "0000:01:00.0, 0000:02:00.0",
        ),
        ([Card(driver="pciback")], None, State.VFIO, "0000:01:00.0"),
        ([Card(driver="nouveau")], None, State.NOUVEAU, "0000:01:00.0"),
        (
            [Card(driver="nouveau"), Card(number=1, driver="vfio-pci")],
            None,
            State.NOUVEAU,
            "0000:01:00.0",
        ),
        ([Card()], None, State.NO_DRIVER, "0000:01:00.0"),
        (
            [Card(driver="vfio-pci"), Card(number=1, driver="none")],
            None,
            State.NO_DRIVER,
            "0000:02:00.0",
        ),
    ],
)
def test_the_bus_says_why_there_is_no_gpu(tmp_path, unasked, cards, driver, state, detail):
    make_tree(tmp_path, cards, driver)
    assert unasked.detect(tmp_path) == Inventory(state, detail=detail, vendor="nvidia")


@pytest.mark.parametrize(
    ("cards", "idle"),
    [
        ([], 0),
        ([Card(driver="vfio-pci")], 0),
        ([Card(), Card(number=1)], 2),
        ([Card(driver="none")], 1),
    ],
)
def test_cards_are_counted_though_no_driver_is_asked(tmp_path, unasked, cards, idle):
    make_tree(tmp_path, cards)
    assert len(detect.cards(tmp_path)) == idle


def test_an_empty_machine_has_no_gpu(tmp_path, unasked):
    assert unasked.detect(tmp_path) == Inventory(State.NO_GPU, vendor="nvidia")


def test_a_container_without_the_device_is_told_from_a_host_without_driver(tmp_path, unasked):
    make_tree(tmp_path, [Card(), Card(number=1)])
    in_container(tmp_path, "nvidiactl", "nvidia-uvm")
    assert unasked.detect(tmp_path) == Inventory(
        State.NOT_PASSED,
        detail="0000:01:00.0, 0000:02:00.0",
        vendor="nvidia",
    )


def test_a_container_is_measured_by_what_was_passed_in(tmp_path, asked):
    make_tree(tmp_path, [Card(), Card(number=1)])
    in_container(tmp_path, "nvidia1", "nvidiactl")
    asked.answer = nvml.Answer("580.95.05", "13.0", GPUS[1:], ())
    assert asked.detect(tmp_path) == Inventory(
        State.READY,
        GPUS[1:],
        driver="580.95.05",
        cuda="13.0",
        vendor="nvidia",
    )


def test_a_container_that_hides_the_drivers_files_is_measured_by_any_node(tmp_path, asked):
    make_tree(tmp_path, [Card(), Card(number=1)])
    for card in (tmp_path / "proc/driver/nvidia/gpus").iterdir():
        (card / "information").unlink()
    in_container(tmp_path, "nvidiactl")
    assert asked.detect(tmp_path).state is State.NOT_PASSED
    (tmp_path / "dev/nvidia1").write_text("")  # as LXD makes it before it mounts the node
    assert asked.detect(tmp_path).state is State.NOT_PASSED
    (tmp_path / "dev/nvidia1").unlink()
    (tmp_path / "dev/nvidia1").symlink_to(os.devnull)
    assert asked.detect(tmp_path) == READY
    asked.answer = nvml.Answer("580.95.05", "13.0", GPUS[1:], ())
    assert asked.detect(tmp_path).lost == ()
    (tmp_path / "dev/nvidia0").symlink_to(os.devnull)
    assert asked.detect(tmp_path).lost == ("0000:01:00.0",)


def test_a_machine_of_its_own_needs_no_nodes_since_nvml_makes_them(tmp_path, asked):
    make_tree(tmp_path, [Card(), Card(number=1)])
    assert asked.detect(tmp_path) == READY


def test_nodes_without_a_bus_are_asked_about(tmp_path, asked):
    in_container(tmp_path, "nvidia0", "nvidia1")
    assert asked.detect(tmp_path) == READY


def test_control_nodes_alone_are_no_gpu(tmp_path, unasked):
    in_container(tmp_path, "nvidiactl", "nvidia-uvm", "nvidia-modeset")
    assert unasked.detect(tmp_path).state is State.NO_GPU


def test_cards_for_guests_do_not_disturb_the_others(tmp_path, asked):
    guest = Card(number=2, driver="vfio-pci")
    make_tree(tmp_path, [Card(), Card(number=1), guest, Card(number=3, driver="nouveau")])
    assert asked.detect(tmp_path) == READY


def test_a_card_that_does_not_answer_is_named(tmp_path, asked):
    make_tree(tmp_path, [Card(), Card(number=1), Card(number=2)])
    asked.answer = nvml.Answer("580.95.05", "13.0", GPUS, ("GPU 2: GPU is lost",))
    found = asked.detect(tmp_path)
    assert (found.state, found.gpus, found.lost) == (State.READY, GPUS, ("0000:03:00.0",))
    assert found.detail == "GPU 2: GPU is lost"


def test_no_card_that_answers_is_a_failure_in_nvmls_words(tmp_path, asked):
    make_tree(tmp_path, [Card()])
    asked.answer = nvml.Answer("580.95.05", "13.0", (), ("GPU 0: GPU is lost",))
    found = asked.detect(tmp_path)
    assert (found.state, found.detail) == (State.NVML_ERROR, "GPU 0: GPU is lost")
    asked.answer = nvml.Answer("580.95.05", "13.0", (), ())
    found = asked.detect(tmp_path)
    assert (found.state, found.lost) == (State.NVML_ERROR, ("0000:01:00.0",))
    assert found.detail == "it lists no GPU although the driver has 0000:01:00.0"


@pytest.mark.parametrize(
    ("state", "detail"),
    [
        (State.NO_LIBRARY, "580.95.05"),
        (State.MISMATCH, "580.95.05 and 575.57.08"),
        (State.NVML_ERROR, "its own words"),
    ],
)
def test_nvml_that_fails_leaves_its_reason(tmp_path, asked, state, detail):
    make_tree(tmp_path, [Card()])
    asked.answer = nvml.NvmlError(state, "its own words")
    expected = Inventory(state, driver="580.95.05", detail=detail, vendor="nvidia")
    assert asked.detect(tmp_path) == expected
    # Where /sys/module is hidden, /proc tells the driver's version as well.
    (tmp_path / "sys/module/nvidia/version").unlink()
    assert asked.detect(tmp_path) == expected


def test_versions_that_nobody_tells_are_called_unknown(tmp_path, asked):
    make_tree(tmp_path, [Card()])
    (tmp_path / "sys/module/nvidia/version").unlink()
    (tmp_path / "proc/driver/nvidia/version").write_text("something else\n")
    asked.library = ""
    asked.answer = nvml.NvmlError(State.MISMATCH, "")
    assert asked.detect(tmp_path).detail == "unknown and unknown"
    asked.answer = nvml.NvmlError(State.NO_LIBRARY, "")
    assert asked.detect(tmp_path).detail == "of an unknown version"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024",
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.183.01  Release Build  "
            "(dvs-builder@U16)  Wed"
        ),
    ],
)
def test_proc_tells_the_version_of_both_kinds_of_driver(tmp_path, asked, line):
    make_tree(tmp_path, [Card()])
    (tmp_path / "sys/module/nvidia/version").unlink()
    (tmp_path / "proc/driver/nvidia/version").write_text(f"{line}\nGCC version:  gcc 12.3.0\n")
    asked.answer = nvml.NvmlError(State.NO_LIBRARY, "")
    assert asked.detect(tmp_path).driver == "535.183.01"


def test_the_action_shows_what_was_lost_and_a_program_reads_all():
    inventory = Inventory(
        State.READY, GPUS, driver="580.1", lost=("0000:03:00.0",), detail="why", vendor="nvidia"
    )
    told = (GPUS[0].uuid,), {GPUS[1].uuid: "dirty"}
    results = report.as_results(inventory, *told)
    assert (results["state"], results["count"]) == ("ready", "2")
    assert (results["lost"], results["detail"]) == ("0000:03:00.0", "why")
    assert not {"cuda", "json"} & results.keys()
    assert results["gpu-1"].endswith("not for tasks (dirty)")
    data = json.loads(report.as_json(inventory, *told))
    assert data["lost"] == ["0000:03:00.0"]
    assert [gpu["vendor"] for gpu in data["gpus"]] == ["nvidia", "nvidia"]
    assert (data["allowed"], data["out"]) == ([GPUS[0].uuid], {GPUS[1].uuid: "dirty"})


def asleep(_root, *, integrated):
    time.sleep(600)


@pytest.mark.parametrize("vendor", ["auto", "nvidia"])
def test_a_driver_that_hangs_is_a_state_and_whose_it_is_tells_the_bus(tmp_path, vendor):
    make_tree(tmp_path, [Card()])
    vendors = tuple(dataclasses.replace(one, look=asleep) for one in registry.ALL[::-1])
    note = tmp_path / "gpu-ci/driver-hangs"
    found = detect.in_time(vendor, tmp_path, vendors, patience=0.2, note=note)
    assert (found.state, found.vendor) == (State.HUNG, "nvidia")
    assert found.detail == "no answer within 0.2 s"
    assert not found.gpus


def test_what_answers_in_time_is_the_same(asked, tmp_path):
    make_tree(tmp_path, [Card(), Card(number=1)])
    note = tmp_path / "driver-hangs"
    assert detect.in_time("auto", tmp_path, asked.vendors, note=note) == READY
    asked.answer = OSError(24, "Too many open files")
    with pytest.raises(OSError, match="Too many"):
        detect.in_time("auto", tmp_path, asked.vendors, note=note)


def test_a_vendor_of_another_revision_is_no_crash(tmp_path):
    remedy = "set gpu-vendor to auto or to one of nvidia, amd, intel"
    with pytest.raises(errors.UnknownError, match=f"knows no GPUs of 4dfx: {remedy}"):
        detect.detect("4dfx", tmp_path)
    with pytest.raises(errors.UnknownError, match=remedy):
        detect.in_time("4dfx", tmp_path, note=tmp_path / "driver-hangs")


def test_a_hook_gives_up_within_half_a_minute():
    assert detect.PATIENCE + foreign._PATIENCE < 30
    assert detect.HANGS.parent == pathlib.Path("/run/gpu-ci")
