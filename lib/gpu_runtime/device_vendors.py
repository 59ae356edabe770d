# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What differs between the makers of GPUs, as one table."""

from __future__ import annotations


class Vendor:
    """How GPUs of one maker are named and handed out.

    Attributes:
        ids: what an id of a device begins with.
        by_runtime: nvidia-container-runtime brings devices and libraries in, told by
            NVIDIA_VISIBLE_DEVICES; otherwise the device nodes are all that a container needs.
    """

    __slots__ = ("by_runtime", "ids")

    def __init__(self, ids: tuple[str, ...], *, by_runtime: bool) -> None:
        self.ids = ids
        self.by_runtime = by_runtime


VENDORS = {
    "nvidia": Vendor(("GPU-", "MIG-"), by_runtime=True),
    "amd": Vendor(("GPU-", "PCI-"), by_runtime=False),
    "intel": Vendor(("PCI-",), by_runtime=False),
}
