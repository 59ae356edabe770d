# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The GPUs that this machine has had, so that one that vanishes is missed.

What is written down stays until the operator says that a GPU was taken out on purpose: a reboot
without it, or many of them, make it no less lost.
"""

import collections.abc
import dataclasses
import json
import pathlib
import typing

from gpu_agent.model.inventory import Vendor
from machine import files

PATH: typing.Final = pathlib.Path("/var/lib/gpu-ci/inventory.json")


class KnownError(Exception):
    """The file can't be read; the text says what to do."""


@dataclasses.dataclass(frozen=True)
class Known:
    """A GPU as it was when it was last seen.

    Attributes:
        uuid: its id.
        vendor: the maker.
        model: the product's name.
        pci_address: where it was on the bus.
        index: what the operator knew it by.
        allowed: whether tasks could get it.
    """

    uuid: str
    vendor: Vendor
    model: str
    pci_address: str
    index: int
    allowed: bool


def read(path: pathlib.Path = PATH) -> tuple[Known, ...]:
    """All of them, in the order in which they were first seen.

    Raises:
        KnownError: the file is damaged.
    """
    try:
        text = files.read_text(path)
        if text is None:
            return ()
        return tuple(Known(vendor=Vendor(one.pop("vendor")), **one) for one in json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KnownError(f"{path} is damaged: {error}") from error


def add(gpus: collections.abc.Iterable[Known], path: pathlib.Path = PATH) -> bool:
    """Write GPUs down as they are now. Return True if anything was new.

    Raises:
        KnownError: the file is damaged.
    """
    kept = {gpu.uuid: gpu for gpu in read(path)}
    return _write((kept | {gpu.uuid: gpu for gpu in gpus}).values(), path)


def forget(uuid: str, path: pathlib.Path = PATH) -> bool:
    """Miss this GPU no more. Return True if it was known.

    Raises:
        KnownError: the file is damaged.
    """
    return _write((gpu for gpu in read(path) if gpu.uuid != uuid), path)


def _write(gpus: collections.abc.Iterable[Known], path: pathlib.Path) -> bool:
    plain = [{**dataclasses.asdict(gpu), "vendor": gpu.vendor.value} for gpu in gpus]
    if not plain and not path.exists():
        return False
    files.ensure_directory(path.parent)
    return files.ensure_file(path, json.dumps(plain, indent=1) + "\n")
