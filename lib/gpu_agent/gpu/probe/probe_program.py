# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The child that asks the drivers: `python -m gpu_agent.gpu.probe.probe_program PARENT ROOT`.

Each call into a driver is made here, and may never return. It looks at the GPUs when a line comes
on stdin, tells each event of NVML's as it comes, and says something at least each few seconds, so
that its silence can be told from a GPU's. It ends with its parent.
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
"""What the child is called: it has the drivers' device nodes open (host.nvidia_driver_change)."""

# Between two words of a child that has nothing to say. In seconds.
BEAT: typing.Final = 4
# Where no line and no event comes it sleeps; with an event set, that is slept in NVML, where no
# line can be heard.
_SLICE: typing.Final = 1
_NVIDIA: typing.Final = 0x10DE
_MOST: typing.Final = 1 << 16


def main() -> None:
    """Look until the parent is gone or wants no more."""
    parent, root = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    children.end_with(parent, NAME)
    cards = wire.unpack_cards(sys.stdin.buffer.readline(_MOST))
    tell(wire.Begun())
    here = root / "sys/bus/pci/devices"
    of_nvidia = {
        uuid: address
        for uuid, address in cards.items()
        # One that has fallen off the bus has no vendor any more; UUIDs of this form are NVIDIA's.
        if kernel.number(here / address / "vendor") in (_NVIDIA, 0) and uuid.count("-") > 4
    }
    others = {uuid: cards[uuid] for uuid in cards.keys() - of_nvidia.keys()}
    serve(NvidiaLooks(of_nvidia, root, tell), SysfsLooks(others, root, tell))


def serve(nvidia: NvidiaLooks, others: SysfsLooks) -> None:
    """Look now, whenever a line comes, and where NVML's events have come to an end."""
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
    """Say it to the parent."""
    children.tell_parent(wire.pack(said))


if __name__ == "__main__":
    main()
