# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which address others are told: none that only this machine and its containers can reach."""

import dataclasses

import pytest

from ci.concourse.plan import addresses
from ci.concourse.plan.model import planned
from gpu_agent.model.keep import Keep
from plan.network import Interface, Network, Offer
from tests.unit.situations import ETH0, changed, codes, lines, make_plan, unit

UPLINK = "10.0.0.7"
PORT = Interface("eth0", master="br-eth0")
MAAS_BRIDGE = Interface("br-eth0", "bridge", (UPLINK,))
CONCOURSE0 = Interface("concourse0", "bridge", ("10.80.0.1",))
TASK = Interface("veth1234", "veth", master="concourse0")
DOCKER0 = Interface("docker0", "bridge", ("172.17.0.1",))
GUEST = Interface("vnet0", "tun", master="virbr0")
VIRBR0 = Interface("virbr0", "bridge", ("192.168.122.1",))
LXD = Interface("eth0", "veth", (UPLINK,), has_default_route=True)
STORAGE = Interface("eth1", addresses=("10.1.0.7",))
FD = "fd00::7"
SIX = Interface("eth0", addresses=(FD, UPLINK), has_default_route=True)


def offer(*found, published="", ingress=()):
    """What Juju offers of a machine: its addresses in this order, or others before them."""
    bound = tuple(address for one in found for address in one.addresses)
    return Offer(ingress or bound, bound, published)


def seen(*interfaces, published="", **changes):
    return (offer(*interfaces, published=published, **changes), interfaces)


BOND = Interface("bond0", "bond", master="br0")
BONDED = (
    *(Interface(f"eno{number}", master="bond0") for number in (1, 2)),
    dataclasses.replace(BOND, master=""),
    Interface("bond0.5", "vlan", master="br-bond0.5", lower="bond0"),
    Interface("br-bond0.5", "bridge", (UPLINK,)),
)
CHOICES = {
    "one network card": (seen(ETH0), UPLINK),
    "Concourse's bridge first": (seen(CONCOURSE0, TASK, ETH0), UPLINK),
    "Concourse's bridge first, published by mistake": (
        seen(CONCOURSE0, ETH0, published="10.80.0.1"),
        UPLINK,
    ),
    "MAAS's bridge over the card, known by its port": (
        seen(CONCOURSE0, MAAS_BRIDGE, PORT),
        UPLINK,
    ),
    "a bridge over a vlan over a bond over cards": (seen(DOCKER0, *BONDED), UPLINK),
    "a bridge that is the way out of a container": (
        seen(
            Interface("br0", "bridge", (UPLINK,), has_default_route=True),
            Interface("eth0", "veth", master="br0"),
        ),
        UPLINK,
    ),
    "a bridge with containers alone": (
        seen(
            Interface("lxdbr0", "bridge", ("10.88.0.1",)),
            Interface("veth1", "veth", master="lxdbr0"),
        ),
        "",
    ),
    "a bridge without ports": (seen(DOCKER0), ""),
    "a bridge of virtual machines": (seen(VIRBR0, GUEST, ETH0), UPLINK),
    "kube-proxy's dummy": (seen(Interface("kube-ipvs0", "dummy", ("10.96.0.1",)), ETH0), UPLINK),
    "bridges that are each other's port": (
        seen(
            Interface("br0", "bridge", ("10.2.0.1",), master="br1"),
            Interface("br1", "bridge", ("10.3.0.1",), master="br0"),
        ),
        "",
    ),
    "eth0 of an LXD container, and Concourse's bridge first": (seen(CONCOURSE0, LXD), UPLINK),
    "eth0 of a container without any route": (
        seen(CONCOURSE0, dataclasses.replace(LXD, has_default_route=False)),
        UPLINK,
    ),
    "a host's end of a container's veth first": (
        seen(Interface("cilium_host", "veth", ("10.244.0.9",)), ETH0),
        UPLINK,
    ),
    "an overlay of containers first": (
        seen(Interface("flannel.1", "vxlan", ("10.244.0.0",)), ETH0),
        UPLINK,
    ),
    "two networks: Juju's order": (seen(STORAGE, ETH0), "10.1.0.7"),
    "two networks: what is published stays": (seen(STORAGE, ETH0, published=UPLINK), UPLINK),
    "a VPN": (seen(Interface("tailscale0", "tun", ("100.64.0.7",))), "100.64.0.7"),
    "IPv6 first": (seen(SIX), FD),
    "IPv6 first, the other published": (seen(SIX, published=UPLINK), UPLINK),
    "the endpoint is bound to another space now": (
        (offer(STORAGE, published=UPLINK), (ETH0, STORAGE)),
        "10.1.0.7",
    ),
    "the published one is gone": (seen(ETH0, published="10.0.0.3"), UPLINK),
    "the published one is gone, and Juju has not noticed": (
        (Offer(("10.0.0.3",), ("10.0.0.3",), "10.0.0.3"), (ETH0, CONCOURSE0)),
        "",
    ),
    "Juju offers the bridge alone, and the machine has the published one": (
        (offer(CONCOURSE0, published=UPLINK), (CONCOURSE0, ETH0)),
        UPLINK,
    ),
    "Juju offers nothing": ((Offer(), (ETH0,)), ""),
    "two interfaces have it, one of them for containers": (
        seen(Interface("br9", "bridge", (UPLINK,)), ETH0),
        UPLINK,
    ),
    "cross-model: an address in front of the machine": (
        seen(CONCOURSE0, ETH0, ingress=("203.0.113.9",), published=UPLINK),
        "203.0.113.9",
    ),
    "cross-model: a name in front of the machine": (
        seen(ETH0, ingress=("ec2-203-0-113-9.example.com",)),
        "ec2-203-0-113-9.example.com",
    ),
    "cross-model without anything in front: the bridge first": (
        seen(CONCOURSE0, ETH0, ingress=("10.80.0.1",)),
        UPLINK,
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choice(name):
    (given, interfaces), expected = CHOICES[name]
    assert addresses.choose(given, interfaces) == expected
    # What was chosen stays, in whatever order Juju offers it the next time.
    again = Offer(given.ingress[::-1], given.bound[::-1], expected)
    if expected:
        assert addresses.choose(again, interfaces[::-1]) == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("10.1.0.0/16", "10.1.0.7"),
        ("10.0.0.0/8", UPLINK),
        ("10.80.0.0/16", ""),
        ("192.168.0.0/16", ""),
        ("fd00::/64", ""),
    ],
)
def test_a_network_narrows_the_choice_and_lets_no_bridge_in(wanted, expected):
    given = Offer((CONCOURSE0.addresses[0], UPLINK, "ci.example.com"), (UPLINK,), UPLINK)
    assert addresses.choose(given, (CONCOURSE0, ETH0, STORAGE), wanted) == expected


def web(*interfaces, wanted="", relations=(), own=None):
    network = Network(interfaces, offer(*interfaces) if own is None else own, relations)
    return unit("web", options={"web-advertise-address": wanted}, network=network)


@pytest.mark.parametrize(
    ("wanted", "peer", "url", "tsa"),
    [
        ("", UPLINK, "http://10.0.0.7:8080", UPLINK),
        # In front of the machine: other web units still reach each one by itself.
        ("203.0.113.9", UPLINK, "http://203.0.113.9:8080", "203.0.113.9"),
        ("ci.example.com", UPLINK, "http://ci.example.com:8080", "ci.example.com"),
        ("10.1.0.0/16", "10.1.0.7", "http://10.1.0.7:8080", "10.1.0.7"),
        # Where our guess is wrong, the operator's word counts.
        ("10.80.0.1", "10.80.0.1", "http://10.80.0.1:8080", "10.80.0.1"),
        ("fd00::9", UPLINK, "http://[fd00::9]:8080", "fd00::9"),
    ],
)
def test_the_option_counts_for_urls_and_workers(wanted, peer, url, tsa):
    relations = ((7, offer(CONCOURSE0, ETH0)),)
    made = make_plan(web(CONCOURSE0, ETH0, STORAGE, wanted=wanted, relations=relations))
    assert (planned(made).web.address, planned(made).web.external_url) == (peer, url)
    assert planned(made).web.tsa_addresses == ((7, tsa),)
    assert made.problems == ()


def test_each_relation_has_the_address_of_its_own_binding():
    relations = (
        (3, offer(ETH0)),
        (5, offer(STORAGE)),
        (8, offer(ETH0, ingress=("203.0.113.9",))),
    )
    made = make_plan(web(ETH0, STORAGE, relations=relations))
    assert planned(made).web.address == UPLINK
    assert planned(made).web.tsa_addresses == ((3, UPLINK), (5, "10.1.0.7"), (8, "203.0.113.9"))


def test_the_name_of_a_gateway_is_better_than_no_address():
    assert make_plan(web(DOCKER0, wanted="ci.example.com")).ci.own.web.address == "ci.example.com"


BRIDGE = "Juju offers 172.17.0.1 (docker0)"


@pytest.mark.parametrize(
    ("found", "code", "text"),
    [
        (
            web(DOCKER0, own=Offer(("172.17.0.1", "10.0.0.3"), ("172.17.0.1", "10.0.0.3"))),
            "no-usable-address",
            f"{BRIDGE}, 10.0.0.3 (not on this machine); ",
        ),
        (web(own=Offer()), "no-address", ""),
        (
            web(ETH0, DOCKER0, wanted="192.168.0.0/16"),
            "no-address-in-network",
            "10.0.0.7 (eth0), 172.17.0.1 (docker0)",
        ),
        (web(wanted="192.168.0.0/16"), "no-address-in-network", "has none"),
    ],
)
def test_without_any_address_web_stays_as_it_is_and_status_says_why(found, code, text):
    made = make_plan(found)
    assert codes(found) == [("waiting", code)]
    assert text in lines(found)[0].text
    assert planned(made).web is Keep.AS_IS


def test_a_relation_without_an_address_is_told_and_the_others_are_served():
    found = web(ETH0, DOCKER0, relations=((3, offer(ETH0)), (5, offer(DOCKER0))))
    assert make_plan(found).ci.own.web.tsa_addresses == ((3, UPLINK),)
    assert codes(found) == [("waiting", "no-usable-address")]
    assert f"{BRIDGE}; " in lines(found)[0].text


def test_the_url_stays_when_the_unit_gets_an_address_of_its_machine():
    """It was reached from outside alone before; two such addresses are left to choose from."""
    outside = ("10.9.0.7", "203.0.113.9")
    own = Offer(("10.0.0.7", *outside), (), published="203.0.113.9")
    first = unit("web", network=Network((ETH0,), own))
    made = make_plan(first).ci.own.web
    again = Network((ETH0,), dataclasses.replace(own, published=made.address))
    assert made.address == "10.0.0.7"
    assert make_plan(changed(first, network=again)).ci.own.web == made
