# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The network interfaces and addresses by which a unit can be reached: frozen types only."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Interface:
    """One network interface of this machine.

    Attributes:
        kind: the kernel's word for a virtual one, such as `bridge`, `veth` or `vlan`; empty for a
            physical one.
        addresses: its IPv4 and IPv6 addresses, but those that hold on this link alone.
        master: the bridge or bond that it is a port of; or empty.
        lower: the interface that a vlan or macvlan is made on; or empty.
        has_default_route: whether packets to anywhere leave by it.
    """

    name: str
    kind: str = ""
    addresses: tuple[str, ...] = ()
    master: str = ""
    lower: str = ""
    has_default_route: bool = False


@dataclasses.dataclass(frozen=True)
class Offer:
    """What Juju says of the addresses of one endpoint or relation of this unit.

    Attributes:
        ingress: where others reach this unit, the first preferred; a cross-model relation has
            addresses outside this machine, or names, among them.
        bound: the machine's own addresses in the endpoint's space.
        published: the address that was published before; empty if none.
    """

    ingress: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    published: str = ""


@dataclasses.dataclass(frozen=True)
class Network:
    """Where this unit can be reached: what its machine has, and what Juju offers.

    Attributes:
        interfaces: the machine's.
        own: what Juju offers for the unit itself.
        relations: the same for each relation to workers, by its id.
    """

    interfaces: tuple[Interface, ...] = ()
    own: Offer = Offer()
    relations: tuple[tuple[int, Offer], ...] = ()
