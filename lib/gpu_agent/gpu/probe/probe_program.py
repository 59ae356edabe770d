# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Query drivers as a child: `python -m gpu_agent.gpu.probe.probe_program PARENT ROOT`.

Each call into a driver is made here, and may never return. The child polls the GPUs when a line
comes on stdin and reports drivers' events as they come. It sends a line at least every few
seconds, so that its silence means a call that hangs. It ends with its parent.
"""

import collections.abc
import os
import pathlib
import select
import sys
import time
import typing

from gpu_agent.gpu.probe import probe_protocol as wire
from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.collector import Beat, Collector
from machine import child_process as children

NAME: typing.Final = "gpu-ci-health"
"""The child's name; it opens the drivers' device nodes (host.nvidia_driver_change)."""

# The longest silence of a child that has nothing to send. In seconds.
BEAT: typing.Final = 4
# It sleeps if there is no line and no event. If a driver has events it sleeps in there, where it
# can't see a line.
_SLICE: typing.Final = 1
_MOST: typing.Final = 1 << 16


def main() -> None:
    """Sample until the parent is gone or closes the connection."""
    parent, root = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    children.end_with(parent, NAME)
    cards = wire.unpack_cards(sys.stdin.buffer.readline(_MOST))
    tell(wire.Begun())
    of_vendors: dict[str, dict[str, str]] = {}
    for uuid, address in cards.items():
        vendor = registry.of_card(root, uuid, address)
        of_vendors.setdefault(vendor.name, {})[uuid] = address
    serve([
        registry.find(name).collector(those, root, tell) for name, those in of_vendors.items()
    ])  # fmt: skip


def serve(collectors: collections.abc.Sequence[Collector]) -> None:
    """Poll now, whenever a line comes, and when a driver's events have ended."""
    wanted, said = True, time.monotonic()
    while True:
        if wanted:
            tell(_poll(collectors))
            said = time.monotonic()
        for one in collectors:
            one.register()
        slept = [one for one in collectors if one.has_events]
        ended = [one.wait(_SLICE / len(slept)) for one in slept]
        wanted = any(ended)
        ready, _, _ = select.select([0], [], [], 0 if slept else BEAT - _SLICE)
        if ready:
            if not os.read(0, _MOST):
                return
            wanted = True
        if time.monotonic() - said > BEAT - _SLICE:
            tell(Beat())
            said = time.monotonic()


def _poll(collectors: collections.abc.Sequence[Collector]) -> wire.End:
    """Send the figures of all GPUs, and return the line that ends the poll."""
    for one in collectors:
        if scarce := one.look():
            return wire.End(scarce=scarce)
    return wire.End(
        tuple(uuid for one in collectors for uuid in one.missing),
        tuple(uuid for one in collectors for uuid in one.gone),
    )


def tell(said: wire.Said) -> None:
    """Send a line to the parent."""
    children.tell_parent(wire.pack(said))


if __name__ == "__main__":
    main()
