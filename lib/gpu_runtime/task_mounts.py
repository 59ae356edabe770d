# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Folders of the host that every task on this worker gets, as the operator's task-mounts says.

Whoever may write to a folder on the way to one could put a link in its place, and have the next
task mount what that leads to. So every folder above it must be root's, and nobody else's to write
to: tasks, whose root is not the host's, then can't change the way, at any moment.
"""

from __future__ import annotations

import os
import stat

from gpu_runtime import container_spec as spec
from gpu_runtime.json_files import read_object, replace
from gpu_runtime.json_shape import items, table, text
from gpu_runtime.policy import SELF_TEST_CONTAINER
from gpu_runtime.refusal import Refused, fault

FILE = "folders.json"  # beside policy.json
VERSION = 1

# With each mount below it, each as closed as the first. One that the host makes there later stays
# outside, since nothing would close that (runc 1.1.5 libcontainer/specconv/spec_linux.go).
_OPTIONS = ("rbind", "rprivate", "nosuid", "rnosuid", "nodev", "rnodev")
_READ_ONLY = ("ro", "rro")


class Folder:
    """A folder of the host, and where tasks find it.

    Attributes:
        source: its path on the host.
        target: its path in the container.
        writable: whether tasks may write to it.
    """

    __slots__ = ("source", "target", "writable")

    def __init__(self, source: str, target: str, *, writable: bool) -> None:
        self.source = source
        self.target = target
        self.writable = writable


def read(path: str, container: str = "") -> list[Folder]:
    """The folders that the file at `path` names; none where there is no such file.

    Nor for a container of the self-test: a folder that is missing makes no GPU sick.

    Raises:
        Refused: it can't be read or followed.
    """
    if container.startswith(SELF_TEST_CONTAINER):
        return []
    try:
        found = read_object(path)
        if found.get("version") != VERSION:
            raise ValueError(f"version is {found.get('version')!r}, not {VERSION}")
        return [_folder(table(entry)) for entry in items(found.get("folders"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise Refused(
            f"this worker can't tell which of its folders tasks get: {path} cannot be used "
            f"({error}); it is written anew within minutes: run it again then"
        ) from error


def bound(config: dict[str, object], given: list[Folder]) -> dict[str, object]:
    """A task's config.json with these folders in it.

    Raises:
        Refused: one is not there, can't be trusted, or is in the way of what the task has.
    """
    if not given:
        return config
    ours = list(map(_mount, given))
    # A create that is made again may find them there.
    mounts = [mount for mount in items(config.get("mounts")) if mount not in ours]
    taken = [spec.destination(mount) for mount in mounts]
    for folder in given:
        for place in taken:
            if _meet(place, folder.target):
                raise Refused(
                    f"this task has files at {place[:64]}, and this worker gives tasks its folder "
                    f"{folder.source} at {folder.target}: give its input, output or cache another "
                    "path"
                )
        if why := what_is_wrong(folder.source):
            raise Refused(
                f"this worker promises tasks its folder {folder.source}, and {why}: its operator "
                "mends that, or takes the folder off task-mounts"
            )
    return {**config, "mounts": [*mounts, *ours]}


def give(path: str, config_path: str) -> None:
    """Have the folders that `path` names in the config.json of a task that can get no GPU.

    Raises:
        Refused: it can't have them.
    """
    if not os.path.lexists(path):
        return
    try:
        config = read_object(config_path)
    except (OSError, ValueError):
        return  # runc says it best
    if spec.kind(config) == spec.OTHER:
        return
    spec.check_folders(config)
    changed = bound(config, read(path))
    try:
        replace(config_path, changed, like=config_path)
    except (OSError, ValueError) as error:
        raise Refused(
            f"this worker failed to give this task its folders: {fault(error)}"
        ) from error


def what_is_wrong(source: str) -> str:
    """Why a folder can't be given to tasks, as the end of a sentence; empty if it can."""
    names = source.split("/")[1:]
    for count in range(len(names)):
        above = "/" + "/".join(names[:count])
        try:
            found = os.lstat(above)
        except OSError as error:
            return f"{above}: {error.strerror}"
        if not stat.S_ISDIR(found.st_mode):
            return f"{above} is no folder but a link or a file"
        if found.st_uid or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{above} above it is not root's alone to change"
    try:
        found = os.lstat(source)
    except OSError as error:
        return "it is missing" if isinstance(error, FileNotFoundError) else f"{error.strerror}"
    return "" if stat.S_ISDIR(found.st_mode) else "it is no folder but a link or a file"


def _folder(entry: dict[str, object]) -> Folder:
    source, target = text(entry.get("source")), text(entry.get("target"))
    writable = entry.get("writable")
    for path in (source, target):
        if not path.startswith("/") or os.path.normpath(path) != path or path == "/":
            raise ValueError(f"{path!r} is no folder to give")
    if not isinstance(writable, bool):
        raise ValueError(f"writable is {writable!r}, not true or false")
    return Folder(source, target, writable=writable)


def _meet(one: str, other: str) -> bool:
    """Whether two places are the same, or one lies in the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _mount(folder: Folder) -> dict[str, object]:
    options = [*_OPTIONS, *(("rw",) if folder.writable else _READ_ONLY)]
    return {
        "destination": folder.target,
        "type": "bind",
        "source": folder.source,
        "options": options,
    }
