# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The type of what tells one vendor's GPUs on the PCI bus."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Maker:
    """How the GPUs of one vendor are found on the bus and named; ids and classes of pci.ids.

    Attributes:
        name: the vendor's name in options, tags and files, such as `nvidia`.
        display: its name in a sentence, such as `NVIDIA`.
        id: its PCI vendor id.
        classes: the classes of its GPUs. Class 03 is a display controller; its subclass 00 is VGA,
            02 is 3D and 80 other. 1200 is a processing accelerator. Audio functions, USB ports and
            switches of a vendor have other classes.
    """

    name: str
    display: str
    id: int
    classes: tuple[int, ...]
