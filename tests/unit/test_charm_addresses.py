# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's door: the addresses that Juju offers, and what a unit says to others of itself."""

import dataclasses

import pytest
from ops import testing

from ci.concourse.plan import messages
from gpu_agent.model import errors
from plan.network import Interface
from tests.unit.situations import HOST_KEY, WORKER_KEY, database, state, tsa, workers

UPLINK = Interface("br-eth0", "bridge", ("10.0.0.7",), has_default_route=True)
STORAGE = Interface("eth1", addresses=("10.1.0.7",))
CONCOURSE0 = Interface("concourse0", "bridge", ("10.80.0.1",))
WEB_DATA = {
    "tsa-host": "10.0.0.7:2222",
    "tsa-public-key": HOST_KEY,
    "concourse-version": "8.3.0",
    "request-timeout": "2100",
}


def binding(endpoint, *addresses, ingress=()):
    bound = [testing.BindAddress([testing.Address(one)]) for one in addresses]
    return testing.Network(endpoint, bound, ingress_addresses=ingress or addresses)


def with_networks(before, *networks, ports=()):
    opened = {testing.TCPPort(port) for port in ports}
    return dataclasses.replace(before, networks=networks, opened_ports=opened)


def told(after, relation):
    """What this unit says in a relation, but what Juju itself puts there."""
    data = after.get_relation(relation.id).local_unit_data
    juju = ("egress-subnets", "ingress-address", "private-address")
    return {key: value for key, value in data.items() if key not in juju}


@pytest.mark.parametrize("mode", ["web", "all"])
def test_the_bridge_of_the_first_task_moves_nothing(context, rooms, mode):
    rooms.interfaces = (CONCOURSE0, UPLINK)
    relation = workers(WORKER_KEY)
    given = state(mode, [database(), relation])
    first = context.run(
        context.on.config_changed(), with_networks(given, binding("web-tsa", "10.0.0.7"))
    )
    web, said = rooms.web, told(first, relation)
    assert said == WEB_DATA
    assert (web.address, web.external_url) == ("10.0.0.7", "http://10.0.0.7:8080")
    after = context.run(
        context.on.config_changed(),
        with_networks(first, binding("web-tsa", "10.80.0.1", "10.0.0.7")),
    )
    assert (rooms.web, told(after, relation)) == (web, said)
    assert after.unit_status == first.unit_status


def test_each_relation_is_told_the_address_of_its_own_binding(context, rooms):
    rooms.interfaces = (UPLINK, STORAGE)
    ours = workers(WORKER_KEY)
    theirs = workers(WORKER_KEY, endpoint="tsa", interface="concourse-ci_tsa")
    given = with_networks(
        state("web", [database(), ours, theirs]),
        binding("web-tsa", "10.0.0.7"),
        binding("tsa", "10.1.0.7"),
    )
    after = context.run(context.on.config_changed(), given)
    assert told(after, ours)["tsa-host"] == "10.0.0.7:2222"
    assert told(after, theirs)["tsa-host"] == "10.1.0.7:2222"
    assert rooms.web.address == "10.0.0.7"


def test_what_is_published_stays_whatever_comes_first(context, rooms):
    rooms.interfaces = (UPLINK, STORAGE)
    relation = dataclasses.replace(
        workers(WORKER_KEY), local_unit_data={"tsa-host": "10.1.0.7:2222"}
    )
    given = with_networks(
        state("web", [database(), relation]), binding("web-tsa", "10.0.0.7", "10.1.0.7")
    )
    after = context.run(context.on.update_status(), given)
    assert told(after, relation)["tsa-host"] == "10.1.0.7:2222"


def test_an_address_in_front_of_the_machine_is_not_for_other_webs(context, rooms):
    rooms.interfaces = (UPLINK,)
    relation = workers(WORKER_KEY)
    offer = binding("web-tsa", "10.0.0.7", ingress=["203.0.113.9"])
    given = with_networks(state("web", [database(), relation]), offer)
    after = context.run(context.on.update_status(), given)
    assert told(after, relation)["tsa-host"] == "203.0.113.9:2222"
    assert rooms.web.address == "10.0.0.7"


def test_without_a_fit_address_web_waits_and_says_which_option_helps(context, rooms):
    rooms.interfaces = (CONCOURSE0,)
    given = with_networks(state("web", [database()]), binding("web-tsa", "10.80.0.1"))
    after = context.run(context.on.update_status(), given)
    assert after.unit_status == testing.WaitingStatus(
        messages.text("no-usable-address", offered="10.80.0.1 (concourse0)", application="unit")
    )
    assert rooms.web is None
    again = dataclasses.replace(
        given, config={**given.config, "web-advertise-address": "10.80.0.1"}
    )
    after = context.run(context.on.config_changed(), again)
    assert after.unit_status == testing.ActiveStatus("Web ready")
    assert rooms.web.address == "10.80.0.1"


def test_interfaces_that_can_not_be_read_change_nothing(context, rooms):
    def fail():
        raise errors.UnknownError("The addresses of this machine can't be told: no time")

    rooms.hand_in(interfaces=fail)
    relation = dataclasses.replace(workers(WORKER_KEY), local_unit_data=WEB_DATA)
    after = context.run(context.on.update_status(), state("web", [database(), relation]))
    assert after.unit_status.name == "waiting"
    assert rooms.calls == []
    assert told(after, relation) == WEB_DATA
    # A worker's work needs none of them.
    after = context.run(context.on.update_status(), state("worker", [tsa()]))
    assert after.unit_status == testing.ActiveStatus("Worker ready")


@pytest.mark.parametrize("related", [True, False])
def test_one_that_is_web_no_more_is_taken_for_none(context, rooms, related):
    relation = dataclasses.replace(workers(WORKER_KEY), local_unit_data=WEB_DATA)
    given = state("worker", [relation, *([tsa()] if related else [])])
    after = context.run(context.on.config_changed(), with_networks(given, ports=(8080, 2222)))
    assert told(after, relation) == {}
    assert after.opened_ports == frozenset()
    assert "web.remove" in rooms.calls


def test_one_that_is_web_no_more_withdraws_even_without_a_release(context, rooms):
    relation = dataclasses.replace(workers(WORKER_KEY), local_unit_data=WEB_DATA)
    given = state("worker", [relation], concourse_version="8.99.0")
    after = context.run(context.on.config_changed(), with_networks(given, ports=(8080, 2222)))
    assert after.unit_status.name == "blocked"
    assert told(after, relation) == {}
    assert after.opened_ports == frozenset()


def test_one_that_is_worker_no_more_takes_its_key_back(context, rooms):
    relation = dataclasses.replace(tsa(), local_unit_data={"worker-public-key": WORKER_KEY})
    after = context.run(context.on.config_changed(), state("web", [relation, database()]))
    assert told(after, relation) == {}
    assert "worker.remove" in rooms.calls


def test_a_web_that_waits_stays_published(context, rooms):
    relation = dataclasses.replace(workers(WORKER_KEY), local_unit_data=WEB_DATA)
    given = state("web", [relation, database(endpoints="10.0.0.9:5432")])
    after = context.run(context.on.config_changed(), with_networks(given, ports=(8080, 2222)))
    assert after.unit_status.name == "waiting"
    assert told(after, relation) == WEB_DATA
    assert {port.port for port in after.opened_ports} == {8080, 2222}


def test_a_worker_that_leaves_keeps_its_key_known_until_it_is_gone(context, rooms):
    rooms.leaving = True
    relation = dataclasses.replace(tsa(), local_unit_data={"worker-public-key": WORKER_KEY})
    after = context.run(context.on.update_status(), state("worker", [relation]))
    assert told(after, relation) == {"worker-public-key": WORKER_KEY}


def test_a_worker_that_web_does_not_see_is_not_called_ready(context, rooms):
    rooms.connected = False
    after = context.run(context.on.update_status(), state("worker", [tsa()]))
    assert after.unit_status == testing.WaitingStatus(
        messages.text("worker-not-connected", hosts="10.0.0.5:2222")
    )
