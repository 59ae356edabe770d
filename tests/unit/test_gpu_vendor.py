# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whose GPUs a worker takes where there are several makers'."""

import dataclasses
import functools
import os

import pytest

from gpu_agent.gpu.vendors import detect, report
from gpu_agent.gpu.vendors.nvidia import nvml
from gpu_agent.model.inventory import Inventory, State, Vendor
from tests.fakes import Card
from tests.unit.gpu_rig import amd, integrated, intel, make_place
from tests.unit.situations import GPUS


@pytest.fixture
def place(tmp_path):
    return functools.partial(make_place, tmp_path)


@pytest.fixture
def nvidia_answers(monkeypatch):
    answer = nvml.Answer("580.95.05", "13.0", GPUS, ())
    monkeypatch.setattr(nvml, "read", lambda: answer)


NVIDIA = Card(number=9)
LOOSE = dataclasses.replace(NVIDIA, driver="none")
GUEST = dataclasses.replace(NVIDIA, driver="vfio-pci")


@pytest.mark.parametrize(
    ("cards", "vendor", "state"),
    [
        ([NVIDIA, amd(), intel(1)], Vendor.NVIDIA, State.READY),
        ([amd(), intel(1)], Vendor.AMD, State.READY),
        ([intel(1)], Vendor.INTEL, State.READY),
        # What has gone wrong with the first is told, and not hidden behind the second.
        ([LOOSE, amd()], Vendor.NVIDIA, State.NO_DRIVER),
        ([amd(driver="none"), intel(1)], Vendor.AMD, State.NO_DRIVER),
        ([GUEST, amd()], Vendor.AMD, State.READY),
        ([GUEST, amd(driver="vfio-pci")], Vendor.NVIDIA, State.VFIO),
        ([amd(driver="vfio-pci"), integrated()], Vendor.AMD, State.VFIO),
        ([], Vendor.NVIDIA, State.NO_GPU),
    ],
)
def test_auto_takes_the_first_maker_that_has_gpus_for_us(
    place, nvidia_answers, cards, vendor, state
):
    found = detect.detect(root=place(*cards))
    assert (found.vendor, found.state) == (vendor, state)


def test_auto_takes_in_a_container_what_was_passed_in(place, nvidia_answers):
    root = place(NVIDIA, amd(), container=True)
    found = detect.detect(root=root)
    assert (found.vendor, found.state) == (Vendor.AMD, State.READY)
    (root / "dev/nvidia9").symlink_to(os.devnull)
    assert detect.detect(root=root).vendor is Vendor.NVIDIA


@pytest.mark.parametrize("vendor", list(Vendor))
def test_a_maker_that_was_named_is_the_only_one_looked_for(place, nvidia_answers, vendor):
    cards = {Vendor.NVIDIA: NVIDIA, Vendor.AMD: amd(), Vendor.INTEL: intel(1)}
    found = detect.detect(vendor.value, place(cards[vendor]))
    assert (found.vendor, found.state) == (vendor, State.READY)


@pytest.mark.parametrize("vendor", list(Vendor))
def test_another_makers_gpus_are_none_of_the_named_one(place, vendor):
    cards = {Vendor.NVIDIA: LOOSE, Vendor.AMD: amd(), Vendor.INTEL: intel(1)}
    del cards[vendor]
    found = detect.detect(vendor.value, place(*cards.values()))
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
