# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's door, towards others: good, missing, malformed and hostile relation data."""

import dataclasses
import json

import pytest
from ops import testing

from ci.concourse.plan import messages
from relations.model import Database
from tests import certificates
from tests.unit.situations import (
    HOST_KEY,
    HOST_PEM,
    WORKER_KEY,
    database,
    state,
    tsa,
    two_webs,
    workers,
)

CA = certificates.ca()


@pytest.mark.parametrize(
    ("endpoint", "interface"), [("worker-tsa", "concourse-tsa"), ("flight", "concourse-ci_tsa")]
)
def test_worker_joins_over_either_interface(context, rooms, endpoint, interface):
    relation = tsa(endpoint, interface)
    context.run(context.on.relation_changed(relation), state(relations=[relation]))
    assert rooms.worker.tsa_public_keys == (HOST_KEY,)


@pytest.mark.parametrize(
    "data",
    [
        {"tsa_host": "10.0.0.5:2222\nCONCOURSE_TAG=x"},
        {"tsa_host": "$(reboot):2222"},
        {"tsa_public_key": f"{HOST_KEY}\n{WORKER_KEY}"},
        {"tsa_public_key": "ssh-rsa AAAA"},
        {"tsa_public_key": f'command="id" {HOST_KEY}'},
        {"concourse_version": "8.3.0; rm -rf /"},
    ],
)
def test_hostile_data_of_a_web_is_refused_in_words(context, rooms, data):
    relation = tsa(**data)
    after = context.run(context.on.relation_changed(relation), state(relations=[relation]))
    assert rooms.worker is None
    assert after.unit_status.name == "waiting"
    assert "web/0" in after.unit_status.message


@pytest.mark.parametrize("missing", ["tsa_host", "tsa_public_key"])
def test_half_of_the_webs_data_is_waited_for(context, rooms, missing):
    relation = tsa(**{missing: ""})
    after = context.run(context.on.relation_changed(relation), state(relations=[relation]))
    assert after.unit_status == testing.WaitingStatus(
        "Waiting for the web unit to publish its TSA address and key"
    )
    assert rooms.worker is None


def test_a_web_that_gets_a_worker_of_its_own_takes_its_key_at_once(context, rooms):
    """Its other keys are there before; so nothing else has the hook look at web's again."""
    before = context.run(context.on.config_changed(), state("web", [database()]))
    assert rooms.web.worker_keys == ()
    both = dataclasses.replace(before, config={**before.config, "deployment-mode": "all"})
    context.run(context.on.config_changed(), both)
    assert rooms.web.worker_keys == (WORKER_KEY,)


@pytest.mark.parametrize(
    ("endpoint", "interface"), [("web-tsa", "concourse-tsa"), ("tsa", "concourse-ci_tsa")]
)
def test_web_publishes_its_tsa_and_takes_worker_keys(context, rooms, endpoint, interface):
    relation = workers(WORKER_KEY, "", endpoint=endpoint, interface=interface)
    before = state("web", [database(), relation])
    after = context.run(context.on.relation_changed(relation), before)
    assert rooms.web.worker_keys == (WORKER_KEY,)
    data = after.get_relation(relation.id).local_unit_data
    assert data["tsa-host"].endswith(":2222")
    assert data["tsa-public-key"] == HOST_KEY
    assert data["concourse-version"] == "8.3.0"
    assert data["request-timeout"] == "2100"
    assert {port.port for port in after.opened_ports} == {8080, 2222}


@pytest.mark.parametrize(
    ("timeouts", "wait"),
    [
        (("2100", "2100"), 1800),
        (("7200", "600"), 540),
        (("300", "7200"), 240),
        # One that does not say it may be the one that a step comes from.
        (("2100", ""), 280),
        (("", ""), 280),
    ],
)
def test_a_task_waits_no_longer_than_every_web_allows(context, rooms, timeouts, wait):
    relation = two_webs(*timeouts)
    before = state(relations=[relation], enable_gpu=True, gpu_wait_timeout="30m")
    after = context.run(context.on.relation_changed(relation), before)
    assert rooms.gpu.wait_timeout == wait
    assert ("gpu-wait-timeout limited to" in after.unit_status.message) == (wait < 1800)


@pytest.mark.parametrize(
    "text", ["299", "7201", "-600", "0", "35m", "600s", "1e3", "600\n", " 600", "²", "9" * 5000]
)
def test_a_webs_timeout_that_can_not_be_believed_is_refused_in_words(context, rooms, text):
    relation = two_webs("2100", text)
    before = state(relations=[relation], enable_gpu=True, gpu_wait_timeout="30m")
    after = context.run(context.on.relation_changed(relation), before)
    assert rooms.gpu.wait_timeout == 280
    assert rooms.worker.tsa_hosts == ("10.0.0.5:2222", "10.0.0.6:2222")
    assert after.unit_status.name == "active"
    assert after.unit_status.message.endswith(
        "; refused request-timeout of web/1: is not a number from 300 to 7200)"
    )


def test_a_worker_key_with_a_second_line_is_refused(context, rooms):
    relation = workers(WORKER_KEY, f"{WORKER_KEY}\n{HOST_KEY}")
    before = state("web", [database(), relation])
    after = context.run(context.on.relation_changed(relation), before)
    assert rooms.web.worker_keys == (WORKER_KEY,)
    assert after.unit_status == testing.ActiveStatus(
        "Web ready (refused worker-public-key of worker/1: is not one line)"
    )


def test_a_departed_workers_key_is_revoked(context, rooms):
    gone = workers()
    before = state("web", [database(), gone])
    context.run(context.on.relation_departed(gone, remote_unit=0, departing_unit=0), before)
    assert rooms.web.worker_keys == ()


def test_web_takes_the_database_from_secrets(context, rooms):
    user = testing.Secret({"username": "relation-5", "password": "s3cret"})
    tls = testing.Secret({"tls": "True", "tls-ca": CA})
    relation = database(
        **{
            "endpoints": "10.0.0.9:5432,10.0.0.8:5432",
            "secret-user": user.id,
            "secret-tls": tls.id,
        }
    )
    before = dataclasses.replace(state("web", [relation]), secrets=[user, tls])
    after = context.run(context.on.relation_changed(relation), before)
    assert rooms.web.database == Database(
        "10.0.0.9",
        5432,
        "concourse",
        "relation-5",
        "s3cret",
        tls=True,
        ca=CA,
        others=("10.0.0.8",),
    )
    asked = after.get_relation(relation.id).local_app_data
    assert asked["database"] == "concourse"
    assert json.loads(asked["requested-secrets"]) == [
        "username",
        "password",
        "tls",
        "tls-ca",
        "uris",
    ]


@pytest.mark.parametrize(
    "data",
    [
        {"endpoints": "10.0.0.9:5432"},
        {"endpoints": "10.0.0.9", "username": "u", "password": "p"},
        {"endpoints": "a b:1", "username": "u", "password": "p"},
        {"endpoints": "10.0.0.9:5432", "username": "u", "password": "p\nCONCOURSE_X=1"},
        {"endpoints": "10.0.0.9:5432", "secret-user": "secret:nowhere"},
    ],
)
def test_incomplete_or_hostile_database_data_is_waited_for(context, rooms, data):
    relation = database(**data)
    after = context.run(context.on.relation_changed(relation), state("web", [relation]))
    assert after.unit_status.name == "waiting"
    assert rooms.web is None


def test_web_secrets_are_made_once_and_by_the_leader_alone(context, rooms):
    before = state("web", [database()], leader=False)
    after = context.run(context.on.update_status(), before)
    assert after.unit_status == testing.WaitingStatus(messages.text("no-web-keys"))
    led = context.run(context.on.update_status(), dataclasses.replace(after, leader=True))
    again = context.run(context.on.update_status(), led)
    assert len(list(led.secrets)) == 1
    assert list(again.secrets) == list(led.secrets)
    for relation in again.relations:
        assert "secret-password" not in str(relation)


def test_own_departure_retires_the_worker_and_nothing_starts_it_again(context, rooms):
    relation = tsa()
    before = state(relations=[relation], enable_gpu=True)
    context.run(context.on.relation_departed(relation, remote_unit=0, departing_unit=None), before)
    assert "worker.retire" not in rooms.calls
    rooms.calls.clear()
    rooms.leaving = True
    after = context.run(context.on.relation_broken(relation), before)
    assert "worker.apply" not in rooms.calls
    assert after.unit_status.name == "maintenance"


def test_a_worker_key_out_of_a_secret(context, rooms):
    secret = testing.Secret({"private-key": HOST_PEM}, owner=None)
    before = dataclasses.replace(
        state(relations=[tsa()], worker_private_key=secret.id), secrets=[secret]
    )
    context.run(context.on.config_changed(), before)
    assert rooms.concourse.keys.private.read_text() == HOST_PEM
    assert rooms.worker.private_key == HOST_PEM
    assert "PRIVATE KEY" not in repr(rooms.worker)


def test_a_secret_without_a_grant_blocks_with_the_command(context, rooms):
    before = state(relations=[tsa()], worker_private_key="secret:cvq0000000000000000g")
    after = context.run(context.on.config_changed(), before)
    assert after.unit_status.name == "blocked"
    assert "juju grant-secret" in after.unit_status.message


IDLE = {
    "worker:flight beside worker-tsa": (
        "worker",
        (tsa(), tsa("flight", "concourse-ci_tsa")),
        (
            "relation flight to web does nothing beside worker-tsa: juju remove-relation "
            "unit:flight web"
        ),
    ),
    "worker:postgresql": (
        "worker",
        (tsa(), database()),
        (
            "relation postgresql to postgresql does nothing in deployment-mode worker: juju "
            "remove-relation unit:postgresql postgresql"
        ),
    ),
    "the wrong way round": (
        "worker",
        (tsa("tsa", "concourse-ci_tsa"),),
        (
            "relation tsa to web does nothing in deployment-mode worker: juju remove-relation "
            "unit:tsa web"
        ),
    ),
    "web:tsa beside web-tsa": (
        "web",
        (
            database(),
            tsa("web-tsa", tsa_host="", tsa_public_key=""),
            tsa("tsa", "concourse-ci_tsa", tsa_host="", tsa_public_key=""),
        ),
        "relation tsa to web does nothing beside web-tsa: juju remove-relation unit:tsa web",
    ),
}


@pytest.mark.parametrize("case", IDLE)
def test_a_relation_that_does_nothing_is_named(context, rooms, case):
    mode, relations, said = IDLE[case]
    after = context.run(context.on.update_status(), state(mode, list(relations)))
    assert said in after.unit_status.message
    left = [one for one in relations if f"relation {one.endpoint} " not in said]
    after = context.run(context.on.update_status(), state(mode, left))
    assert "does nothing" not in after.unit_status.message
