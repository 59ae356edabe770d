# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The device nodes of GPUs, by name: those that are here, and those that the charm knows of."""

import pathlib
import re
import typing

from machine import files

DEV: typing.Final = pathlib.Path("/dev")
DRI: typing.Final = DEV / "dri"
# What opens MIG devices: two of each, and nothing else tells of one more on a card that is here.
CAPS: typing.Final = DEV / "nvidia-caps"
# What the charm saw last; gone at a reboot, after which Juju wakes it by itself.
NOTE: typing.Final = pathlib.Path("/run/gpu-ci/devices")

_NAME: typing.Final = re.compile(
    r"nvidia[0-9]+|nvidiactl|nvidia-uvm|nvidia-cap[0-9]+|kfd|renderD[0-9]+|card[0-9]+"
)


def may_be(name: str) -> bool:
    """Whether what came or went by this name may have changed the nodes that are here.

    The empty name stands for any.
    """
    return name in ("", DRI.name, CAPS.name) or bool(_NAME.fullmatch(name))


def present() -> tuple[str, ...]:
    """Names of the nodes that are here, sorted.

    Raises:
        OSError: they can't be looked at.
    """
    return tuple(sorted(path.name for path in _named() if path.is_char_device()))


def is_half_made() -> bool:
    """Whether a name is here without its node.

    LXD makes an empty file and mounts the node on it, which nobody is told of, and leaves the file
    for milliseconds after that.

    Raises:
        OSError: they can't be looked at.
    """
    return any(path.exists() and not path.is_char_device() for path in _named())


def _named() -> list[pathlib.Path]:
    folders = [DEV, *filter(pathlib.Path.is_dir, (DRI, CAPS))]
    found = [path for folder in folders for path in folder.iterdir()]
    return [path for path in found if _NAME.fullmatch(path.name)]


def known() -> tuple[str, ...] | None:
    """The names that the charm has noted last; None since boot."""
    noted = files.read_text(NOTE)
    return None if noted is None else tuple(noted.split())


def note(seen: tuple[str, ...]) -> None:
    """Note what the charm has seen, when it last looked at this machine."""
    files.ensure_directory(NOTE.parent)
    files.ensure_file(NOTE, "".join(f"{name}\n" for name in seen))
