# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Related to the public charm, either side: what it writes is read, what it reads it can bear."""

import dataclasses

import pytest
from ops import testing

from ci.concourse import rsa_keys as keys
from options.ssh import public_key
from plan.network import Interface
from tests import once
from tests.fakes.public_charm import PublicWeb, PublicWorker
from tests.unit.situations import HOST_KEY, WORKER_KEY, database, state

OTHER_KEY = keys.public_key_line(once.rsa_key(10))


class Related:
    """One unit of ours related to one of theirs; Juju's part: a hook for each change of data."""

    def __init__(self, context, theirs, mode, endpoint, options=(), remote="concourse-ci"):
        self.context, self.theirs = context, theirs
        self.data: dict[str, str] = {}
        self.relation = testing.Relation(
            endpoint, interface="concourse-ci_tsa", remote_app_name=remote,
            remote_units_data={0: {}},
        )  # fmt: skip
        relations = [self.relation, *([database()] if mode == "web" else [])]
        self.state = state(mode, relations, **dict(options))
        self.told: dict[str, str] = {}

    def join(self):
        self.theirs.joined(self.data)
        self.hook()

    def hook(self, event=None):
        """Ours hears what they tell; then they, if we told anything new."""
        others = [one for one in self.state.relations if one.id != self.relation.id]
        now = self.state.get_relation(self.relation.id)
        self.relation = dataclasses.replace(now, remote_units_data={0: dict(self.data)})
        before = dataclasses.replace(self.state, relations=[*others, self.relation])
        self.state = self.context.run(
            event or self.context.on.relation_changed(self.relation, remote_unit=0), before
        )
        told = dict(self.state.get_relation(self.relation.id).local_unit_data)
        if told != self.told:
            self.told = told
            self.theirs.changed({"unit/0": told})

    @property
    def status(self):
        return self.state.unit_status


@pytest.fixture
def their_web(context, rooms):
    """Our worker at their web, by flight."""
    related = Related(context, PublicWeb(HOST_KEY), "worker", "flight")
    related.join()
    return related


@pytest.fixture
def their_worker(context, rooms):
    """Their worker at our web, by tsa."""
    related = Related(context, PublicWorker(f"{OTHER_KEY}\n"), "web", "tsa")
    related.join()
    return related


def test_our_worker_joins_their_web_with_one_line_of_the_file(rooms, their_web):
    assert rooms.worker.tsa_hosts == ("10.0.0.5:2222",)
    assert rooms.worker.tsa_public_keys == (HOST_KEY,)
    assert their_web.theirs.file == f"{WORKER_KEY}\n"
    assert their_web.theirs.restarts == 1
    assert their_web.status == testing.ActiveStatus("Worker ready")


def test_whatever_our_worker_does_it_costs_their_web_no_second_restart(rooms, their_web):
    for _ in range(3):
        their_web.hook(their_web.context.on.update_status())
    config = {**their_web.state.config, "extra-tags": "rack-7"}
    their_web.state = dataclasses.replace(their_web.state, config=config)
    their_web.hook(their_web.context.on.config_changed())
    assert rooms.worker.tags == ("rack-7",)
    assert their_web.theirs.file == f"{WORKER_KEY}\n"
    assert their_web.theirs.restarts == 1


def test_their_web_that_comes_with_another_address_is_told_by_nobody_but_a_new_join(
    rooms, their_web
):
    """It publishes once: the stale address stays until it joins anew."""
    their_web.theirs.address = "10.0.0.9"
    their_web.hook()
    assert rooms.worker.tsa_hosts == ("10.0.0.5:2222",)
    their_web.join()
    assert rooms.worker.tsa_hosts == ("10.0.0.9:2222",)


def test_their_web_that_upgrades_itself_to_a_release_without_a_checksum_is_not_followed(
    rooms, their_web
):
    their_web.theirs.upgraded(their_web.data, "8.4.1")
    their_web.hook()
    assert their_web.status.name == "active"
    assert "Concourse 8.4.1, which this worker cannot install" in their_web.status.message
    assert rooms.worker.tsa_hosts


def test_a_key_of_theirs_with_a_line_end_is_taken_and_one_with_two_lines_is_not(rooms, their_web):
    their_web.data["tsa-public-key"] = f"{HOST_KEY} comment\r\n"
    their_web.hook()
    assert rooms.worker.tsa_public_keys == (HOST_KEY,)
    their_web.data["tsa-public-key"] = f"{HOST_KEY}\n{OTHER_KEY}"
    their_web.hook()
    assert their_web.status.name == "waiting"
    assert "is not one line" in their_web.status.message


def test_our_key_is_not_rotated_where_the_old_one_would_be_taken_for_ever(rooms, their_web):
    rooms.concourse.keys.ensure("")
    with pytest.raises(testing.ActionFailed, match="concourse-ci/0 does not report which keys"):
        their_web.context.run(their_web.context.on.action("rotate-worker-key"), their_web.state)


def test_their_worker_joins_our_web_with_one_restart(rooms, their_worker):
    theirs = their_worker.theirs
    assert rooms.web.worker_keys == (OTHER_KEY,)
    assert theirs.key_file == f"{HOST_KEY}\n"
    assert theirs.host == "192.0.2.0:2222"
    assert (theirs.installed, theirs.restarts) == ([], 1)
    assert public_key(theirs.key_file) == HOST_KEY


def test_whatever_our_web_does_otherwise_restarts_their_worker_no_more(rooms, their_worker):
    rooms.sights = {"any": None}
    for _ in range(3):
        their_worker.hook(their_worker.context.on.update_status())
    config = {**their_worker.state.config, "external-url": "https://ci.example.com"}
    their_worker.state = dataclasses.replace(their_worker.state, config=config)
    their_worker.hook(their_worker.context.on.config_changed())
    assert their_worker.theirs.restarts == 1
    kept = {"tsa-host", "tsa-public-key", "concourse-version", "request-timeout"}
    juju = {"egress-subnets", "ingress-address", "private-address"}
    assert their_worker.told.keys() - juju == kept


def test_gpus_of_other_workers_are_not_told_to_theirs(rooms, their_worker):
    peers = testing.PeerRelation("peers", peers_data={1: {"gpus": "- GPU-1"}})
    others = [one for one in their_worker.state.relations if one.endpoint != "peers"]
    their_worker.state = dataclasses.replace(their_worker.state, relations=[*others, peers])
    their_worker.hook(their_worker.context.on.update_status())
    assert their_worker.theirs.restarts == 1


def test_our_webs_new_address_is_published_again_and_theirs_follows(rooms, their_worker):
    rooms.interfaces = (Interface("eth0", addresses=("10.0.0.77",), has_default_route=True),)
    config = {**their_worker.state.config, "web-advertise-address": "10.0.0.0/16"}
    their_worker.state = dataclasses.replace(their_worker.state, config=config)
    their_worker.hook(their_worker.context.on.config_changed())
    assert their_worker.theirs.host == "10.0.0.77:2222"
    assert their_worker.theirs.restarts == 2


def test_our_webs_release_is_installed_by_theirs_once(rooms, their_worker):
    their_worker.theirs.version = "8.2.5"
    for _ in range(2):
        their_worker.theirs.changed({"unit/0": their_worker.told})
    assert their_worker.theirs.installed == ["8.3.0"]


def test_the_tsas_new_key_costs_their_worker_one_restart(rooms, monkeypatch, their_worker):
    new_pem = once.rsa_key(11)
    monkeypatch.setattr(keys, "generate_private_key", lambda: new_pem)
    action = their_worker.context.on.action("rotate-tsa-key", params={"force": False})
    their_worker.hook(action)
    assert their_worker.context.action_results["waits-for"] == "nobody"
    new = their_worker.context.action_results["next-public-key"]
    for _ in range(2):
        their_worker.hook(their_worker.context.on.update_status())
    assert their_worker.theirs.key_file == f"{new}\n"
    assert their_worker.theirs.restarts == 2


def test_a_key_of_their_worker_that_is_more_than_a_key_is_refused(rooms, their_worker):
    their_worker.data["worker-public-key"] = f"{OTHER_KEY}\n{WORKER_KEY}"
    their_worker.hook()
    assert rooms.web.worker_keys == ()
    assert rooms.authorized == ()
    assert "refused worker-public-key of concourse-ci/0" in their_worker.status.message


def test_their_workers_key_is_revoked_when_it_departs(rooms, their_worker):
    gone = dataclasses.replace(
        their_worker.state.get_relation(their_worker.relation.id), remote_units_data={}
    )
    others = [one for one in their_worker.state.relations if one.id != gone.id]
    before = dataclasses.replace(their_worker.state, relations=[*others, gone])
    event = their_worker.context.on.relation_departed(gone, remote_unit=0, departing_unit=0)
    their_worker.context.run(event, before)
    assert rooms.authorized == ()
