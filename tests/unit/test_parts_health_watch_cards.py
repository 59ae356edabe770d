# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which GPUs the watch looks after: those chosen, those in quarantine, and those that are lost."""

import dataclasses

from gpu_agent.model.inventory import State
from parts import health_watch as watched
from plan import gpus
from plan.state import Quarantine
from tests.unit.situations import gpu, situation, sliced


def cards(found, known=()):
    return watched.cards(found, gpus.choose(found), known)


def uuids(found, known=()):
    return [card.uuid for card in cards(found, known)]


def test_a_card_is_what_people_and_tasks_know():
    (whole, parts) = cards(situation(gpu(0), sliced(1, "1g.10gb", "1g.10gb")))
    assert (whole.uuid, whole.index, whole.model) == ("GPU-0", 0, "A100-SXM4-80GB")
    assert (whole.pci_address, whole.devices) == ("0000:01:00.0", ("GPU-0",))
    assert parts.devices == ("MIG-1-0", "MIG-1-1")


def test_those_in_quarantine_are_looked_after_and_those_not_chosen_are_not():
    found = situation(gpu(0), gpu(1), gpu(2), options={"gpu-device-ids": "0,2"})
    found = dataclasses.replace(found, quarantined=(Quarantine("GPU-2", "Xid 79"),))
    assert uuids(found) == ["GPU-0", "GPU-2"]


def test_one_that_is_lost_stays_until_another_card_has_its_place():
    known = cards(situation(gpu(0), gpu(1)))
    assert uuids(situation(gpu(0)), known) == ["GPU-0", "GPU-1"]
    assert uuids(situation(gpu(0), gpu(5, index=1, pci_address="0000:02:00.0")), known) == [
        *("GPU-0", "GPU-5"),
    ]
    assert uuids(situation(state=State.HUNG), known) == ["GPU-0", "GPU-1"]


def test_one_that_is_no_longer_chosen_is_let_go():
    known = cards(situation(gpu(0), gpu(1)))
    assert uuids(situation(gpu(0), gpu(1), options={"gpu-device-ids": "0"}), known) == ["GPU-0"]
    assert uuids(situation(gpu(0), options={"gpu-device-ids": "0"}), known) == ["GPU-0"]


def test_one_that_is_chosen_and_lost_stays():
    both = situation(gpu(0), gpu(1), options={"gpu-device-ids": "0,1"})
    known, choice = cards(both), gpus.choose(both)
    lost = situation(gpu(0), remembered=choice.remember, options={"gpu-device-ids": "0,1"})
    assert uuids(lost, known) == ["GPU-0", "GPU-1"]


def test_where_no_gpu_is_asked_for_none_is_looked_after():
    found = dataclasses.replace(situation(gpu(0)), inventory=None)
    assert cards(found, cards(situation(gpu(0)))) == ()
