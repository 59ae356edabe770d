# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Networking that containers of CI steps need: forwarding between interfaces, and iptables."""

import pathlib
import typing

import machine.files as files
import machine.packages as packages
import machine.process as process

_SETTING: typing.Final = "net.ipv4.ip_forward"
_DROP_IN: typing.Final = pathlib.Path("/etc/sysctl.d/90-gpu-ci-worker.conf")
_LIVE: typing.Final = pathlib.Path("/proc/sys/net/ipv4/ip_forward")
_CONTENT: typing.Final = f"""\
# By the charm gpu-ci-worker: containers of CI steps reach the network through this machine.
{_SETTING} = 1
"""


def ensure() -> bool:
    """Have packets forwarded, now and after a reboot, and iptables there. Return True if changed.

    Raises:
        machine.process.CommandError: if iptables can't be installed or the setting not be made.
    """
    changed = packages.ensure_installed("iptables")
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
