# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Under which address others reach this unit. Pure.

Juju offers every address of the machine, including those of bridges for containers, which other
machines cannot reach.
"""

import dataclasses
import ipaddress
import typing

from ci.concourse.options.table import chosen
from ci.concourse.plan import messages
from ci.concourse.plan.model import found
from options.table import Options
from plan.messages import Line
from plan.network import Interface, Offer
from plan.state import UnitState

# What interfaces of these kinds are for, a physical interface below them tells, or a route.
_FOR_CONTAINERS: typing.Final = ("bridge", "dummy")
# Such an interface is a container's way out as well as a machine's way to a container.
_EITHER: typing.Final = ("veth", "vxlan")
# What is below these kinds is their ports, or the one interface that they are made on.
_OVER_PORTS: typing.Final = ("bond", "bridge", "team", "vrf")
_OVER_ONE: typing.Final = ("ipvlan", "macvlan", "vlan")


def own(state: UnitState) -> str:
    """The address of the unit itself: one of this machine wherever it has one that is fit.

    Other web units reach it by this, so that a name, or an address in front of several machines,
    is taken only where there is nothing else. Empty if there is none at all.
    """
    return _of_machine(state) or public(state)


def _of_machine(state: UnitState) -> str:
    interfaces, offer = found(state).network.interfaces, found(state).network.own
    places, wanted = _places(interfaces), chosen(state.options).web.advertise_address
    if wanted in places:
        return wanted
    local = tuple(one for one in offer.ingress if one in places)
    return choose(dataclasses.replace(offer, ingress=local), interfaces, _network(state.options))


def public(state: UnitState) -> str:
    """The host in the URL of this unit's web; empty if there is none."""
    network, options = found(state).network, state.options
    # What the URL said before is not known, so that no order of Juju's may change it. What is
    # published from now on counts: at the next event nothing else is known.
    offer = Offer(
        ingress=tuple(sorted(network.own.ingress)),
        bound=tuple(sorted(network.own.bound)),
        published=_of_machine(state) or network.own.published,
    )
    interfaces = tuple(sorted(network.interfaces, key=lambda one: one.name))
    return _host(options) or choose(offer, interfaces, _network(options))


def of_relations(state: UnitState) -> tuple[tuple[int, str], ...]:
    """Where the workers of each relation reach this unit, by the relation's id; or empty."""
    host, network = _host(state.options), _network(state.options)
    return tuple(
        (number, host or choose(offer, found(state).network.interfaces, network))
        for number, offer in found(state).network.relations
    )


def choose(offer: Offer, interfaces: tuple[Interface, ...], network: str = "") -> str:
    """The address to publish; empty if none is fit.

    Those outside the machine come first, which Juju offers for cross-model relations alone; then
    those of the machine that Juju offers and that lead out of it; then the published one, as long
    as the machine has it. Of several, the published one stays, else Juju's order counts.

    Args:
        offer: what Juju says.
        interfaces: the machine's.
        network: if not empty, only addresses in it are taken, such as `10.0.0.0/16`, and also
            those of the machine that Juju does not offer.
    """
    places = _places(interfaces)
    fit = [address for address in places if _leads_out(places[address], interfaces)]
    # What Juju has bound to the machine, and the machine has no more, is only out of date.
    outside = [one for one in offer.ingress if one not in places and one not in offer.bound]
    offered = [one for one in (*offer.ingress, *offer.bound) if one in fit]
    if network:
        outside, offered = _those_in(network, outside), _those_in(network, [*offered, *fit])
        fit = _those_in(network, fit)
    candidates = outside or offered or [one for one in fit if one == offer.published]
    if offer.published in candidates:
        return offer.published
    candidates.sort(key=lambda one: one in places and _may_lead_in(places[one]))
    return candidates[0] if candidates else ""


def missing(state: UnitState) -> tuple[Line, ...]:
    """Whom no address is fit for, this unit itself or workers, and what the operator can do."""
    if not own(state):
        return (_missing(state, found(state).network.own),)
    addresses = dict(of_relations(state))
    lacking = [offer for number, offer in found(state).network.relations if not addresses[number]]
    return tuple(dict.fromkeys(_missing(state, offer) for offer in lacking))


def _missing(state: UnitState, offer: Offer) -> Line:
    interfaces = found(state).network.interfaces
    wanted = chosen(state.options).web.advertise_address
    if wanted:
        has = _shown(tuple(a for one in interfaces for a in one.addresses), interfaces)
        return messages.line("no-address-in-network", wanted=wanted, has=has, **state.names)
    if not offer.ingress and not offer.bound:
        return messages.line("no-address")
    offered = _shown((*offer.ingress, *offer.bound), interfaces)
    return messages.line("no-usable-address", offered=offered, **state.names)


def _host(options: Options) -> str:
    wanted = chosen(options).web.advertise_address
    return "" if "/" in wanted else wanted


def _network(options: Options) -> str:
    wanted = chosen(options).web.advertise_address
    return wanted if "/" in wanted else ""


def _places(interfaces: tuple[Interface, ...]) -> dict[str, Interface]:
    """The machine's addresses and which interface has each; of two, one that leads out."""
    best_last = sorted(interfaces, key=lambda one: _leads_out(one, interfaces))
    return {address: one for one in best_last for address in one.addresses}


def _leads_out(interface: Interface, interfaces: tuple[Interface, ...]) -> bool:
    """Whether others than this machine and its containers can be behind an interface."""
    if interface.has_default_route or interface.kind not in _FOR_CONTAINERS:
        return True
    return _is_over_physical(interface, interfaces, frozenset())


def _is_over_physical(
    interface: Interface, interfaces: tuple[Interface, ...], passed: frozenset[str]
) -> bool:
    below = [
        one
        for one in interfaces
        if (interface.kind in _OVER_PORTS and one.master == interface.name)
        or (interface.kind in _OVER_ONE and one.name == interface.lower)
    ]
    passed |= {interface.name}
    return not interface.kind or any(
        _is_over_physical(one, interfaces, passed) for one in below if one.name not in passed
    )


def _may_lead_in(interface: Interface) -> bool:
    return interface.kind in _EITHER and not interface.has_default_route


def _those_in(network: str, addresses: list[str]) -> list[str]:
    wanted = ipaddress.ip_network(network)
    return [one for one in addresses if (ip := _ip(one)) is not None and ip in wanted]


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:  # a name
        return None


def _shown(addresses: tuple[str, ...], interfaces: tuple[Interface, ...]) -> str:
    places = _places(interfaces)
    shown = [
        f"{one} ({places[one].name if one in places else 'not on this machine'})"
        for one in dict.fromkeys(addresses)
    ]
    return ", ".join(shown) or "none"
