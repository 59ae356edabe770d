# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""It as a vendor whose driver comes with the kernel."""

from __future__ import annotations

import typing

from gpu_agent.gpu.vendors.stub.maker import MAKER
from gpu_agent.gpu.vendors.vendor import Grant, Names, Vendor

if typing.TYPE_CHECKING:
    import pathlib

    from gpu_agent.model.inventory import Inventory


def _look(root: pathlib.Path, *, integrated: bool) -> Inventory:
    from gpu_agent.gpu.vendors.stub import inventory

    return inventory.look(root)


VENDOR: typing.Final = Vendor(
    maker=MAKER,
    kernel_driver="stub",
    driver_source="the stub's own packages",
    id_pattern="STUB-[0-9]+",
    grant=Grant(("STUB-",)),
    look=_look,
    node_names=Names("stub[0-9]+"),
)
