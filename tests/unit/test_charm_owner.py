# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A unit on a machine that another of this charm has, or had until it was removed by force."""

import dataclasses
import json
import pathlib

import pytest
from ops import testing

from tests.unit.situations import WORKER_KEY, database, state, tsa

HOOKS = (
    *("install", "start", "config_changed", "upgrade_charm", "update_status", "leader_elected"),
    *("stop", "remove"),
)


def has(rooms, unit):
    return json.loads(rooms.records.claim.path.read_text())["owner"]["name"] == unit


@pytest.mark.parametrize("mode", ["worker", "web", "all"])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_second_unit_touches_nothing_and_says_who_is_there(context, rooms, hook, mode):
    record = rooms.own("other/3")
    relations = {"worker": [tsa()], "web": [database()], "all": []}[mode]
    before = state(mode, relations, enable_gpu=True)
    after = context.run(getattr(context.on, hook)(), before)
    assert rooms.calls == []
    assert rooms.authorized is None
    assert rooms.records.claim.path.read_text() == record
    assert not rooms.leaving
    assert after.relations == before.relations
    assert after.secrets == before.secrets
    assert after.opened_ports == before.opened_ports
    if hook not in ("stop", "remove"):
        agent = rooms.unit("other/3").agent
        assert after.unit_status.name == "blocked"
        text = after.unit_status.message
        assert text.startswith("This machine belongs to other/3 of model ci: juju remove-unit ")
        assert str(agent) in text


@pytest.mark.parametrize(
    ("owner", "code"), [("other/3", "machine-taken"), ("gpu-ci-agent", "machine-has-agent")]
)
def test_status_has_a_code_of_its_own_for_each_kind_of_owner(context, rooms, owner, code):
    rooms.own(owner)
    with context(context.on.update_status(), state(relations=[tsa()])) as manager:
        manager.run()
        assert [line.code for line in manager.charm._reconciler.lines] == [code]


def test_a_second_unit_that_leaves_its_web_retires_nobody(context, rooms):
    rooms.own("other/3")
    relation = dataclasses.replace(tsa(), remote_app_name="unit")  # its unit 0 is this one
    departed = context.on.relation_departed(relation, remote_unit=0, departing_unit=0)
    context.run(departed, state(relations=[relation]))
    assert rooms.calls == []
    assert not rooms.leaving


@pytest.mark.parametrize(
    ("action", "params"),
    [
        ("gpu-inventory", {}),
        ("gpu-cordon", {"gpu": "0", "reason": "x"}),
        ("gpu-selftest", {}),
        ("get-admin-password", {}),
        ("remove-local-database", {"confirm": "concourse"}),
    ],
)
def test_a_second_units_actions_are_refused_and_say_who_is_there(context, rooms, action, params):
    rooms.own("other/3")
    with pytest.raises(testing.ActionFailed, match="This machine belongs to other/3 of model ci"):
        context.run(context.on.action(action, params=params), state("all"))
    assert rooms.calls == []


def test_an_action_before_the_first_hook_changes_nothing(context, rooms):
    rooms.records.claim.path.unlink()
    with pytest.raises(
        testing.ActionFailed, match="does not belong to unit/0 yet: wait for its next hook"
    ):
        context.run(context.on.action("get-admin-password"), state("all"))
    assert not rooms.records.claim.path.exists()


@pytest.mark.parametrize(("former", "model"), [("other/3", "ci"), ("unit/0", "elsewhere")])
@pytest.mark.parametrize("hook", ["install", "update_status"])
def test_what_a_unit_removed_by_force_has_left_is_cleared_first(
    context, rooms, hook, former, model
):
    rooms.own(former, model)
    if former == "other/3":  # The other one's folder is this unit's by now.
        pathlib.Path(rooms.unit(former).agent).rmdir()
    rooms.leaving = True
    after = context.run(getattr(context.on, hook)(), state(relations=[tsa()]))
    assert after.unit_status == testing.ActiveStatus("Worker ready")
    cleared = rooms.calls[: rooms.calls.index("network.ensure")]
    assert cleared == [
        "worker.retire",
        "database.set_aside",
        "worker.remove",
        "launcher.remove",
        "web.remove",
        "agent without Juju.remove",
        "health watch.remove",
        "gpu-run.remove",
        "self-test.remove",
        "engines.remove",
        "runtime.remove",
        "receipts.remove",
    ]
    assert has(rooms, "unit/0")
    rooms.calls.clear()
    context.run(context.on.update_status(), state(relations=[tsa()]))
    assert "worker.retire" not in rooms.calls


def test_clearing_that_was_cut_short_is_done_again(context, rooms):
    rooms.own("other/3")
    pathlib.Path(rooms.unit("other/3").agent).rmdir()

    def cut():
        raise InterruptedError

    rooms.hand_in(remove={"web": cut})
    with pytest.raises(testing.errors.UncaughtCharmError):
        context.run(context.on.install(), state(relations=[tsa()]))
    rooms.hand_in(remove={"web": rooms.note("web.remove")})
    rooms.calls.clear()
    context.run(context.on.install(), state(relations=[tsa()]))
    assert rooms.calls.index("web.remove") < rooms.calls.index("release.ensure")


def test_a_unit_that_is_set_up_under_the_name_of_one_removed_by_force_is_not_leaving(
    context, rooms
):
    rooms.leaving = True
    before = state(relations=[tsa()])
    assert context.run(context.on.update_status(), before).unit_status.name == "maintenance"
    after = context.run(context.on.install(), before)
    assert after.unit_status == testing.ActiveStatus("Worker ready")


def test_removal_gives_the_machine_up_and_the_next_has_it(context, rooms):
    rooms.own("other/3")
    blocked = context.run(context.on.config_changed(), state(relations=[tsa()]))
    assert blocked.unit_status.name == "blocked"
    assert "worker-public-key" not in blocked.get_relations("worker-tsa")[0].local_unit_data
    rooms.records.claim.give_up()
    after = context.run(context.on.update_status(), state(relations=[tsa()]))
    assert after.unit_status == testing.ActiveStatus("Worker ready")
    relation = after.get_relations("worker-tsa")[0]
    assert relation.local_unit_data["worker-public-key"] == WORKER_KEY
    assert has(rooms, "unit/0")
    context.run(context.on.remove(), after)
    assert not rooms.records.claim.path.exists()
