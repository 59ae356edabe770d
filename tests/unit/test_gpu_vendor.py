# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whose GPUs a worker takes where there are several makers'."""

import dataclasses
import functools
import os
import subprocess
import sys

import pytest

from gpu_agent.gpu.vendors import detect, registry, report
from gpu_agent.gpu.vendors.nvidia import nvml
from gpu_agent.model.inventory import Inventory, State
from tests.fakes import Card
from tests.unit.gpu_rig import Nvml, amd, integrated, intel, make_place
from tests.unit.situations import GPUS


@pytest.fixture
def place(tmp_path):
    return functools.partial(make_place, tmp_path)


@pytest.fixture
def nvml_answers():
    return Nvml(nvml.Answer("580.95.05", "13.0", GPUS, ()))


NVIDIA = Card(number=9)
LOOSE = dataclasses.replace(NVIDIA, driver="none")
GUEST = dataclasses.replace(NVIDIA, driver="vfio-pci")


@pytest.mark.parametrize(
    ("cards", "vendor", "state"),
    [
        ([NVIDIA, amd(), intel(1)], "nvidia", State.READY),
        ([amd(), intel(1)], "amd", State.READY),
        ([intel(1)], "intel", State.READY),
        # What has gone wrong with the first is told, and not hidden behind the second.
        ([LOOSE, amd()], "nvidia", State.NO_DRIVER),
        ([amd(driver="none"), intel(1)], "amd", State.NO_DRIVER),
        ([GUEST, amd()], "amd", State.READY),
        ([GUEST, amd(driver="vfio-pci")], "nvidia", State.VFIO),
        ([amd(driver="vfio-pci"), integrated()], "amd", State.VFIO),
        ([], "nvidia", State.NO_GPU),
    ],
)
def test_auto_takes_the_first_maker_that_has_gpus_for_us(
    place, nvml_answers, cards, vendor, state
):
    found = nvml_answers.detect(place(*cards))
    assert (found.vendor, found.state) == (vendor, state)


def test_auto_takes_in_a_container_what_was_passed_in(place, nvml_answers):
    root = place(NVIDIA, amd(), container=True)
    found = nvml_answers.detect(root)
    assert (found.vendor, found.state) == ("amd", State.READY)
    (root / "dev/nvidia9").symlink_to(os.devnull)
    assert nvml_answers.detect(root).vendor == "nvidia"


@pytest.mark.parametrize("vendor", registry.NAMES)
def test_a_maker_that_was_named_is_the_only_one_looked_for(place, nvml_answers, vendor):
    cards = {"nvidia": NVIDIA, "amd": amd(), "intel": intel(1)}
    found = nvml_answers.detect(place(cards[vendor]), vendor)
    assert (found.vendor, found.state) == (vendor, State.READY)


@pytest.mark.parametrize("vendor", registry.NAMES)
def test_another_makers_gpus_are_none_of_the_named_one(place, vendor):
    cards = {"nvidia": LOOSE, "amd": amd(), "intel": intel(1)}
    del cards[vendor]
    found = detect.detect(vendor, place(*cards.values()))
    assert found == Inventory(State.NO_GPU, vendor=vendor)


def test_the_action_shows_whose_gpus_they_are_and_their_nodes(place):
    found = detect.detect(root=place(intel(memory_mib=0)))
    results = report.as_results(found, ("PCI-0000:01:00.0",), {})
    assert results["vendor"] == "intel"
    assert results["gpu-0"] == (
        "Intel 0x56c0, memory unknown\n  PCI-0000:01:00.0, 0000:01:00.0\n"
        "  /dev/dri/by-path/pci-0000:01:00.0-card /dev/dri/by-path/pci-0000:01:00.0-render\n"
        "  for tasks"
    )


@pytest.mark.parametrize(
    ("uuid", "on_the_bus", "vendor"),
    [
        ("GPU-00000000-1111-2222-3333-444444444444", "0x10de", "nvidia"),
        ("GPU-00000000-1111-2222-3333-444444444444", "", "nvidia"),
        ("GPU-8a6b1c2d3e4f5a6b", "0x1002", "amd"),
        ("GPU-8a6b1c2d3e4f5a6b-3", "", "amd"),
        ("PCI-0000:05:00.1", "0x1002", "amd"),
        ("PCI-0000:03:00.0", "0x8086", "intel"),
    ],
)
def test_a_card_that_has_fallen_off_the_bus_is_still_its_makers(
    tmp_path, uuid, on_the_bus, vendor
):
    folder = tmp_path / "sys/bus/pci/devices/0000:03:00.0"
    if on_the_bus:
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{on_the_bus}\n")
    assert registry.of_card(tmp_path, uuid, "0000:03:00.0").name == vendor


def test_the_registry_of_vendors_loads_nothing_that_queries_drivers():
    """The watch of device nodes and the GPU health service always run."""
    code = "import sys; import gpu_agent.gpu.vendors.registry; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    loaded = set(done.stdout.split())
    assert "gpu_agent.gpu.vendors.nvidia.vendor" in loaded
    rooms = {name for name in loaded if name.startswith("gpu_agent.gpu.vendors.")}
    assert {name.rpartition(".")[2] for name in rooms if name.count(".") > 3} == {
        "maker", "vendor"
    }  # fmt: skip
    assert not {"pynvml", "socket", "tomlkit", "gpu_agent.model.gpu_health"} & loaded
