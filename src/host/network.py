# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The network interfaces of this machine and their addresses. Reads, changes nothing."""

import ipaddress
import json
import pathlib
import typing

from gpu_agent.model import errors
from machine import files, process
from plan.network import Interface

# Columns of proc(5): destination, mask or prefix length, flags, interface.
_ROUTES: typing.Final = (
    (pathlib.Path("/proc/net/route"), (1, 7, 3, 0)),
    (pathlib.Path("/proc/net/ipv6_route"), (0, 1, 8, 9)),
)
# RTF_UP and RTF_REJECT (Linux include/uapi/linux/route.h).
_UP, _REJECT = 0x1, 0x200


def interfaces() -> tuple[Interface, ...]:
    """The network interfaces of this machine, with the addresses that others can know.

    Raises:
        gpu_agent.model.errors.UnknownError: the addresses cannot be read now.
    """
    argv = ["/usr/sbin/ip", "-json", "-details", "address", "show"]
    try:
        links = json.loads(process.run(argv, timeout=10, told=False).stdout)
        routes = _default_routes()
    except (process.CommandError, OSError, ValueError) as error:
        why = f"The addresses of this machine cannot be read, so nothing is changed: {error}"
        raise errors.UnknownError(why) from error
    return tuple(_interface(link, routes) for link in links)


def _interface(link: dict[str, typing.Any], routes: set[str]) -> Interface:
    # Privacy extensions drop temporary ones after a while.
    lasting = [one["local"] for one in link["addr_info"] if not one.get("temporary")]
    addresses = [ipaddress.ip_address(one) for one in lasting]
    return Interface(
        name=link["ifname"],
        kind=link.get("linkinfo", {}).get("info_kind", ""),
        addresses=tuple(
            str(one) for one in addresses if not one.is_loopback and not one.is_link_local
        ),
        master=link.get("master", ""),
        lower=link.get("link") or "",
        has_default_route=link["ifname"] in routes,
    )


def _default_routes() -> set[str]:
    """The interfaces by which packets to anywhere leave. Without IPv6 its file is not there."""
    found: set[str] = set()
    for table, columns in _ROUTES:
        for line in (files.read_text(table) or "").splitlines():
            fields = line.split()
            if len(fields) <= max(columns) or fields[0] == "Iface":
                continue
            destination, mask, flags, name = (fields[column] for column in columns)
            usable = int(flags, 16) & (_UP | _REJECT) == _UP
            if usable and not int(destination, 16) and not int(mask, 16):
                found.add(name)
    return found
