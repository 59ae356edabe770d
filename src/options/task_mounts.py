# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The folders of the host that tasks get, as task-mounts names them. Pure.

Whether one is there, and whether nobody can put another in its place, is looked at when a task
begins (lib/gpu_runtime/task_mounts.py).
"""

import re
import typing

from gpu_agent.runtime import settings
from options.readers import Raw, text
from options.values import OptionError

OPTION: typing.Final = "task-mounts"

# No word of these is one of the grammar's, and none needs to be quoted anywhere.
_PATH = re.compile(r"(?:/[A-Za-z0-9._@+=-]+)+/?")
# What is the machine's, ours, Concourse's or Juju's: neither it, nor what holds it, is for tasks.
_NOT_GIVEN: typing.Final = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run"),
    *("/sbin", "/snap", "/sys", "/tmp", "/usr"),  # noqa: S108
    *("/opt/concourse", "/opt/containerd", "/opt/gpu-ci"),
    *(f"/var/lib/{name}" for name in ("cni", "concourse", "containerd", "docker", "dpkg")),
    *(f"/var/lib/{name}" for name in ("gpu-ci", "juju", "lxd", "postgresql", "systemd")),
    *("/var/backups", "/var/lib/containers", "/var/log", "/var/run", "/var/snap", "/var/spool"),
)
# Root of a task may read and write what belongs to a user of the machine: keys to log in by, too.
_HOME: typing.Final = re.compile(r"/home(/[^/]+)?")
# What a container has there is Concourse's, the image's programs, or the driver's libraries.
_NOT_COVERED: typing.Final = (
    *("/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/scratch"),
    *("/sys", "/tmp", "/usr", "/var/run"),  # noqa: S108
)


def parse(raw: Raw) -> tuple[settings.Folder, ...]:
    """The folders of task-mounts: `SOURCE[:TARGET][:ro|rw]`, comma-separated.

    Raises:
        OptionError: one can't be given, or two would be in one place.
    """
    found: list[settings.Folder] = []
    for item in filter(None, (part.strip() for part in text(raw, OPTION).split(","))):
        folder = _folder(item)
        if any(_meet(folder.target, other.target) for other in found):
            raise OptionError(OPTION, item, "lies where another one does: give it another TARGET")
        found.append(folder)
    return tuple(found)


def _folder(item: str) -> settings.Folder:
    *paths, last = item.split(":")
    if last not in ("ro", "rw"):
        paths, last = [*paths, last], "ro"
    if not 1 <= len(paths) <= 2:
        remedy = "is no folder: use SOURCE, SOURCE:rw, SOURCE:TARGET or SOURCE:TARGET:rw"
        raise OptionError(OPTION, item, remedy)
    source, target = (_path(item, path) for path in (paths[0], paths[-1]))
    for taken in _NOT_GIVEN:
        if _meet(source, taken):
            remedy = f"is or holds the machine's own {taken}: use one such as /srv/datasets"
            raise OptionError(OPTION, item, remedy)
    if _HOME.fullmatch(source):
        remedy = "is or holds a user's home: use one such as /srv/datasets"
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
        remedy = "is no folder: each path begins with / and has letters, digits and ._@+=- in it"
        raise OptionError(OPTION, item, remedy)
    return path.rstrip("/")


def _meet(one: str, other: str) -> bool:
    """Whether two places are the same, or one lies in the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
