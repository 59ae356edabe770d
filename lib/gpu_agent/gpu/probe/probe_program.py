# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Query drivers as a child: `python -m gpu_agent.gpu.probe.probe_program PARENT ROOT`.

Each call into a driver is made here, and may never return. The child polls the GPUs when a line
comes on stdin and reports NVML's events as they come. It sends a line at least every few seconds,
so that its silence means a call that hangs. It ends with its parent.
"""

import os
import pathlib
import select
import sys
import time
import typing

from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.gpu.probe import probe_protocol as wire
from gpu_agent.gpu.probe.collectors import NvidiaLooks, SysfsLooks
from machine import child_process as children

NAME: typing.Final = "gpu-ci-health"
"""The child's name; it opens the drivers' device nodes (host.nvidia_driver_change)."""

# The longest silence of a child that has nothing to send. In seconds.
BEAT: typing.Final = 4
# It sleeps if there is no line and no event. With an event set it sleeps in NVML, where it can't
# see a line.
_SLICE: typing.Final = 1
_NVIDIA: typing.Final = 0x10DE
_MOST: typing.Final = 1 << 16


def main() -> None:
    """Sample until the parent is gone or closes the connection."""
    parent, root = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    children.end_with(parent, NAME)
    cards = wire.unpack_cards(sys.stdin.buffer.readline(_MOST))
    tell(wire.Begun())
    here = root / "sys/bus/pci/devices"
    of_nvidia = {
        uuid: address
        for uuid, address in cards.items()
        # A card that has fallen off the bus has no vendor; UUIDs of this form are NVIDIA's.
        if kernel.number(here / address / "vendor") in (_NVIDIA, 0) and uuid.count("-") > 4
    }
    others = {uuid: cards[uuid] for uuid in cards.keys() - of_nvidia.keys()}
    serve(NvidiaLooks(of_nvidia, root, tell), SysfsLooks(others, root, tell))


def serve(nvidia: NvidiaLooks, others: SysfsLooks) -> None:
    """Sample now, whenever a line comes, and when NVML's events have ended."""
    wanted, said = True, time.monotonic()
    while True:
        if wanted:
            scarce = nvidia.look() or others.look()
            lost = nvidia.missing + others.missing, nvidia.gone + others.gone
            tell(wire.End(scarce=scarce) if scarce else wire.End(*lost))
            said = time.monotonic()
        nvidia.register()
        slept = nvidia.has_events
        wanted = slept and nvidia.wait(_SLICE)
        ready, _, _ = select.select([0], [], [], 0 if slept else BEAT - _SLICE)
        if ready:
            if not os.read(0, _MOST):
                return
            wanted = True
        if time.monotonic() - said > BEAT - _SLICE:
            tell(wire.Beat())
            said = time.monotonic()


def tell(said: wire.Said) -> None:
    """Send a line to the parent."""
    children.tell_parent(wire.pack(said))


if __name__ == "__main__":
    main()
