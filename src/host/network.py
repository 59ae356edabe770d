# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Networking: what containers of CI steps need of it, and the interfaces of this machine."""

import ipaddress
import json
import pathlib
import typing

from host import facts
from machine import files, packages, process
from plan.state import Interface

_SETTING: typing.Final = "net.ipv4.ip_forward"
_DROP_IN: typing.Final = pathlib.Path("/etc/sysctl.d/90-gpu-ci-worker.conf")
_LIVE: typing.Final = pathlib.Path("/proc/sys/net/ipv4/ip_forward")
# Columns of proc(5): destination, mask or prefix length, flags, interface.
_ROUTES: typing.Final = (
    (pathlib.Path("/proc/net/route"), (1, 7, 3, 0)),
    (pathlib.Path("/proc/net/ipv6_route"), (0, 1, 8, 9)),
)
# RTF_UP and RTF_REJECT (Linux include/uapi/linux/route.h).
_UP, _REJECT = 0x1, 0x200
_CONTENT: typing.Final = f"""\
# By the charm gpu-ci-worker: containers of CI steps reach the network through this machine.
{_SETTING} = 1
"""


def ensure() -> bool:
    """Have packets forwarded, now and after a reboot, and the tools for rules there.

    Concourse needs iptables; nftables keeps the worker's ports shut to other users.

    Returns:
        Whether anything had to be changed.

    Raises:
        machine.packages.PackageError: if they can't be installed.
        machine.process.CommandError: if the setting can't be made.
    """
    changed = packages.ensure_installed("iptables", "nftables")
    changed |= files.ensure_file(_DROP_IN, _CONTENT)
    if (files.read_text(_LIVE) or "").strip() != "1":
        process.run(["/usr/sbin/sysctl", "-q", "-w", f"{_SETTING}=1"], timeout=10)
        changed = True
    return changed


def remove() -> bool:
    """Forward no more from the next boot on. Return True if that is a change.

    Until then it stays: others on this machine may rest on it by now.
    """
    return files.ensure_absent(_DROP_IN)


def interfaces() -> tuple[Interface, ...]:
    """The network interfaces of this machine, with the addresses that others can know.

    Raises:
        host.facts.UnknownError: that can't be told now.
    """
    argv = ["/usr/sbin/ip", "-json", "-details", "address", "show"]
    try:
        links = json.loads(process.run(argv, timeout=10, told=False).stdout)
        routes = _default_routes()
    except (process.CommandError, OSError, ValueError) as error:
        why = f"The addresses of this machine can't be told, so nothing is changed: {error}"
        raise facts.UnknownError(why) from error
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
