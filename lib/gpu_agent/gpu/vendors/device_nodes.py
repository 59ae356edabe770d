# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The device nodes of GPUs by name: the present ones, and the ones that the charm saw last."""

import pathlib
import re
import typing

from gpu_agent.gpu.vendors import registry
from machine import files

DEV: typing.Final = pathlib.Path("/dev")
_NAMES: typing.Final = [vendor.node_names for vendor in registry.ALL if vendor.node_names]
_FOLDERS: typing.Final = ("dri", *(one.folder for one in _NAMES if one.folder))
# The nodes that the charm saw last; a reboot removes the file, and then Juju runs the charm.
NOTE: typing.Final = pathlib.Path("/run/gpu-ci/devices")

_NAME: typing.Final = re.compile(
    "|".join([*(one.pattern for one in _NAMES), "renderD[0-9]+", "card[0-9]+"])
)


def folders(dev: pathlib.Path) -> list[pathlib.Path]:
    """The folders in /dev that have nodes of GPUs, whether or not they are there."""
    return [dev / name for name in _FOLDERS]


def may_be(name: str) -> bool:
    """Whether a change of this name may have changed the present nodes; empty: any name."""
    return name in ("", *_FOLDERS) or bool(_NAME.fullmatch(name))


def present(dev: pathlib.Path = DEV) -> tuple[str, ...]:
    """Names of the present nodes, sorted.

    Raises:
        OSError: they can't be read.
    """
    return tuple(sorted(path.name for path in _named(dev) if path.is_char_device()))


def is_half_made(dev: pathlib.Path = DEV) -> bool:
    """Whether a name exists without its node.

    LXD creates an empty file and mounts the node on it, for which inotify has no event; at removal
    it leaves the file for milliseconds.

    Raises:
        OSError: they can't be read.
    """
    return any(path.exists() and not path.is_char_device() for path in _named(dev))


def _named(dev: pathlib.Path) -> list[pathlib.Path]:
    there = [dev, *filter(pathlib.Path.is_dir, folders(dev))]
    found = [path for folder in there for path in folder.iterdir()]
    return [path for path in found if _NAME.fullmatch(path.name)]


def known(path: pathlib.Path = NOTE) -> tuple[str, ...] | None:
    """The names that the charm noted last; None if it has not since boot."""
    noted = files.read_text(path)
    return None if noted is None else tuple(noted.split())


def note(seen: tuple[str, ...], path: pathlib.Path = NOTE) -> None:
    """Note the nodes that the charm saw at its last look at this machine."""
    files.ensure_directory(path.parent)
    files.ensure_file(path, "".join(f"{name}\n" for name in seen))
