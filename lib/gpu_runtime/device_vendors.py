# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How the GPUs of the policy's vendor are named and handed out."""

from __future__ import annotations

from gpu_runtime.json_shape import items, table, text


class Vendor:
    """How GPUs of one vendor are named and handed out.

    Attributes:
        ids: what an id of a device begins with.
        pci: the vendor's PCI id as in /sys, such as `0x1002`.
        by_runtime: nvidia-container-runtime brings devices and libraries in, told by
            NVIDIA_VISIBLE_DEVICES; otherwise the device nodes are all that a container needs.
    """

    __slots__ = ("by_runtime", "ids", "pci")

    def __init__(self, ids: tuple[str, ...], pci: str, *, by_runtime: bool) -> None:
        self.ids = ids
        self.pci = pci
        self.by_runtime = by_runtime


# Policies of revisions before this one have only the vendor's name. A further vendor has no row.
_NAMED = {
    "nvidia": Vendor(("GPU-", "MIG-"), "0x10de", by_runtime=True),
    "amd": Vendor(("GPU-", "PCI-"), "0x1002", by_runtime=False),
    "intel": Vendor(("PCI-",), "0x8086", by_runtime=False),
}


def read(policy: dict[str, object]) -> Vendor:
    """Return the vendor of a policy.

    Raises:
        ValueError: it has none, or not all that must be known of it.
    """
    if "grant" not in policy:
        found = _NAMED.get(text(policy.get("vendor")))
        if found is None:
            raise ValueError(f"vendor is {policy.get('vendor')!r}, not {' or '.join(_NAMED)}")
        return found
    grant = table(policy["grant"])
    ids = tuple(text(one) for one in items(grant.get("ids")))
    pci, by_runtime = text(grant.get("pci_vendor")), grant.get("by_runtime")
    if not ids or not all((*ids, pci)) or not isinstance(by_runtime, bool):
        raise ValueError(f"grant is {grant!r}")
    return Vendor(ids, pci, by_runtime=by_runtime)
