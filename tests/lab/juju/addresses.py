# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The addresses of a unit's machine: what network-get says of them, and when they have changed.

Juju's machine agent looks for new ones by itself. One network namespace is one space here, and the
order is the worst that was seen of Juju 4.0 on a manual cloud: bridges before the uplink.
"""

import ipaddress
import json
from typing import Any

from tests.lab.juju.store import Row, Store
from tests.lab.machines import Machine


def note(store: Store, unit: str, machine: Machine) -> bool:
    """Write down the addresses that a unit's machine has now. Return whether they are new."""
    found = look(machine)
    if machine.address not in [address["address"] for address in found]:
        return False  # it boots just now
    new = [{"unit": unit, "position": n, **address} for n, address in enumerate(found)]
    if [dict(row) for row in _rows(store, unit)] == new:
        return False
    with store.transaction():
        store.do("DELETE FROM address WHERE unit = ?", unit)
        for row in new:
            store.do("INSERT INTO address VALUES (?, ?, ?, ?, ?, ?)", *row.values())
    return True


def look(machine: Machine) -> list[dict[str, str]]:
    """Return a machine's addresses that Juju would list, in its order."""
    told = machine.enter("/sbin/ip", "-json", "-details", "address", "show").stdout
    found: list[tuple[bool, dict[str, str]]] = []
    for link in json.loads(told):
        is_bridge = link.get("linkinfo", {}).get("info_kind") == "bridge"
        for entry in link["addr_info"]:
            interface = ipaddress.ip_interface(f"{entry['local']}/{entry['prefixlen']}")
            if not interface.is_loopback and not interface.is_link_local:
                address = {
                    "interface": link["ifname"],
                    "mac": link.get("address", ""),
                    "address": str(interface.ip),
                    "cidr": str(interface.network),
                }
                found.append((is_bridge, address))
    found.sort(key=lambda each: (not each[0], each[1]["address"]))
    return [address for _, address in found]


def network_info(store: Store, unit: str) -> dict[str, Any]:
    """What network-get answers for every binding of a unit."""
    rows = _rows(store, unit)
    devices: dict[str, dict[str, Any]] = {}
    for row in rows:
        device = {
            "mac-address": row["mac"],
            "interface-name": row["interface"],
            "addresses": list[dict[str, str]](),
        }
        address = row["address"]
        devices.setdefault(row["interface"], device)["addresses"].append(
            {"hostname": "", "value": address, "address": address, "cidr": row["cidr"]}
        )
    ingress = [row["address"] for row in rows]
    return {
        "bind-addresses": list(devices.values()),
        "egress-subnets": [f"{address}/32" for address in ingress[:1]],
        "ingress-addresses": ingress,
    }


def _rows(store: Store, unit: str) -> list[Row]:
    return store.rows("SELECT * FROM address WHERE unit = ? ORDER BY position", unit)
