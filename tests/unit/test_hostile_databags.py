# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Hostile words under every key of every relation: no hook fails, and nothing of them is used.

The other units of the same relation count as before, status says what was refused in one line, and
good words end that. What each key may hold is in the tests of its own file.
"""

import dataclasses

import pytest
from ops import testing

from ci.concourse.web.tls import Signing
from tests.unit.situations import HOST_KEY, WORKER_KEY, database, state, tsa, workers

HOSTILE = (
    "\n", "x\nCONCOURSE_TAG=x", "$(reboot)", "--help", "\x00", "\x1b[31m", "²é\u2028", "9" * 5000,
    "[" * 100_000, '{"a": ', "../../etc/shadow", "secret:x", "-----BEGIN CERTIFICATE-----\n",
    f'command="id" {HOST_KEY}', "x" * 1_000_000, "-oProxyCommand=id:22", "%i", '"', "10.0.0.5:0",
    "10.0.0.5:65536", "[::::]:2222", "[1.2.3.4]:2222", "[fe80::1%eth0]:2222", "user@10.0.0.5:2222",
    "10.0.0.5:2222,10.0.0.6:2222",
)  # fmt: skip
WORDS = tuple(enumerate(HOSTILE, 1))
OF_WEB = (
    "tsa-host", "tsa-public-key", "concourse-version", "request-timeout", "tsa-next-public-key",
    "worker-keys-taken", "workers-seen", "gpus", "gpus-of-others",
)  # fmt: skip
OF_WORKER = (
    "worker-public-key", "worker-name", "worker-tags", "worker-next-public-key", "tsa-keys-known",
    "gpus", "gpus-of-others",
)  # fmt: skip
OF_DATABASE = (
    "endpoints", "username", "password", "database", "tls", "tls-ca", "secret-user", "secret-tls",
    "version", "uris",
)  # fmt: skip
CREDENTIALS = ("username", "password", "database")
OF_SIGNER = ("certificates", "request_errors")
LINES = ("x\nCONCOURSE_TAG=x", "\x1b[31m", "\x00", "secret:x")
# An operator reads it in one line of juju status.
LONGEST = 400


def told(context, before, relation):
    """The unit's state after it has heard of this; what it says can be read."""
    others = [one for one in before.relations if one.id != relation.id]
    before = dataclasses.replace(before, relations=[*others, relation])
    after = context.run(context.on.relation_changed(relation), before)
    text = after.unit_status.message
    assert text.isprintable()
    assert len(text) < LONGEST
    return after


def beside(good, *keys):
    """Units with a hostile word each under these keys, and one with none."""
    hostile = {number: {**good, **dict.fromkeys(keys, word)} for number, word in WORDS}
    return {0: good, **hostile}


@pytest.mark.parametrize(
    ("endpoint", "keys"), [*(("worker-tsa", (key,)) for key in OF_WEB), ("flight", OF_WEB)]
)
def test_webs_that_are_hostile_take_no_worker_from_the_one_that_is_not(
    context, rooms, endpoint, keys
):
    relation = tsa(endpoint, {"flight": "concourse-ci_tsa"}.get(endpoint, "concourse-tsa"))
    many = beside(relation.remote_units_data[0], *keys)
    many = dataclasses.replace(relation, remote_units_data=many)
    after = told(context, state(relations=[relation]), many)
    assert rooms.worker.tsa_hosts == ("10.0.0.5:2222",)
    assert rooms.worker.tsa_public_keys == (HOST_KEY,)
    # What a web takes is only compared with what the worker asks for.
    assert ("refused" in after.unit_status.message) == (keys != ("worker-keys-taken",))
    assert told(context, after, relation).unit_status == testing.ActiveStatus("Worker ready")


def test_a_web_that_names_anothers_address_does_not_take_the_others_key_from_the_worker(
    context, rooms
):
    relation = tsa()
    good = relation.remote_units_data[0]
    both = {0: good, 1: {**good, "tsa-public-key": WORKER_KEY}}
    both = dataclasses.replace(relation, remote_units_data=both)
    told(context, state(relations=[relation]), both)
    assert rooms.worker.tsa_hosts == ("10.0.0.5:2222",)
    assert {*rooms.worker.tsa_public_keys} == {HOST_KEY, WORKER_KEY}


def test_of_webs_without_number_a_worker_takes_some_and_says_so(context, rooms):
    relation = tsa()
    data = relation.remote_units_data[0]
    many = {number: {**data, "tsa-host": f"web-{number}:2222"} for number in range(3000)}
    many = dataclasses.replace(relation, remote_units_data=many)
    after = told(context, state(relations=[relation]), many)
    assert len(rooms.worker.tsa_hosts) == 100
    assert "refused tsa-host of 2900 more units: a worker takes 100" in after.unit_status.message


@pytest.mark.parametrize(
    ("endpoint", "keys"), [*(("web-tsa", (key,)) for key in OF_WORKER), ("tsa", OF_WORKER)]
)
def test_workers_that_are_hostile_have_no_key_taken(context, rooms, endpoint, keys):
    interface = {"tsa": "concourse-ci_tsa"}.get(endpoint, "concourse-tsa")
    relation = workers(WORKER_KEY, endpoint=endpoint, interface=interface)
    many = beside(relation.remote_units_data[0], *keys)
    many = dataclasses.replace(relation, remote_units_data=many)
    after = told(context, state("web", [database(), relation]), many)
    assert rooms.web.worker_keys == (WORKER_KEY,)
    named = "worker-public-key", "worker-next-public-key", "gpus", "gpus-of-others"
    assert ("refused" in after.unit_status.message) == bool({*keys} & {*named[:3]})
    assert told(context, after, relation).unit_status == testing.ActiveStatus("Web ready")


@pytest.mark.parametrize("mode", ["worker", "web", "all"])
def test_peers_that_are_hostile_change_nothing(context, rooms, mode):
    peers = testing.PeerRelation("peers", peers_data={})
    joined = tsa() if mode == "worker" else database()
    before = dataclasses.replace(state(mode), relations=[peers, joined])
    before = context.run(context.on.config_changed(), before)
    known, web, worker = before.get_relation(peers.id), rooms.web, rooms.worker
    many = beside({}, "drain", *OF_WORKER)
    del many[0]
    after = told(context, before, dataclasses.replace(known, peers_data=many))
    assert (rooms.web, rooms.worker) == (web, worker)
    assert after.unit_status.name == "active"
    assert "refused gpus of unit/1: no BOOT UUID ...;" in after.unit_status.message
    assert f"refused {len(WORDS) - 3} more" in after.unit_status.message
    calm = dataclasses.replace(known, peers_data={1: {}})
    assert told(context, after, calm).unit_status == before.unit_status


@pytest.mark.parametrize("key", OF_DATABASE)
def test_a_database_that_is_hostile_has_web_wait_with_what_it_has(context, rooms, key):
    relation = database()
    running = context.run(context.on.config_changed(), state("web", [relation]))
    known, web = running.get_relation(relation.id), rooms.web
    for word in LINES:
        data = {**known.remote_app_data, key: word}
        after = told(context, running, dataclasses.replace(known, remote_app_data=data))
        assert "web.remove" not in rooms.calls
        assert rooms.web == web or word.isprintable()
        unused = key in ("tls", "version", "uris") or (word.isprintable() and key in CREDENTIALS)
        assert after.unit_status.name == ("active" if unused else "waiting")
    assert told(context, running, known).unit_status == testing.ActiveStatus("Web ready")
    assert rooms.web == web


def test_who_signs_certificates_and_is_hostile_is_waited_for(context, rooms, tmp_path):
    rooms.hand_in(signing=Signing(tmp_path))
    relation = testing.Relation("certificates", remote_app_name="tls")
    before = state("web", [database(), relation])
    for _, word in WORDS:
        changed = dataclasses.replace(relation, remote_app_data=dict.fromkeys(OF_SIGNER, word))
        after = told(context, before, changed)
        assert after.unit_status.message.startswith("Waiting for web's certificate")
        assert rooms.web is None
