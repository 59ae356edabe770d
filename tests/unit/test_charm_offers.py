# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's door: units tell each other which GPUs tasks get from them."""

import dataclasses

import pytest
from ops import testing

from tests.unit.situations import GPUS, MACHINE, WORKER_KEY, database, state, tsa

BOOT = "0123456789abcdef" * 2
UUIDS = tuple(gpu.uuid for gpu in GPUS)
OWN = f"{BOOT} {UUIDS[0]} {UUIDS[1]}"


@pytest.fixture
def with_boot(rooms):
    rooms.machine = dataclasses.replace(MACHINE, boot=BOOT)
    return rooms


def peers(*lines):
    """The peers, each with what it says of its GPUs."""
    data = {number: {"gpus": line} for number, line in enumerate(lines, 1)}
    return testing.PeerRelation("peers", peers_data=data)


def run(context, event, before, *relations):
    """One hook; what the unit told in each relation, and its status."""
    kept = [one for one in before.relations if one.endpoint != "peers"]
    before = dataclasses.replace(before, relations=[*kept, *relations])
    after = context.run(event, before)
    told = [after.get_relation(one.id).local_unit_data for one in relations]
    return told, after.unit_status


def worker(**options):
    return state(enable_gpu=True, **options)


def test_peers_and_webs_are_told(context, with_boot):
    relations = peers(), tsa()
    told, status = run(context, context.on.config_changed(), worker(), *relations)
    assert [data["gpus"] for data in told] == [OWN, OWN]
    assert "also given" not in status.message
    assert all("gpus-of-others" not in data for data in told)


def test_a_boot_that_cannot_be_told_is_said(context, rooms):
    told, _ = run(context, context.on.config_changed(), worker(), peers())
    assert told[0]["gpus"] == f"- {UUIDS[0]} {UUIDS[1]}"


def test_what_is_given_no_more_is_taken_back(context, with_boot):
    relation = dataclasses.replace(peers(), local_unit_data={"gpus": OWN})
    told, _ = run(context, context.on.config_changed(), state(), relation)
    assert "gpus" not in told[0]


def test_what_can_not_be_planned_leaves_what_was_told(context, with_boot):
    relation = dataclasses.replace(peers(), local_unit_data={"gpus": OWN})
    before = state("nothing", enable_gpu=True)
    told, _ = run(context, context.on.config_changed(), before, relation)
    assert told[0]["gpus"] == OWN


def test_a_peer_with_the_same_card_is_named(context, with_boot):
    other = f"{BOOT} {UUIDS[1]}"
    _, status = run(context, context.on.config_changed(), worker(), peers(other), tsa())
    assert "GPU 1 also given to tasks by unit/1: " in status.message
    assert status.name == "active"


def test_a_web_passes_on_what_the_others_of_a_worker_give(context, rooms):
    """Each relation hears of the units outside it, and a unit that goes is forgotten."""
    one, other = workers_of("gpua", "a"), workers_of("gpub", "b")
    before = state("web", [database()])
    told, _ = run(context, context.on.config_changed(), before, peers(), one, other)
    assert told[1]["gpus-of-others"] == f"gpub/0 {BOOT} GPU-b"
    assert told[2]["gpus-of-others"] == f"gpua/0 {BOOT} GPU-a"
    assert "gpus-of-others" not in told[0]
    alone = dataclasses.replace(one, local_unit_data=told[1])
    told, _ = run(context, context.on.config_changed(), before, peers(), alone)
    assert "gpus-of-others" not in told[1]


def workers_of(application, card):
    data = {
        "worker-public-key": WORKER_KEY,
        "worker-name": f"ci-{application}-0",
        "gpus": f"{BOOT} GPU-{card}",
    }
    return testing.Relation(
        "web-tsa",
        interface="concourse-tsa",
        remote_app_name=application,
        remote_units_data={0: data},
    )


def test_a_unit_that_is_both_meets_the_workers_that_it_serves(context, with_boot):
    relation = workers_of("gpua", "a")
    relation.remote_units_data[0]["gpus"] = f"{BOOT} {UUIDS[0]}"
    before = state("all", [], enable_gpu=True)
    told, status = run(context, context.on.config_changed(), before, peers(), relation)
    assert "GPU 0 also given to tasks by gpua/0: " in status.message
    assert told[1]["gpus"] == OWN


def test_what_web_passes_on_is_believed(context, with_boot):
    relation = tsa(**{"gpus-of-others": f"gpub/0 {BOOT} {UUIDS[0]}\ngpuc/7 - {UUIDS[0]}"})
    _, status = run(context, context.on.config_changed(), worker(), peers(), relation)
    assert "GPU 0 also given to tasks by gpub/0, gpuc/7: " in status.message


@pytest.mark.parametrize(
    "line",
    [
        "GPU-1", "- ", "-", f"{BOOT}", f"{BOOT[1:]} GPU-1", f"{BOOT} GPU-1;rm",
        f"{BOOT} GPU-\x1b[2J", f"{BOOT}  GPU-1", f"{BOOT} GPU-1\n\n- GPU-1",
        "- " + "GPU-1 " * 300, "x" * 10**6,
    ],
)  # fmt: skip
def test_hostile_words_are_refused_in_words(context, with_boot, line):
    _, status = run(context, context.on.config_changed(), worker(), peers(line), tsa())
    assert "refused gpus of unit/1: no BOOT UUID ..." in status.message
    assert status.message.isprintable()
    assert len(status.message) < 300
    relation = tsa(**{"gpus-of-others": f"gpub/0 {line}"})
    _, status = run(context, context.on.config_changed(), worker(), peers(), relation)
    assert "refused gpus of web/0: no BOOT UUID ..." in status.message
    assert status.message.isprintable()


def test_a_unit_that_goes_takes_back_what_it_said(context, with_boot):
    """Juju tells peers late that it went; meanwhile its cards may be another's."""
    with_boot.leaving = True
    relation = dataclasses.replace(peers(), local_unit_data={"gpus": OWN})
    told, _ = run(context, context.on.config_changed(), worker(), relation)
    assert "gpus" not in told[0]
