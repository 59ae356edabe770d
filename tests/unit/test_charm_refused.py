# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's door: what a full disk or systemd refuses is told, and fails no hook."""

import dataclasses
import errno
import os

import pytest
from ops import testing

from ci.concourse.web.local_postgresql import LocalDatabase
from machine import process
from plan.draining import Pause
from tests.unit.situations import GPUS, WORKER_KEY, Failing, database, state, tsa, workers

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/etc/concourse/keys")
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS), "/var/lib/gpu-ci/leaving")
STOPPED = process.CommandError(["/usr/bin/systemctl", "stop", "x.service"], 1, "Job failed")
SIGNER = testing.Relation("certificates", remote_app_name="ca")
WITHOUT_WEB = {"relations": []}
WEB = {"mode": "web", "relations": [database(), workers(WORKER_KEY)]}


def fails(error):
    def fail(*_, **__):
        raise error

    return fail


def refuse(rooms, where, error):
    """Have one call fail: a look or an effect, a removal, or an object's method."""
    kind, _, name = where.rpartition(" ")
    if kind == "remove":
        rooms.hand_in(remove={name: fails(error)})
    elif kind:
        known = getattr(rooms.concourse, kind, None) or getattr(rooms.records, kind)
        rooms.hand_in(**{kind: Failing(known, name, error)})
    else:
        rooms.hand_in(**{name: fails(error)})


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            FULL,
            "waiting",
            "No space left on device: '/etc/concourse/keys': free disk space there; tried",
        ),
        (STOPPED, "blocked", "Job failed"),
    ],
)
@pytest.mark.parametrize(
    ("where", "situation"),
    [
        ("claim has", {}),
        ("claim take", {}),
        ("authorize", WEB),
        ("signing request", {**WEB, "relations": [*WEB["relations"], SIGNER]}),
        ("remove web", {"mode": "web", "relations": []}),
        ("lost_database", WEB),
        ("keys ensure", {}),
        ("apply_worker", {"gpus": GPUS[:1]}),
        ("mount", {"gpus": GPUS}),
        ("record_unavailable", {"gpus": GPUS}),
        ("unit remember_ids", {}),
        ("waker sleep", {**WEB, "paused": True}),
        ("wrong_for", {}),
        ("trusted", {}),
        ("releases judge", {}),
        ("failing", {}),
        ("retire_worker", WITHOUT_WEB),
        ("remove worker", WITHOUT_WEB),
        ("remove runtime", {}),
    ],
)
def test_it_is_told(context, rooms, where, situation, error, kind, said):
    refuse(rooms, where, error)
    if "paused" in situation:
        rooms.records.drain.write_pause(Pause("new fans"))
    gpus = situation.get("gpus", ())
    if gpus:
        rooms.handed_out = tuple(one.uuid for one in GPUS)
        rooms.inventory = dataclasses.replace(rooms.inventory, gpus=gpus)
    before = state(
        situation.get("mode", "worker"),
        relations=situation.get("relations", [tsa()]),
        enable_gpu=bool(gpus),
    )
    after = context.run(context.on.config_changed(), before)
    assert after.unit_status.name == kind
    assert said in after.unit_status.message
    log = "journalctl -u x" if error is STOPPED else "juju debug-log --include unit/0"
    assert after.unit_status.message.endswith(f"next event: {log}")


def test_a_key_that_can_not_be_added_keeps_nothing_else_from_being_done(context, rooms):
    """The release, say, without which systemd can't start web."""
    refuse(rooms, "authorize", STOPPED)
    context.run(context.on.config_changed(), state("web", WEB["relations"]))
    assert "release.ensure" in rooms.calls
    assert rooms.web is not None


def test_without_the_tags_of_what_is_left_the_rest_is_tested(context, rooms):
    rooms.handed_out = tuple(one.uuid for one in GPUS)
    rooms.inventory = dataclasses.replace(rooms.inventory, gpus=GPUS[:1])
    rooms.hand_in(apply_worker=fails(STOPPED))
    context.run(context.on.update_status(), state(relations=[tsa()], enable_gpu=True))
    assert any(call.startswith("self-test.ensure") for call in rooms.calls)


@pytest.mark.parametrize("action", ["resume", "remove-local-database"])
def test_an_action_fails_in_words(context, rooms, tmp_path, action):
    rooms.worker_name = "ci-unit-0"
    rooms.records.drain.write_pause(Pause("new fans"))
    refuse(rooms, "worker resume", STOPPED)
    (tmp_path / "local-postgresql").write_text("")
    rooms.hand_in(database=LocalDatabase(tmp_path))
    refuse(rooms, "remove database", STOPPED)
    params = {"confirm": "concourse"} if action == "remove-local-database" else {}
    with pytest.raises(testing.ActionFailed) as failed:
        context.run(context.on.action(action, params=params), state(relations=[tsa()]))
    assert failed.value.message.endswith("x.service failed with 1: Job failed: journalctl -u x")
    assert "release.ensure" in rooms.calls  # the hook's work is done all the same


def test_an_action_says_that_the_machines_owner_can_not_be_read(context, rooms):
    refuse(rooms, "claim check", FULL)
    with pytest.raises(testing.ActionFailed) as failed:
        context.run(context.on.action("resume"), state(relations=[tsa()]))
    assert "No space left" in failed.value.message
    assert rooms.calls == []


def test_an_install_that_can_not_have_the_machine_comes_again_as_one(context, rooms):
    refuse(rooms, "claim take", FULL)
    with pytest.raises(testing.errors.UncaughtCharmError, match="No space left"):
        context.run(context.on.install(), state(relations=[tsa()]))


def departed(context, relation):
    """Unit 0 of the relation's application goes, which has this one's name."""
    return context.on.relation_departed(relation, remote_unit=0, departing_unit=0)


@pytest.mark.parametrize("hook", ["stop", "relation_departed"])
@pytest.mark.parametrize(
    ("where", "error", "kind", "done"),
    [
        ("claim has", FULL, "waiting", []),
        ("unit set_leaving", FULL, "waiting", ["worker.retire"]),
        ("unit set_leaving", READ_ONLY, "blocked", ["worker.retire"]),
        ("drain remove", FULL, "waiting", ["worker.retire"]),
        ("retire_worker", STOPPED, "blocked", []),
    ],
)
def test_a_removal_goes_on_and_starts_no_worker_again(
    context, rooms, hook, where, error, kind, done
):
    refuse(rooms, where, error)
    relation = dataclasses.replace(tsa(), remote_app_name="unit")
    event = context.on.stop() if hook == "stop" else departed(context, relation)
    after = context.run(event, state(relations=[relation]))
    assert after.unit_status.name == kind
    assert str(error) in after.unit_status.message
    assert rooms.calls == done


def test_a_web_that_leaves_and_can_not_note_it_says_so(context, rooms):
    refuse(rooms, "unit note_served", FULL)
    relation = dataclasses.replace(workers(WORKER_KEY), remote_app_name="unit")
    after = context.run(departed(context, relation), state("web", [database(), relation]))
    assert "No space left" in after.unit_status.message
    assert rooms.calls == []
