# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The root file system of a task: whose it is, and whether NVIDIA's hooks can open what is in it.

A task's author may name any folder of the worker as its root (`rootfs_uri: raw:///...`). A root
that two containers share is a way to pass an open device on, past every rule on who may open it: a
socket in it reaches both. So it must be a volume that no other container has, or a folder that the
operator marked. Concourse gives that choice for tasks alone (8.3 atc/exec/task_step.go:399); the
root of a check, get or put is always a copy of an image, made for that container.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_runtime import container_spec as spec
from gpu_runtime.json_files import read_bytes
from gpu_runtime.json_shape import items, table, text
from gpu_runtime.refusal import Refused

# An operator's mark on a folder that tasks may have as their root.
MARKER = ".gpu-ci-task-root"

# What NVIDIA's createContainer hooks open in a container (nvidia-container-toolkit 1.17 to 1.20
# cmd/nvidia-cdi-hook, internal/ldconfig; glibc elf/ldconfig.c, elf/cache.c), and runc itself
# (libcontainer/init_linux.go). Opening a FIFO waits for ever.
_OPENED = (
    *("/etc/ld.so.conf", "/etc/ld.so.cache", "/etc/ld.so.cache~", "/etc/passwd", "/etc/group"),
    *("/var/cache/ldconfig/aux-cache", "/var/cache/ldconfig/aux-cache~"),
    *("/etc/ld-musl-x86_64.path", "/etc/ld-musl-aarch64.path"),
)
# Folders of which they open every file whose name begins so.
_COMPATIBILITY, _LIBCUDA = "/usr/local/cuda/compat", "libcuda.so."
_OPENED_IN = {"/etc/ld.so.conf.d": "", _COMPATIBILITY: "libcuda.so"}

_BIND = frozenset({"bind", "rbind"})
_MOST_LINKS = 40  # the kernel's own limit (path_resolution(7)); with more nothing can be opened


def check_origin(config: dict[str, object], bundle: str) -> None:
    """Check that a task's root is its own.

    Which volumes are Concourse's tells the source of the work folder, which is always a mount that
    Concourse made. Who else has one tell the other containers' config.json: containerd writes
    each before the runtime is called to create that container, so of two that share a root the one
    that looks later sees the other, and nothing has to be recorded.

    Args:
        config: the task's config.json; without a root it is runc's business.
        bundle: the folder that it lies in, beside those of all others.

    Raises:
        Refused: it is not.
        OSError: that can't be told.
    """
    root = _root(config, bundle)
    if not root:
        return
    live = _volumes(config)
    name, _, rest = root.removeprefix(f"{live}/").partition("/")
    if live and root.startswith(f"{live}/") and f"{rest}/".startswith("volume/"):
        if other := _other_user(name, bundle):
            raise Refused(
                f"this task's rootfs_uri names files that container {other} has, and through them "
                "GPUs could be passed on: use an image instead"
            )
    elif (live and root.startswith(f"{os.path.dirname(os.path.dirname(live))}/")) or not (
        _is_marked(root)
    ):
        raise Refused(
            f"this task's rootfs_uri names {root[:200]}, a folder of the worker's own, and "
            "through that GPUs could be passed on: use an image instead. Or the worker's operator "
            f"allows that folder by an empty file {MARKER} in it, root's and of mode 644; tasks "
            "that name it then share it"
        )


def check_files(config: dict[str, object], bundle: str, noun: str = "task") -> None:
    """Check that a runtime that brings GPUs in can open what it opens in a container.

    These are the files by which an image has made one hang. Others can be found, such as what
    ld.so.conf includes; a start that hangs nevertheless is ended after a minute (see
    holder_usage.Host).

    Args:
        config: the container's config.json.
        bundle: the folder that it lies in.
        noun: what the container is called towards whoever wants it.

    Raises:
        Refused: one is neither missing nor a file.
        OSError: that can't be told.
    """
    root = _root(config, bundle)
    if not root:
        return
    view = _View(root, config, bundle)
    paths = [*_OPENED]
    for folder, beginning in _OPENED_IN.items():
        paths += [f"{folder}/{name}" for name in view.odd_names(folder, beginning)]
    for path in paths:
        found = view.find(path)
        if found and not stat.S_ISREG(os.lstat(found).st_mode):
            raise Refused(
                f"{path[:200]} in this {noun}'s image is no plain file, and what brings the GPU "
                "in would wait for it for ever: take it out of the image"
            )


def own_drivers(config: dict[str, object], bundle: str) -> list[str]:
    """The versions of libcuda that an image has for older drivers, as by its package cuda-compat.

    Args:
        config: the container's config.json.
        bundle: the folder that it lies in.

    Raises:
        OSError: that can't be told.
    """
    root = _root(config, bundle)
    folder = root and _View(root, config, bundle).find(_COMPATIBILITY)
    try:
        names = os.listdir(folder) if folder else []
    except (FileNotFoundError, NotADirectoryError):
        names = []
    return [name[len(_LIBCUDA) :] for name in names if name.startswith(_LIBCUDA)]


class _View:
    """A container's files as they will be: its root with what is mounted there."""

    def __init__(self, root: str, config: dict[str, object], bundle: str) -> None:
        self._sources = {"/": root}
        for mount in map(table, items(config.get("mounts"))):
            kinds = {text(mount.get("type")), *map(text, items(mount.get("options")))}
            bound = os.path.join(bundle, text(mount.get("source")))
            self._sources[spec.destination(mount)] = "" if kinds.isdisjoint(_BIND) else bound

    def find(self, path: str) -> str:
        """Where on the host lies what `path` leads to; empty if there is no such thing.

        Links are followed as the container's own root would have it, never out of it.
        """
        ahead, place, links = path.split("/")[::-1], list[str](), 0
        while ahead:
            part = ahead.pop()
            if part == "..":
                del place[-1:]
            elif part not in ("", "."):
                place.append(part)
                try:
                    target = os.readlink(self._on_host(place))
                except (FileNotFoundError, NotADirectoryError):
                    return ""
                except OSError as error:
                    if error.errno != errno.EINVAL:  # it is no link
                        raise
                    continue
                links += 1
                if links > _MOST_LINKS:
                    return ""
                place = [] if target.startswith("/") else place[:-1]
                ahead += target.split("/")[::-1]
        return self._on_host(place)

    def odd_names(self, folder: str, beginning: str) -> list[str]:
        """The names in a folder that begin so and are no plain files."""
        try:
            with os.scandir(self.find(folder) or os.devnull) as entries:
                return [
                    entry.name
                    for entry in entries
                    if entry.name.startswith(beginning)
                    and not entry.is_file(follow_symlinks=False)
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _on_host(self, place: list[str]) -> str:
        """Where the file with these names from / on lies; empty where it lies on no disk."""
        for count in range(len(place), -1, -1):
            source = self._sources.get("/" + "/".join(place[:count]))
            if source is not None:
                return "/".join((source, *place[count:])) if source else ""
        return ""


def _root(config: dict[str, object], bundle: str) -> str:
    path = text(table(config.get("root")).get("path"))
    return os.path.realpath(os.path.join(bundle, path)) if path else ""


def _volumes(config: dict[str, object]) -> str:
    """The folder of Concourse's volumes; empty where the task works in none of them."""
    for mount in map(table, items(config.get("mounts"))):
        if spec.is_work_folder(spec.destination(mount)):
            volume, name = os.path.split(os.path.realpath(text(mount.get("source"))))
            live = os.path.dirname(volume)
            if name == "volume" and os.path.basename(live) == "live":
                return live
    return ""


def _other_user(volume: str, bundle: str) -> str:
    """The id of another container that has the volume with this id; empty if none has.

    Containers whose init is gone are passed by, since nothing of them is left: hundreds of bundles
    can be left after failed builds. One without init.pid is about to come to be.
    """
    folder, own = os.path.split(bundle)
    wanted = f"/{volume}/volume".encode()
    for name in os.listdir(folder):
        if name == own or _has_ended(f"{folder}/{name}/init.pid"):
            continue
        try:
            if wanted in read_bytes(f"{folder}/{name}/config.json"):
                return name
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            continue  # it has gone, or is no bundle
    return ""


def _has_ended(pid_file: str) -> bool:
    """Whether the process that a file names is gone; not where the file tells of none."""
    try:
        os.kill(int(read_bytes(pid_file)), 0)
    except ProcessLookupError:
        return True
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return False


def _is_marked(folder: str) -> bool:
    try:
        found = os.lstat(f"{folder}/{MARKER}")
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(found.st_mode) and not found.st_uid and not found.st_mode & 0o022
