# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Lets the containers of CI steps reach the network through this machine."""

import collections.abc
import dataclasses
import pathlib
import typing

from machine import files, packages, process

_SETTING: typing.Final = "net.ipv4.ip_forward"
_CONTENT: typing.Final = f"""\
# By the charm gpu-ci-worker: containers of CI steps reach the network through this machine.
{_SETTING} = 1
"""


@dataclasses.dataclass(frozen=True)
class Machine:
    """What of a machine the network of containers needs.

    Attributes:
        drop_in: the file that systemd reads when the machine boots.
        live: the kernel's setting.
        install: has packages; returns whether any was missing.
        run: runs a program.
    """

    drop_in: pathlib.Path = pathlib.Path("/etc/sysctl.d/90-gpu-ci-worker.conf")
    live: pathlib.Path = pathlib.Path("/proc/sys/net/ipv4/ip_forward")
    install: collections.abc.Callable[..., bool] = packages.ensure_installed
    run: collections.abc.Callable[..., object] = process.run


def ensure(machine: Machine = Machine()) -> bool:
    """Have packets forwarded, now and after a reboot, and the tools for rules there.

    Concourse needs iptables; nftables keeps the worker's ports shut to other users.

    Returns:
        Whether anything had to be changed.

    Raises:
        machine.packages.PackageError: if they can't be installed.
        machine.process.CommandError: if the setting can't be made.
    """
    changed = machine.install("iptables", "nftables")
    changed |= files.ensure_file(machine.drop_in, _CONTENT)
    if (files.read_text(machine.live) or "").strip() != "1":
        machine.run(["/usr/sbin/sysctl", "-q", "-w", f"{_SETTING}=1"], timeout=10)
        changed = True
    return changed


def remove(machine: Machine = Machine()) -> bool:
    """Forward no more from the next boot on. Return True if that is a change.

    Until then it stays: others on this machine may rest on it by now.
    """
    return files.ensure_absent(machine.drop_in)
