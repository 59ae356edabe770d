# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""`python3 -m ci.runners.gpu_check`: check a runner's GPUs as its user, before it is registered.

It reads JSON from stdin: the vendor's name, the ids of the GPUs, the nodes of the runner, and the
nodes of all other GPUs. It writes JSON, which `parse` reads.
"""

import dataclasses
import errno
import json
import sys
import typing

from gpu_agent.availability import residual_memory
from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.vendor import Use
from machine import systemd_scopes as scopes

# Opening is allowed, but the driver is missing, as with simulated GPUs.
_MAY_OPEN: typing.Final = (0, errno.ENXIO)


@dataclasses.dataclass(frozen=True)
class Checked:
    """What was found.

    Attributes:
        fault: why the GPUs cannot be used; empty: they can.
        open: the nodes of other GPUs that can be opened all the same.
    """

    fault: str
    open: tuple[str, ...]


def parse(text: str) -> Checked:
    """Read the answer.

    Raises:
        ValueError: it is not one.
    """
    try:
        fault, is_open = json.loads(text)
    except (ValueError, TypeError) as error:
        raise ValueError("the check of a runner's GPUs gives no answer") from error
    return Checked(str(fault), tuple(map(str, is_open)))


def check(vendor: str, gpus: list[str], nodes: list[str]) -> str:
    """Return why these GPUs cannot be used; empty if they can."""
    for node in nodes:
        if (fault := scopes.open_fault(node)) not in _MAY_OPEN:
            return f"{node} cannot be opened: {errno.errorcode.get(fault, fault)}"
    ask = registry.find(vendor).uses if gpus else None
    if ask is None:
        return ""
    uses = ask(gpus)
    if uses is None:
        return "the driver cannot be asked"
    return next((f"{gpu} {wrong}" for gpu in gpus if (wrong := _wrong(uses.get(gpu)))), "")


def _wrong(use: Use | None) -> str:
    """Return what keeps a GPU from a new job; empty: nothing."""
    if use is None:
        return "does not answer"
    if use.computing:
        return f"is in use by process {use.computing[0]}"
    taken = residual_memory.is_taken(use.used_mib, use.total_mib)
    return f"has {residual_memory.cause(use.used_mib).reason}" if taken else ""


def main() -> None:
    """Answer the question on stdin."""
    vendor, gpus, nodes, others = json.load(sys.stdin)
    is_open = [node for node in others if scopes.open_fault(node) in _MAY_OPEN]
    sys.stdout.write(json.dumps([check(vendor, gpus, nodes), is_open]))


if __name__ == "__main__":
    main()
