# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make the lab's network: a bridge in its own network namespace; the host's is unchanged."""

import ipaddress
import pathlib
import subprocess
from collections.abc import Iterable

from tests.lab.errors import MachineError

SUBNET = ipaddress.ip_network("10.77.0.0/24")
GATEWAY = SUBNET[1]
IP = "/sbin/ip"


class Network:
    """A named network namespace with the bridge br0 at 10.77.0.1/24.

    Args:
        name: of the namespace; `ip netns` shows it.
    """

    def __init__(self, name: str):
        self.name = name
        self.path = pathlib.Path("/run/netns") / name

    def up(self) -> None:
        """Make namespace and bridge, where they are not there yet.

        Raises:
            MachineError: the kernel refuses network namespaces or bridges.
        """
        if not self._works():
            self.down()
            self._ip("netns", "add", self.name)
        for step in (
            "link set lo up",
            "link add br0 type bridge",
            f"addr replace {GATEWAY}/{SUBNET.prefixlen} dev br0",
            "link set br0 up",
        ):
            self._ip("-n", self.name, *step.split(), accept="File exists")

    def down(self) -> None:
        """Remove the namespace and with it the bridge."""
        if self.path.exists():
            subprocess.run([IP, "netns", "del", self.name], check=False, timeout=30)
            self.path.unlink(missing_ok=True)

    def inside(self, argv: Iterable[str]) -> list[str]:
        """The command, run with the lab's network: from there the machines can be reached."""
        # Not `ip netns exec`: that mounts another /sys and loses the cgroups.
        return ["/usr/bin/nsenter", f"--net={self.path}", "--", *argv]

    def _works(self) -> bool:
        probe = [IP, "-n", self.name, "link", "show", "lo"]
        return subprocess.run(probe, check=False, capture_output=True, timeout=30).returncode == 0

    def _ip(self, *arguments: str, accept: str = "") -> None:
        done = subprocess.run(
            [IP, *arguments], check=False, capture_output=True, text=True, timeout=30
        )
        if done.returncode and not (accept and accept in done.stderr):
            raise MachineError(
                f"cannot set up the lab's network: ip {' '.join(arguments)}: {done.stderr.strip()}"
            )


def free_address(taken: Iterable[str]) -> str:
    """The lowest address from .11 on which no machine has.

    Raises:
        MachineError: all are taken.
    """
    used = set(taken)
    for host in range(11, 255):
        if str(SUBNET[host]) not in used:
            return str(SUBNET[host])
    raise MachineError(f"no address is left in {SUBNET}: remove some machines")
