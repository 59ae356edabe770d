# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One card in two units: who can tell it, and what each says."""

import dataclasses

import pytest

from gpu_agent.model.inventory import State
from plan import status
from plan.gpu_offers import Elsewhere, GpuOffer, shared
from tests.unit.situations import (
    Running,
    gpu,
    gpu_unit,
    make_plan,
    situation,
    sliced,
    status_lines,
    unit,
)

HERE, THERE = "a" * 32, "b" * 32
BOTH = Running(web=True, worker=True, connected=True)


def on(unit_name, *uuids, boot=HERE):
    return GpuOffer(unit_name, uuids, boot)


@pytest.mark.parametrize(
    ("uuid", "own", "other", "same"),
    [
        ("GPU-0", HERE, HERE, True),
        ("GPU-0", HERE, THERE, False),
        ("GPU-0", HERE, "", True),
        ("GPU-0", "", "", True),
        ("MIG-0", "", "", True),
        # By its place: the first slot of every machine has it.
        ("PCI-0000:01:00.0", HERE, HERE, True),
        ("PCI-0000:01:00.0", HERE, THERE, False),
        ("PCI-0000:01:00.0", HERE, "", False),
        ("PCI-0000:01:00.0", "", "", False),
    ],
)
def test_two_units_list_one_card_or_two(uuid, own, other, same):
    met = shared(on("a/0", uuid, boot=own), [on("b/0", uuid, boot=other)])
    assert met == ({(uuid,): ["b/0"]} if same else {})


def test_units_that_share_the_same_cards_stand_together():
    own = on("a/0", "GPU-0", "GPU-1", "GPU-2")
    others = [on("a/1", "GPU-1"), on("a/2", "GPU-3"), on("b/0", "GPU-1"), on("b/1", "GPU-2")]
    assert shared(own, others) == {("GPU-1",): ["a/1", "b/0"], ("GPU-2",): ["b/1"]}


def ready(found, *others):
    """What status says of a unit, as others give these GPUs to tasks."""
    found = dataclasses.replace(found, elsewhere=Elsewhere(others))
    (line,) = status_lines(found, make_plan(found), BOTH)
    assert line.level is status.Level.ACTIVE
    return line


def with_gpus(*gpus, **options):
    found = gpu_unit(options, handed_out=("GPU-0",))
    here = dataclasses.replace(found.inventory, gpus=gpus)
    return dataclasses.replace(found, inventory=here)


def test_status_names_card_unit_and_remedy():
    line = ready(with_gpus(gpu(0), gpu(1)), on("gpuw/0", "GPU-1", boot=""))
    assert line.notes == ("gpus", "gpu-shared")
    assert "GPU 1 also given to tasks by gpuw/0" in line.text
    assert "scripts/lxd-gpu ci-gpu" in line.text


def test_slices_of_one_card_belong_to_their_units():
    mine = sliced(0, "1g.10gb", "1g.10gb")
    assert ready(with_gpus(mine), on("gpuw/0", "MIG-0-7", boot="")).notes == ("gpus",)
    assert "GPU 0 also" in ready(with_gpus(mine), on("gpuw/0", "MIG-0-1", boot="")).text


def test_a_card_that_tasks_here_may_not_have_is_no_ones_but_the_others():
    found = with_gpus(gpu(0), gpu(1), **{"gpu-device-ids": "0"})
    assert ready(found, on("gpuw/0", "GPU-1", boot="")).notes == ("gpus",)


def test_a_unit_offers_what_its_tasks_may_have():
    found = with_gpus(gpu(0), sliced(1, "1g.10gb"))
    found = dataclasses.replace(found, machine=dataclasses.replace(found.machine, boot=HERE))
    assert make_plan(found).offer == GpuOffer("ci-gpu/3", ("GPU-0", "MIG-1-0"), HERE)


def test_a_card_that_is_gone_is_offered_no_more_though_the_rest_stays_as_it_is():
    """Else the unit that has got it would be told of two units on one card."""
    gone = situation(state=State.NOT_PASSED)
    gone = dataclasses.replace(gone, handed_out=("GPU-0",))
    assert make_plan(gone).offer == GpuOffer("worker/0", ())


def test_while_the_choice_is_wrong_what_was_right_before_is_offered():
    found = situation(gpu(0), gpu(1), options={"gpu-device-ids": "9"})
    found = dataclasses.replace(found, handed_out=("GPU-1",))
    assert make_plan(found).offer == GpuOffer("worker/0", ("GPU-1",))


def test_nothing_new_is_told_by_a_unit_that_stays_as_it_is():
    assert make_plan(gpu_unit({"deployment-mode": "x"})).offer is None


def test_one_that_goes_takes_back_what_it_offered():
    assert make_plan(gpu_unit({}, leaving=True)).offer == GpuOffer("ci-gpu/3", ())


def test_without_gpus_nothing_is_offered():
    assert make_plan(unit()).offer == GpuOffer("ci-gpu/3", ())
    assert make_plan(unit("web")).offer == GpuOffer("ci-gpu/3", ())
