# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's door: what is wrong with one part of a unit is no other part's, and no key's."""

import errno
import os

import ops
import pytest
from ops import testing

from ci.concourse import rsa_keys as keys
from ci.concourse.plan import messages
from ci.concourse.web import local_postgresql
from machine import download, process
from tests.unit.situations import WORKER_KEY, Release, Releases, database, state, tsa, workers

DEPARTED = "the key of a worker that is gone"


def fails(error):
    def fail(*_):
        raise error

    return fail


def test_web_and_worker_get_the_database_and_the_keys_of_their_unit(context, rooms):
    given = []
    rooms.hand_in(
        apply_web=lambda _, database, _say: given.append(database),
        apply_worker=lambda _, keys, _say: given.append(keys),
    )
    context.run(context.on.update_status(), state("all"))
    assert given == [rooms.concourse.database, rooms.concourse.keys]


@pytest.mark.parametrize(
    "wrong",
    [
        {"options": {"external_url": "x"}},
        {"options": {"deployment_mode": "wbe"}},
        {"options": {"concourse_version": "9.9.9"}},
        {"release": download.UnreachableError("no route")},
        {"web": local_postgresql.DatabaseError("does not answer")},
        {"relations": ()},
        {"relations": (database(endpoints="", username="u", password="p"),)},
    ],
)
def test_the_key_of_a_departed_worker_is_revoked_whatever_is_wrong(context, rooms, wrong):
    rooms.authorized = (DEPARTED, WORKER_KEY)
    rooms.release_error = wrong.get("release")
    if "web" in wrong:
        rooms.hand_in(apply_web=fails(wrong["web"]))
    relation = workers(WORKER_KEY)
    relations = (relation, *wrong.get("relations", (database(),)))
    before = state(relations=relations, **{"mode": "web", **wrong.get("options", {})})
    context.run(context.on.relation_changed(relation), before)
    assert rooms.authorized == (WORKER_KEY,)


class LeavesIt(Releases):
    """8.3.1 is no good here."""

    def __init__(self, rooms):
        super().__init__(rooms)
        self._left = []

    def ensure(self, wanted, say, is_time):
        return Release("8.3.0", failed=self._left[-1]) if self._left else Release("8.3.1")

    def judge(self, plan, say):
        return "" if self._left else "its worker does not run"

    def go_back(self, now, back, why, *, alone):
        self._left.append(why)

    def installed(self):
        return Release("8.3.1")

    def before(self):
        return Release("8.3.0")


def test_a_release_that_is_left_again_is_said_by_the_hook_that_leaves_it(context, rooms):
    rooms.hand_in(releases=LeavesIt(rooms))
    after = context.run(context.on.config_changed(), state(relations=[tsa()]))
    assert after.unit_status.name == "blocked"
    assert after.unit_status.message.startswith(
        "Upgrade to Concourse 8.3.1 failed (its worker does not run); rolled back to 8.3.0: "
    )


def test_a_bad_option_of_the_web_does_not_keep_the_worker_beside_it_from_its_tags(context, rooms):
    before = state("all", external_url="javascript://x", extra_tags="rack-7")
    after = context.run(context.on.config_changed(), before)
    assert rooms.worker.tags == ("rack-7",)
    assert rooms.web is None
    assert after.unit_status == testing.BlockedStatus(
        "external-url 'javascript://x' is not a URL: use http://HOST or https://HOST"
    )


def test_a_release_that_cannot_be_had_does_not_keep_gpus_from_changing(context, rooms):
    rooms.release_error = download.DownloadError("another checksum")
    before = state(relations=[tsa()], enable_gpu=True, gpu_device_ids="1")
    after = context.run(context.on.config_changed(), before)
    assert len(rooms.gpu.gpus) == 1
    assert rooms.worker is None
    assert after.unit_status == testing.BlockedStatus("another checksum")


COMMAND = ["/usr/bin/systemctl", "restart", "concourse-worker.service"]
TOLD = "Job for concourse-worker.service failed because the control process exited"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (process.CommandError(COMMAND, 1, TOLD), testing.BlockedStatus, TOLD),
        (process.CommandError(COMMAND, None, ""), testing.WaitingStatus, "ran out of time"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), testing.WaitingStatus, "No space left"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), testing.BlockedStatus, "Read-only file"),
    ],
)
def test_a_worker_that_systemd_or_the_disk_refuses_is_told_and_fails_no_hook(
    context, rooms, error, kind, said
):
    rooms.hand_in(apply_worker=fails(error))
    after = context.run(context.on.config_changed(), state("all", relations=[database()]))
    assert rooms.web is not None
    assert isinstance(after.unit_status, kind)
    assert said in after.unit_status.message
    of_service = isinstance(error, process.CommandError)
    where = "journalctl -u concourse-worker" if of_service else "juju debug-log --include unit/0"
    assert after.unit_status.message.endswith(f"next event: {where}")


def test_the_database_is_asked_for_before_the_release_is_downloaded(context, rooms):
    asked = database(endpoints="")
    rooms.release_error = download.UnreachableError("no route")
    after = context.run(context.on.relation_created(asked), state("web", relations=[asked]))
    assert after.get_relation(asked.id).local_app_data["database"] == "concourse"


def test_a_worker_is_named_by_model_application_and_number_and_keeps_a_name_that_it_has(
    context, rooms
):
    before = state(relations=[tsa()])
    context.run(context.on.config_changed(), before)
    assert rooms.worker.name == f"{before.model.name}-unit-0"
    rooms.worker_name = "worker-0"
    context.run(context.on.config_changed(), before)
    assert rooms.worker.name == "worker-0"


def test_two_webs_at_once_block(context, rooms):
    other = keys.public_key_line(keys.generate_private_key())
    first = tsa()
    second = testing.Relation(
        "flight",
        interface="concourse-ci_tsa",
        remote_app_name="other",
        remote_units_data={
            0: {"tsa-host": "10.0.0.6:2222", "tsa-public-key": other, "concourse-version": "8.3.0"}
        },
    )
    after = context.run(context.on.config_changed(), state(relations=[first, second]))
    assert after.unit_status == testing.BlockedStatus(
        messages.text("several-webs", webs="other and web", application="unit")
    )
    assert rooms.worker is None


REFUSED = "ERROR could not download resource: connection refused"
NOT_ATTACHED = (
    "ERROR could not download resource: resource concourse of application unit not found"
)


def test_a_resource_that_nobody_attached_is_none(context, rooms, monkeypatch):
    monkeypatch.setattr(ops.Resources, "fetch", fails(ops.ModelError(NOT_ATTACHED)))
    after = context.run(context.on.config_changed(), state(relations=[tsa()]))
    assert after.unit_status == testing.ActiveStatus("Worker ready")
    assert "release.ensure" in rooms.calls


def test_an_unknown_resource_keeps_what_is(context, rooms, monkeypatch):
    monkeypatch.setattr(ops.Resources, "fetch", fails(ops.ModelError(REFUSED)))
    after = context.run(context.on.config_changed(), state(relations=[tsa()]))
    assert after.unit_status.name == "waiting"
    assert "the resource concourse" in after.unit_status.message
    assert "release.ensure" not in rooms.calls
