# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Lets the containers of CI steps reach the network through this machine."""

import pathlib
import typing

from machine import files, packages, process

_SETTING: typing.Final = "net.ipv4.ip_forward"
_DROP_IN: typing.Final = pathlib.Path("/etc/sysctl.d/90-gpu-ci-worker.conf")
_LIVE: typing.Final = pathlib.Path("/proc/sys/net/ipv4/ip_forward")
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
