# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's door: web tells its workers how it sees them, and each says what is wrong."""

import dataclasses

import ops
import pytest
from ops import testing

from ci.concourse.plan import messages
from relations.worker_view import Sight, digest
from tests.unit.exchange_rig import Pair
from tests.unit.situations import WORKER_KEY, database, state, tsa, workers

NAME = "a-worker-0"
RESTART = "juju exec --unit worker/0 -- systemctl restart concourse-worker"


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path)
    pair.web.run()
    pair.worker.run()
    pair.settle()
    return pair


def name(pair):
    return pair.worker.tells["worker-name"]


def seen_as(pair, sight, *, seconds=0.0):
    """Web sees the worker so, for so long; what the worker says."""
    pair.web.rooms(sights={name(pair): sight})
    pair.worker.rooms(wrong_seconds=seconds)
    pair.web.run()
    pair.settle()
    pair.worker.run()
    return pair.worker.status


def test_a_worker_that_is_seen_as_planned_is_ready(pair):
    assert pair.web.asked == {name(pair): digest([])}
    assert pair.web.tells["workers-seen"] == f"{name(pair)} running {digest([])}"
    assert pair.worker.status == testing.ActiveStatus("Worker ready")


WRONG = {
    Sight("absent"): "worker-not-listed",
    Sight("stalled", digest([])): "worker-stalled",
    Sight("landing", digest([])): "worker-landing",
    Sight("landed", digest([])): "worker-landed",
    Sight("retiring", digest([])): "worker-retiring",
    Sight("running", digest(["other"])): "worker-other-tags",
}


@pytest.mark.parametrize("sight", WRONG, ids=lambda sight: f"{sight.state}-{sight.tags[:4]}")
def test_what_is_wrong_is_waited_for_first_and_then_said_with_its_remedy(pair, sight):
    # Web has yet to answer where the tags alone are others.
    at_once = seen_as(pair, sight)
    assert at_once.name == ("active" if sight.state == "running" else "waiting")
    status = seen_as(pair, sight, seconds=61)
    assert status.name == "waiting"
    assert status.message.startswith("Waiting: web ")
    assert RESTART not in status.message
    text = messages.text(WRONG[sight], name=name(pair), restart=RESTART)
    assert seen_as(pair, sight, seconds=601) == testing.BlockedStatus(text)
    good = Sight("running", digest([]))
    assert seen_as(pair, good, seconds=601) == testing.ActiveStatus("Worker ready")


def test_new_tags_are_seen_with_the_hooks_that_follow(pair):
    before = dict(pair.worker.state.config)
    pair.worker.state = dataclasses.replace(
        pair.worker.state, config={**before, "extra-tags": "rack-7"}
    )
    pair.worker.run(pair.worker.context.on.config_changed())
    assert pair.worker.status == testing.ActiveStatus("Worker ready")
    pair.settle()
    assert pair.worker.status == testing.ActiveStatus("Worker ready")
    assert pair.web.asked == {name(pair): digest(["rack-7"])}


def test_a_worker_that_was_paused_is_looked_at_again_as_it_is_resumed(pair):
    """Web has an event of its own meanwhile, and then none but what the worker tells it."""
    pair.worker.rooms(worker_name=name(pair))
    pair.worker.action("pause", reason="new fans")
    assert "worker-tags" not in pair.worker.tells
    assert seen_as(pair, Sight("landed", digest([]))).message.startswith("Paused: new fans")
    assert pair.web.asked == {name(pair): ""}
    assert pair.settle() == 0
    pair.web.rooms(sights={})
    pair.worker.action("resume")
    assert pair.worker.status.message.endswith("as landed (fly land-worker)")
    pair.settle()
    assert pair.worker.status == testing.ActiveStatus("Worker ready")
    assert pair.web.asked == {name(pair): digest([])}


def test_a_web_that_can_not_be_asked_says_nothing_new(pair):
    seen = pair.web.tells["workers-seen"]
    pair.web.rooms(sights=None)
    pair.web.run()
    assert pair.web.tells["workers-seen"] == seen


def test_the_connection_counts_first(pair):
    pair.worker.rooms(connected=False)
    status = seen_as(pair, Sight("stalled", digest([])), seconds=601)
    assert status.message.startswith("Waiting for a lasting connection to web's TSA")


def test_one_web_that_sees_it_as_it_is_is_enough(context, rooms):
    told = tsa()
    data = told.remote_units_data[0]
    own = {"worker-name": "w"}
    units = {
        0: {**data, "workers-seen": "w stalled"},
        1: {**data, "workers-seen": f"w running {digest([])}"},
    }
    for wrong, kept in ((False, units), (True, {0: units[0]})):
        relation = dataclasses.replace(told, remote_units_data=kept, local_unit_data=own)
        after = context.run(context.on.update_status(), state(relations=[relation]))
        assert after.unit_status.name == ("waiting" if wrong else "active")


@pytest.mark.parametrize(
    "text",
    ["w", "w flying", "w running x", "w running\nw/0 \x1b[31m", f"w running {'0' * 31}", "\n"],
)
def test_what_no_web_tells_is_refused_in_words(context, rooms, text):
    relation = tsa(workers_seen=text)
    after = context.run(context.on.relation_changed(relation), state(relations=[relation]))
    words = "refused workers-seen of web/0: is no NAME STATE TAGS"
    assert after.unit_status == testing.ActiveStatus(f"Worker ready ({words})")


@pytest.mark.parametrize("bad", ["a b", "-x", "../w", "w\nother running", "x" * 201, "ü"])
def test_a_name_that_is_none_is_not_asked_for(context, rooms, bad):
    relation = workers(WORKER_KEY)
    data = {0: {"worker-public-key": WORKER_KEY, "worker-name": bad, "worker-tags": "x"}}
    relation = dataclasses.replace(relation, remote_units_data=data)
    before = context.run(context.on.update_status(), state("web", [database(), relation]))
    told = context.run(context.on.update_status(), before).get_relation(relation.id)
    assert rooms.asked == {}
    assert "workers-seen" not in told.local_unit_data


def test_a_worker_beside_its_web_is_asked_for_here(context, rooms):
    rooms.sights = {"ci-unit-0": Sight("absent")}
    before = state("all")
    after = context.run(context.on.update_status(), before)
    (own,) = rooms.asked
    rooms.sights = {own: Sight("absent")}
    rooms.wrong_seconds = 601
    after = context.run(context.on.update_status(), after)
    assert after.unit_status.message.startswith(f"Web does not list worker {own}")
    rooms.sights = {}
    after = context.run(context.on.update_status(), after)
    assert after.unit_status == testing.ActiveStatus("Web and worker ready")


def test_a_worker_whose_unit_is_gone_leaves_webs_list(pair):
    """It could not sign off, as web takes its key no more from when its relation goes."""
    gone = name(pair)
    pair.web.rooms(pruned=None)
    pair.web.run()
    assert pair.web.pruned is None, "a unit that is related is no business of this"
    related = pair.web.state
    pair.web.rooms(sights={gone: Sight("running")})
    others = [one for one in related.relations if one.endpoint != "web-tsa"]
    pair.web.state = dataclasses.replace(related, relations=others)
    pair.web.run()
    assert pair.web.pruned == {gone}
    # It still ran then; so it is asked for again, until web does not list it.
    pair.web.rooms(sights={}, pruned=None)
    pair.web.run()
    assert pair.web.pruned == {gone}
    pair.web.rooms(pruned=None)
    pair.web.run()
    assert pair.web.pruned is None


def test_one_that_comes_back_is_no_longer_gone(pair):
    related = pair.web.state
    pair.web.rooms(sights={name(pair): Sight("running")})
    others = [one for one in related.relations if one.endpoint != "web-tsa"]
    pair.web.state = dataclasses.replace(related, relations=others)
    pair.web.run()
    pair.web.state = related
    pair.web.rooms(sights={name(pair): Sight("stalled")}, pruned=None)
    pair.web.run()
    assert pair.web.pruned is None


def test_the_workers_of_a_web_that_goes_are_no_less_there(pair, monkeypatch):
    """Juju parts it from each in turn, though they and their other webs stay."""
    departing = property(lambda event: event.framework.model.unit)
    monkeypatch.setattr(ops.RelationDepartedEvent, "departing_unit", departing)
    pair.web.rooms(sights={}, pruned=None)
    relation = pair.web.relation()
    gone = dataclasses.replace(relation, remote_units_data={})
    others = [one for one in pair.web.state.relations if one.id != relation.id]
    pair.web.state = dataclasses.replace(pair.web.state, relations=[*others, gone])
    pair.web.run(pair.web.context.on.relation_departed(gone, remote_unit=0))
    pair.web.run(pair.web.context.on.relation_broken(gone))
    assert pair.web.pruned is None


def test_what_a_web_served_is_forgotten_with_it(pair):
    served = pair.web.records.unit.folder / "served-workers.json"
    pair.web.run()
    assert served.exists()
    before = dict(pair.web.state.config)
    changed = {**before, "deployment-mode": "worker"}
    pair.web.state = dataclasses.replace(pair.web.state, config=changed)
    pair.web.run(pair.web.context.on.config_changed())
    assert not served.exists()
