# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The GPUs that this machine had, so that a GPU that disappears is reported as missing.

An entry stays until the operator says that the GPU was removed on purpose, also over reboots
without that GPU.
"""

import collections.abc
import dataclasses
import json
import pathlib
import typing

from gpu_agent.gpu.vendors import registry
from machine import files

PATH: typing.Final = pathlib.Path("/var/lib/gpu-ci/inventory.json")


class KnownError(Exception):
    """The file can't be read; the text says what to do."""


@dataclasses.dataclass(frozen=True)
class Known:
    """A GPU as it was when it was last seen.

    Attributes:
        uuid: its id.
        vendor: the name of its vendor.
        model: the product's name.
        pci_address: its address on the bus.
        index: its index then.
        allowed: whether tasks could get it.
    """

    uuid: str
    vendor: str
    model: str
    pci_address: str
    index: int
    allowed: bool


def read(path: pathlib.Path = PATH) -> tuple[Known, ...]:
    """All entries, in the order in which the GPUs were first seen.

    Raises:
        KnownError: the file is damaged.
    """
    try:
        text = files.read_text(path)
        if text is None:
            return ()
        return tuple(_known(**one) for one in json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KnownError(f"{path} is damaged: {error}") from error


def _known(vendor: str, **others: typing.Any) -> Known:
    """Make an entry.

    Raises:
        KeyError: this revision does not know the vendor.
        TypeError: a field is missing or unknown.
    """
    return Known(vendor=registry.find(vendor).name, **others)


def add(gpus: collections.abc.Iterable[Known], path: pathlib.Path = PATH) -> bool:
    """Write or update entries. Return True if anything changed.

    Raises:
        KnownError: the file is damaged.
    """
    kept = {gpu.uuid: gpu for gpu in read(path)}
    return _write((kept | {gpu.uuid: gpu for gpu in gpus}).values(), path)


def forget(uuid: str, path: pathlib.Path = PATH) -> bool:
    """Remove the entry of a GPU. Return True if it had one.

    Raises:
        KnownError: the file is damaged.
    """
    return _write((gpu for gpu in read(path) if gpu.uuid != uuid), path)


def _write(gpus: collections.abc.Iterable[Known], path: pathlib.Path) -> bool:
    plain = [dataclasses.asdict(gpu) for gpu in gpus]
    if not plain and not path.exists():
        return False
    files.ensure_directory(path.parent)
    return files.ensure_file(path, json.dumps(plain, indent=1) + "\n")
