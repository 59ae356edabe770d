# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads the option task-mounts: the folders of the host that tasks get. Pure.

When a task begins, lib/gpu_runtime/task_mounts.py checks that each folder exists and that only
root can replace it.
"""

import re
import typing

from gpu_agent.runtime import settings
from options.readers import Raw, text
from options.values import OptionError

OPTION: typing.Final = "task-mounts"

# These characters have no meaning in the option and need no quotes anywhere.
_PATH = re.compile(r"(?:/[A-Za-z0-9._@+=-]+)+/?")
# Folders of the machine, of this charm, Concourse and Juju: tasks get neither these nor their
# parents.
_NOT_GIVEN: typing.Final = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run"),
    *("/sbin", "/snap", "/sys", "/tmp", "/usr"),  # noqa: S108
    *("/opt/concourse", "/opt/containerd", "/opt/gpu-ci"),
    *(f"/var/lib/{name}" for name in ("cni", "concourse", "containerd", "docker", "dpkg")),
    *(f"/var/lib/{name}" for name in ("gpu-ci", "juju", "lxd", "postgresql", "systemd")),
    *("/var/backups", "/var/lib/containers", "/var/log", "/var/run", "/var/snap", "/var/spool"),
)
# Root of a task could read and write files of a user of the machine, such as login keys.
_HOME: typing.Final = re.compile(r"/home(/[^/]+)?")
# There a container has Concourse's files, the image's programs, or the driver's libraries.
_NOT_COVERED: typing.Final = (
    *("/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/scratch"),
    *("/sys", "/tmp", "/usr", "/var/run"),  # noqa: S108
)


def parse(raw: Raw) -> tuple[settings.Folder, ...]:
    """Read the folders of task-mounts: `SOURCE[:TARGET][:ro|rw]`, comma-separated.

    Raises:
        OptionError: a folder is not allowed, or two have overlapping targets.
    """
    found: list[settings.Folder] = []
    for item in filter(None, (part.strip() for part in text(raw, OPTION).split(","))):
        folder = _folder(item)
        if any(_meet(folder.target, other.target) for other in found):
            raise OptionError(
                OPTION, item, "overlaps the TARGET of another folder: use another TARGET"
            )
        found.append(folder)
    return tuple(found)


def _folder(item: str) -> settings.Folder:
    *paths, last = item.split(":")
    if last not in ("ro", "rw"):
        paths, last = [*paths, last], "ro"
    if not 1 <= len(paths) <= 2:
        remedy = "is not a folder: use SOURCE, SOURCE:rw, SOURCE:TARGET or SOURCE:TARGET:rw"
        raise OptionError(OPTION, item, remedy)
    source, target = (_path(item, path) for path in (paths[0], paths[-1]))
    for taken in _NOT_GIVEN:
        if _meet(source, taken):
            remedy = f"is or contains {taken} of the machine: use a folder such as /srv/datasets"
            raise OptionError(OPTION, item, remedy)
    if _HOME.fullmatch(source):
        remedy = "is or contains the home of a user: use a folder such as /srv/datasets"
        raise OptionError(OPTION, item, remedy)
    for taken in _NOT_COVERED:
        if _meet(target, taken):
            remedy = (
                f"would cover {taken} in the container: use a TARGET such as {paths[0]}:/srv/data"
            )
            raise OptionError(OPTION, item, remedy)
    return settings.Folder(source, target, writable=last == "rw")


def _path(item: str, path: str) -> str:
    if not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        remedy = "is not a folder: start each path with / and use letters, digits and ._@+=- only"
        raise OptionError(OPTION, item, remedy)
    return path.rstrip("/")


def _meet(one: str, other: str) -> bool:
    """Whether two paths are the same, or one is inside the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
