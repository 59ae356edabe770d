# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Folders of the host that each task on this worker gets (the option task-mounts).

A user who may write to a parent of such a folder could put a link in its place, and the next task
would mount the link's target. So each parent must be owned by root and not writable by others.
Then tasks, whose root is not the host's root, cannot change the path.
"""

from __future__ import annotations

import os
import stat

from gpu_runtime import container_spec as spec
from gpu_runtime.json_files import read_object, replace
from gpu_runtime.json_shape import items, table, text
from gpu_runtime.policy import SELF_TEST_CONTAINER, TaskFolders
from gpu_runtime.refusal import Refused, fault

FILE = "folders.json"  # beside policy.json
VERSION = 1

# These cover each mount below the folder, with the same restrictions. A later mount of the host
# stays outside, because nothing would restrict it (runc 1.1.5
# libcontainer/specconv/spec_linux.go).
_OPTIONS = ("rbind", "rprivate", "nosuid", "rnosuid", "nodev", "rnodev")
_READ_ONLY = ("ro", "rro")


class Folder:
    """A folder of the host, and its path in tasks.

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
    """Return the folders in the file at `path`; none if there is no such file.

    A container of the self-test gets none: a missing folder must not fail a GPU.

    Raises:
        Refused: the file is unreadable or invalid.
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
            "task-mounts-unreadable",
            f"list of task-mounts folders {path} is unreadable ({error}). The worker rewrites "
            "it within 5 minutes; rerun the task then",
        ) from error


def bound(config: dict[str, object], given: list[Folder]) -> dict[str, object]:
    """Return a task's config.json with these folders in it.

    Raises:
        Refused: one is missing or unsafe, or overlaps a path of the task.
    """
    if not given:
        return config
    ours = list(map(_mount, given))
    # A repeated create may find them there.
    mounts = [mount for mount in items(config.get("mounts")) if mount not in ours]
    taken = [spec.destination(mount) for mount in mounts]
    for folder in given:
        for place in taken:
            if _meet(place, folder.target):
                raise Refused(
                    "task-mounts-conflict",
                    f"path {place[:64]} of this task overlaps {folder.target}, where this worker "
                    f"mounts its task-mounts folder {folder.source}. Give the input, output or "
                    "cache another path",
                )
        if why := what_is_wrong(folder.source):
            raise Refused(
                "task-mounts-unusable",
                f"task-mounts folder {folder.source} on this worker is unusable: {why}. Ask the "
                "worker's operator to fix it or to remove it from task-mounts",
            )
    return {**config, "mounts": [*mounts, *ours]}


def give(path: str, config_path: str, tasks: TaskFolders) -> None:
    """Put the folders of the file `path` into the config.json of a task that can get no GPU.

    Args:
        path: the file.
        config_path: config.json of a container, which may be no task.
        tasks: how tasks are known.

    Raises:
        Refused: the task cannot get them.
    """
    if not os.path.lexists(path):
        return
    try:
        config = read_object(config_path)
    except (OSError, ValueError):
        return  # runc says it best
    if spec.kind(config, tasks) == spec.OTHER:
        return
    spec.check_folders(config, tasks)
    changed = bound(config, read(path))
    try:
        replace(config_path, changed, like=config_path)
    except (OSError, ValueError) as error:
        raise Refused(
            "worker-fault", f"could not give this task its task-mounts folders: {fault(error)}"
        ) from error


def what_is_wrong(source: str) -> str:
    """Return why a folder can't be given to tasks, as the end of a sentence; empty if it can."""
    names = source.split("/")[1:]
    for count in range(len(names)):
        above = "/" + "/".join(names[:count])
        try:
            found = os.lstat(above)
        except OSError as error:
            return f"{above}: {error.strerror}"
        if not stat.S_ISDIR(found.st_mode):
            return f"{above} is not a directory but a link or a file"
        if found.st_uid or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"parent directory {above} must be root-owned and not group- or world-writable"
    try:
        found = os.lstat(source)
    except OSError as error:
        return "it is missing" if isinstance(error, FileNotFoundError) else f"{error.strerror}"
    return "" if stat.S_ISDIR(found.st_mode) else "it is not a directory but a link or a file"


def _folder(entry: dict[str, object]) -> Folder:
    source, target = text(entry.get("source")), text(entry.get("target"))
    writable = entry.get("writable")
    for path in (source, target):
        if not path.startswith("/") or os.path.normpath(path) != path or path == "/":
            raise ValueError(f"{path!r} is not a folder to give")
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
