# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's door where Juju doesn't give what is in a secret: not yet, or no longer."""

import dataclasses

import ops
import pytest
from ops import testing
from scenario import mocking

from ci.concourse.plan import messages
from tests.unit.situations import DATABASE, HOST_PEM, database, state, tsa

# What `secret-get` says (juju 4.0.15); ops has no class of its own for it.
DENIED = "ERROR permission denied\n"
WAITING = testing.WaitingStatus(messages.text("database-secret-not-granted"))
LOST = testing.BlockedStatus(messages.text("web-keys-lost", application="unit"))


@pytest.fixture
def juju(monkeypatch):
    """Denies the secrets that are told to it, and says what else is told to it."""
    said = {}
    real = mocking._MockModelBackend.secret_get

    def secret_get(self, **options):
        if options["id"] in said:
            raise ops.ModelError(said[options["id"]])
        return real(self, **options)

    monkeypatch.setattr(mocking._MockModelBackend, "secret_get", secret_get)
    return said


def offered(secret="secret-user", **data):
    """A database whose credentials, or certificate, are in a secret."""
    inside = {"username": "u", "password": "p"} if secret == "secret-user" else {"tls": "True"}
    content = testing.Secret(inside)
    given = {"endpoints": "10.0.0.9:5432", secret: content.id, **data}
    return content, database(**given)


@pytest.mark.parametrize("secret", ["secret-user", "secret-tls"])
@pytest.mark.parametrize("why", ["denied", "missing"])
def test_a_databases_secret_is_waited_for_until_it_is_granted(context, rooms, juju, secret, why):
    plain = {"username": "u", "password": "p"} if secret == "secret-tls" else {}
    content, relation = offered(secret, **plain)
    if why == "denied":
        juju[content.id] = DENIED
    present = [] if why == "missing" else [content]
    before = dataclasses.replace(state("web", [relation]), secrets=present)
    after = context.run(context.on.relation_changed(relation), before)
    assert after.unit_status == WAITING
    assert rooms.web is None
    juju.clear()
    granted = dataclasses.replace(after, secrets=[*after.secrets, *({content} - after.secrets)])
    after = context.run(context.on.update_status(), granted)
    assert after.unit_status == testing.ActiveStatus("Web ready")
    assert (rooms.web.database.user, rooms.web.database.tls) == ("u", secret == "secret-tls")


def test_a_web_runs_on_while_its_databases_secret_is_taken_away(context, rooms, juju):
    content, relation = offered()
    before = dataclasses.replace(state("web", [relation]), secrets=[content])
    before = context.run(context.on.update_status(), before)
    rooms.calls.clear()
    juju[content.id] = DENIED
    after = context.run(context.on.update_status(), before)
    assert after.unit_status == WAITING
    assert not {"web.apply", "web.remove"} & set(rooms.calls)


@pytest.mark.parametrize("name", ["--help", "secret:x", "secret://m/cvq0000000000000000g"])
@pytest.mark.parametrize("key", ["secret-user", "secret-tls"])
def test_what_names_no_secret_is_never_asked_for(context, rooms, juju, key, name):
    """A database that names one wrongly is not reached without TLS instead."""
    juju[name] = juju[f"secret:{name}"] = "ERROR not valid\n"
    data = {"endpoints": "10.0.0.9:5432", "username": "u", "password": "p", key: name}
    relation = database(**data)
    after = context.run(context.on.relation_changed(relation), state("web", [relation]))
    assert after.unit_status.message == messages.text(
        "unusable-database-data",
        refused=f"{key} names no secret",
        unit="unit/0",
        application="unit",
    )
    assert rooms.web is None


def test_what_juju_can_not_tell_now_fails_the_hook_which_is_tried_again(context, rooms, juju):
    content, relation = offered()
    juju[content.id] = "ERROR connection is shut down\n"
    before = dataclasses.replace(state("web", [relation]), secrets=[content])
    with pytest.raises(testing.errors.UncaughtCharmError, match="connection is shut down"):
        context.run(context.on.update_status(), before)


def test_a_worker_key_that_is_denied_blocks_with_the_command(context, rooms, juju):
    secret = testing.Secret({"private-key": HOST_PEM}, owner=None)
    juju[secret.id] = DENIED
    before = dataclasses.replace(
        state(relations=[tsa()], worker_private_key=secret.id), secrets=[secret]
    )
    after = context.run(context.on.config_changed(), before)
    assert after.unit_status == testing.BlockedStatus(
        f"worker-private-key '{secret.id}' cannot be read: juju grant-secret <secret> unit"
    )


@pytest.fixture(params=["denied", "missing"])
def lost(request, context, rooms, juju):
    """A web that ran, whose peers' secret Juju no longer gives."""
    before = context.run(context.on.update_status(), state("web", [database()]))
    assert before.unit_status == testing.ActiveStatus("Web ready")
    (secret,) = before.secrets
    rooms.calls.clear()
    rooms.new_password = "another-password"
    if request.param == "denied":
        juju[secret.id] = DENIED
        return before
    return dataclasses.replace(before, secrets=[])


@pytest.mark.parametrize("leader", [True, False])
def test_lost_keys_of_web_block_and_are_never_replaced_in_silence(context, rooms, lost, leader):
    before = dataclasses.replace(lost, leader=leader)
    after = context.run(context.on.update_status(), before)
    assert after.unit_status == LOST
    assert after.secrets == before.secrets
    assert not {"web.apply", "web.remove"} & set(rooms.calls)
    assert rooms.web.secrets.admin_password == "secret-password"
    with pytest.raises(testing.ActionFailed) as failed:
        context.run(context.on.action("get-admin-password"), before)
    assert failed.value.message == LOST.message


def test_the_leader_makes_new_keys_of_web_when_it_is_told_to(context, rooms, lost):
    after = context.run(context.on.action("replace-web-keys"), lost)
    assert context.action_results == {
        "state": "new keys and password created",
        "next": "juju run unit/leader get-admin-password",
    }
    assert after.unit_status == testing.ActiveStatus("Web ready")
    assert rooms.web.secrets.admin_password == "another-password"
    assert rooms.web.database.host == DATABASE.host
    again = context.run(context.on.update_status(), after)
    assert again.unit_status == testing.ActiveStatus("Web ready")
    context.run(context.on.action("get-admin-password"), again)
    assert context.action_results["password"] == "another-password"


def test_another_unit_names_the_one_that_can(context, rooms, lost):
    with pytest.raises(testing.ActionFailed, match="juju run unit/leader replace-web-keys"):
        context.run(context.on.action("replace-web-keys"), dataclasses.replace(lost, leader=False))


@pytest.mark.parametrize("ran", [True, False])
def test_keys_of_web_that_are_not_lost_are_not_replaced(context, rooms, ran):
    before = state("web", [database()])
    before = context.run(context.on.update_status(), before) if ran else before
    with pytest.raises(testing.ActionFailed, match="are not lost"):
        context.run(context.on.action("replace-web-keys"), before)
    assert rooms.web is None or rooms.web.secrets.admin_password == "secret-password"


def test_a_worker_beside_the_lost_web_is_left_as_it_is(context, rooms, juju):
    before = context.run(context.on.update_status(), state("all", enable_gpu=True))
    (secret,) = before.secrets
    juju[secret.id] = DENIED
    rooms.calls.clear()
    after = context.run(context.on.update_status(), before)
    assert after.unit_status == LOST
    assert "worker.remove" not in rooms.calls
    assert "runtime.remove" not in rooms.calls
