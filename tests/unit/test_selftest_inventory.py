# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A GPU that was here is missed until it comes back or is forgotten."""

import dataclasses
import shutil

import pytest

from gpu_agent.availability import known_gpus as known
from gpu_agent.model.inventory import Inventory, State
from gpu_selftest.check import Outcome
from gpu_selftest.quick import host_checks
from tests.unit.host_site import Room, Site, named, red
from tests.unit.situations import GPUS

ONE, TWO = (gpu.uuid for gpu in GPUS)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_a_lost_gpu_fails_until_it_is_forgotten(site):
    site.lose(TWO)
    for _ in range(2):
        results = site.run()
        failed = red(results)
        assert (failed.check, failed.gpu) == ("inventory", TWO)
        assert failed.text == "lost: GPU 1 (NVIDIA A100-SXM4-80GB at 0000:02:00.0) is gone"
        assert f"juju run worker/0 gpu-uncordon gpu={TWO}" in failed.remedy
        assert "fallen off the bus" in failed.remedy
        assert "reseat" in failed.remedy
        assert named(results, Outcome.NOT_RUN) == [("device-nodes", TWO)]
    known.forget(TWO, site.path("var/lib/gpu-ci/inventory.json"))
    assert named(site.run(), Outcome.FAILED) == []


def test_a_gpu_that_comes_back_passes(site):
    inventory = site.inventory
    site.lose(TWO)
    red(site.run())
    site.inventory = inventory
    assert named(site.run(), Outcome.FAILED) == []


def test_a_gpu_that_does_not_answer_is_lost_by_its_own_id(site):
    site.lose(TWO)
    site.inventory = dataclasses.replace(site.inventory, lost=("0000:02:00.0",))
    failed = red(site.run())
    assert (failed.check, failed.gpu) == ("inventory", TWO)
    assert failed.text.endswith("does not answer")


@pytest.mark.parametrize("state", [State.NO_GPU, State.NVML_ERROR])
def test_with_every_gpu_lost_the_driver_is_not_blamed(site, state):
    site.lose(ONE, TWO)
    lost = ("0000:01:00.0", "0000:02:00.0") if state is State.NVML_ERROR else ()
    site.inventory = dataclasses.replace(site.inventory, state=state, lost=lost)
    site.ask_for_a_newer_driver()
    results = site.run()
    assert named(results, Outcome.FAILED) == [("inventory", ONE), ("inventory", TWO)]
    not_run = named(results, Outcome.NOT_RUN)
    assert not_run[:2] == [("driver", ""), ("driver-version", "")]
    assert {one.text for one in results if one.outcome is Outcome.NOT_RUN} == {"inventory failed"}


def test_a_gpu_that_was_no_tasks_is_missed_with_a_warning(site):
    site.settings = dataclasses.replace(site.settings, gpus=GPUS[:1])
    site.run()
    site.lose(TWO)
    results = site.run()
    assert named(results, Outcome.FAILED) == []
    assert named(results, Outcome.WARNING) == [("inventory", TWO)]


def test_a_gpu_that_never_answered_is_no_more_than_a_warning(site):
    site.inventory = dataclasses.replace(site.inventory, lost=("0000:09:00.0",))
    results = site.run()
    assert named(results, Outcome.WARNING) == [("inventory", "")]
    (warning,) = (one for one in results if one.outcome is Outcome.WARNING)
    assert "0000:09:00.0" in warning.text
    assert "0000:09:00.0" in warning.remedy


def test_a_new_gpu_is_learnt(site):
    third = dataclasses.replace(GPUS[0], index=2, uuid="GPU-3", pci_address="0000:03:00.0")
    inventory = site.inventory
    site.inventory = dataclasses.replace(inventory, gpus=(*GPUS, third))
    (result,) = (one for one in site.run() if one.check == "inventory")
    assert result.text == "3 GPUs, new: NVIDIA A100-SXM4-80GB at 0000:03:00.0"
    (result,) = (one for one in site.run() if one.check == "inventory")
    assert (result.text, result.value) == ("3 GPUs", 3)
    site.inventory = inventory
    # It was not among those that tasks may get.
    assert named(site.run(), Outcome.WARNING) == [("inventory", "GPU-3")]


def test_a_lost_gpu_keeps_the_index_that_the_operator_knew(site):
    renamed = tuple(dataclasses.replace(gpu, index=gpu.index + 4) for gpu in GPUS)
    site.settings = dataclasses.replace(site.settings, gpus=renamed)
    site.run()
    site.lose(TWO)
    site.settings = dataclasses.replace(site.settings, gpus=renamed[:1])
    assert red(site.run()).text.startswith("lost: GPU 5 (")


def test_one_that_was_taken_out_of_a_container_is_no_fault_and_the_way_back_is_named(site):
    site.machine = dataclasses.replace(site.machine, instance="juju-a1b2-0")
    site.put("sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de")
    site.lose(TWO)
    results = site.run()
    assert named(results, Outcome.FAILED) == []
    (warned,) = (one for one in results if one.gpu == TWO)
    assert (warned.check, warned.outcome) == ("inventory", Outcome.WARNING)
    assert warned.text.endswith("0000:02:00.0) is no longer passed into this container")
    assert warned.remedy == (
        "lxc config device add juju-a1b2-0 gpuci-0000-02-00.0 gpu gputype=physical "
        "pci=0000:02:00.0 mode=0666 on its host; if it was removed "
        f"for good: juju run worker/0 gpu-uncordon gpu={TWO}"
    )
    # It does not answer, though it is here.
    site.inventory = dataclasses.replace(site.inventory, lost=("0000:02:00.0",))
    assert red(site.run()).gpu == TWO
    # On a machine nobody takes one away but a fault, or a hand.
    site.inventory = dataclasses.replace(site.inventory, lost=())
    site.machine = dataclasses.replace(site.machine, instance="")
    assert red(site.run()).text.startswith("lost: GPU 1 (")


def test_another_card_in_its_place_brings_no_gpu_back(site):
    other = dataclasses.replace(GPUS[1], uuid="GPU-other")
    site.inventory = dataclasses.replace(site.inventory, gpus=(GPUS[0], other))
    failed = red(site.run())
    assert failed.gpu == TWO
    assert failed.text.endswith("is gone; GPU-other is in its place")


def test_partitions_come_and_go_as_they_are_configured(site):
    parts = tuple(
        dataclasses.replace(gpu, vendor="amd", uuid=f"GPU-0123456789abcdef-{gpu.index}",
                            pci_address="0000:41:00.0", nodes=())
        for gpu in GPUS
    )  # fmt: skip
    whole = dataclasses.replace(parts[0], uuid="GPU-0123456789abcdef")
    known.forget(ONE, site.path("var/lib/gpu-ci/inventory.json"))
    known.forget(TWO, site.path("var/lib/gpu-ci/inventory.json"))
    for gpus in (parts, (whole,)):
        site.settings = dataclasses.replace(site.settings, gpus=gpus)
        site.inventory = Inventory(State.READY, gpus, vendor="amd")
        results = site.run()
        assert named(results, Outcome.FAILED) == named(results, Outcome.WARNING) == []
        assert [gpu.uuid for gpu in site.known()] == [gpu.uuid for gpu in gpus]


def test_gpus_of_another_vendor_are_missed_only_when_they_leave_the_bus(site):
    card = dataclasses.replace(GPUS[0], vendor="amd", uuid="GPU-amd", nodes=())
    card = dataclasses.replace(card, pci_address="0000:41:00.0")
    site.inventory = Inventory(State.READY, (card,), vendor="amd")
    site.settings = dataclasses.replace(site.settings, gpus=(card,))
    for gpu in GPUS:
        site.path(f"sys/bus/pci/devices/{gpu.pci_address}").mkdir(parents=True)
    assert named(site.run(), Outcome.FAILED) == []
    assert [gpu.allowed for gpu in site.known()] == [False, False, True]
    shutil.rmtree(site.path("sys/bus/pci/devices/0000:01:00.0"))
    assert named(site.run(), Outcome.WARNING) == [("inventory", ONE)]


def test_a_card_in_whose_place_there_is_one_of_another_vendor_was_taken_out(site):
    for gpu in GPUS:
        site.path(f"sys/bus/pci/devices/{gpu.pci_address}").mkdir(parents=True)
    others = tuple(
        dataclasses.replace(gpu, vendor="amd", uuid=f"GPU-amd-{gpu.index}", nodes=())
        for gpu in GPUS
    )
    for gpus, vendor in ((others, "amd"), (GPUS, "nvidia")):
        site.inventory = Inventory(State.READY, gpus, vendor=vendor)
        site.settings = dataclasses.replace(site.settings, gpus=gpus)
        results = site.run()
        assert named(results, Outcome.FAILED) == []
        assert [gpu.uuid for gpu in site.known()] == [gpu.uuid for gpu in gpus]


def test_a_full_disk_is_told_and_nothing_is_written_to_it(site):
    path = site.path("var/lib/gpu-ci/inventory.json")
    path.unlink()
    site.room = Room(0)
    assert named(site.run(), Outcome.FAILED) == [("disk", "")]
    assert not path.exists()


def test_what_is_known_is_not_written_anew_where_it_is_damaged(site):
    path = site.put("var/lib/gpu-ci/inventory.json", "[{")
    look = host_checks.Look(site.inventory, site.machine, damage="it is damaged", root=site.root)
    results = site.judge(look)
    (warning,) = (one for one in results if one.outcome is Outcome.WARNING)
    assert (warning.check, warning.text) == ("inventory", "it is damaged")
    assert "sudo rm /var/lib/gpu-ci/inventory.json" in warning.remedy
    assert path.read_text() == "[{"
