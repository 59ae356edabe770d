# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check a task's root file system: its owner, and the files that NVIDIA's hooks open in it.

A task's author may name any folder of the worker as its root (`rootfs_uri: raw:///...`). If two
containers share a root, they can pass an open device on through a socket in it, past all device
rules. So a root must be a volume that no other container has, or a folder that the operator
marked. Concourse allows rootfs_uri for tasks only (8.3 atc/exec/task_step.go:399). The root of its
other steps is always a copy of an image, made for that container.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_runtime import container_spec as spec
from gpu_runtime.json_files import read_bytes
from gpu_runtime.json_shape import items, table, text
from gpu_runtime.policy import TaskFolders
from gpu_runtime.refusal import Refused

# The operator's mark of a folder that tasks may have as their root.
MARKER = ".gpu-ci-task-root"

# The files that NVIDIA's createContainer hooks open in a container (nvidia-container-toolkit 1.17
# to 1.20 cmd/nvidia-cdi-hook, internal/ldconfig; glibc elf/ldconfig.c, elf/cache.c), and runc
# itself (libcontainer/init_linux.go). Opening a FIFO never returns.
_OPENED = (
    *("/etc/ld.so.conf", "/etc/ld.so.cache", "/etc/ld.so.cache~", "/etc/passwd", "/etc/group"),
    *("/var/cache/ldconfig/aux-cache", "/var/cache/ldconfig/aux-cache~"),
    *("/etc/ld-musl-x86_64.path", "/etc/ld-musl-aarch64.path"),
)
# Folders in which they open every file whose name has this prefix.
_COMPATIBILITY, _LIBCUDA = "/usr/local/cuda/compat", "libcuda.so."
_OPENED_IN = {"/etc/ld.so.conf.d": "", _COMPATIBILITY: "libcuda.so"}

_BIND = frozenset({"bind", "rbind"})
_MOST_LINKS = 40  # the kernel's own limit (path_resolution(7)); with more nothing can be opened


def check_origin(config: dict[str, object], bundle: str, tasks: TaskFolders) -> None:
    """Check that no other container has a task's root.

    The source of the work folder, which is always a mount of the CI system's, shows where that
    has its volumes. The other containers' config.json show who uses a volume. containerd writes
    each before it calls the runtime, so of two containers that share a root the later one sees
    the other. No record is needed.

    Args:
        config: the task's config.json; without a root, runc reports the error.
        bundle: its folder, beside the bundles of all other containers.
        tasks: how tasks are known.

    Raises:
        Refused: another container has the root, or it is a folder of the worker.
        OSError: a configuration cannot be read.
    """
    root = _root(config, bundle)
    if not root:
        return
    live = _volumes(config, tasks)
    name, _, rest = root.removeprefix(f"{live}/").partition("/")
    if live and root.startswith(f"{live}/") and f"{rest}/".startswith("volume/"):
        if other := _other_user(name, bundle):
            raise Refused(
                "rootfs-shared",
                f"rootfs_uri names files that container {other} uses, through which GPUs could be "
                "passed on. Use an image instead",
            )
    elif (live and root.startswith(f"{os.path.dirname(os.path.dirname(live))}/")) or not (
        _is_marked(root)
    ):
        raise Refused(
            "rootfs-not-allowed",
            f"rootfs_uri names {root[:200]}, a folder of the worker through which GPUs could be "
            "passed on. Use an image instead. Or ask the worker's operator to allow that folder "
            f"with an empty file {MARKER} in it, owned by root with mode 644; the tasks that name "
            "the folder then share it",
        )


def check_files(config: dict[str, object], bundle: str, noun: str = "task") -> None:
    """Check that NVIDIA's runtime can open its files in a container without hanging.

    Images have made it hang by these files. Other files could do so too, such as those that
    ld.so.conf includes. A start that hangs is ended after a minute (see holder_usage.Host).

    Args:
        config: the container's config.json.
        bundle: its folder.
        noun: the kind of the request, as in lease_table.NOUNS.

    Raises:
        Refused: one of them exists and is not a regular file.
        OSError: a file cannot be read.
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
                "image-special-file",
                f"{path[:200]} in the {noun}'s image is not a regular file; the GPU runtime would "
                "hang on it. Remove it from the image",
            )


def own_drivers(config: dict[str, object], bundle: str) -> list[str]:
    """Return the versions of libcuda in an image for older drivers (package cuda-compat).

    Args:
        config: the container's config.json.
        bundle: its folder.

    Raises:
        OSError: the folder cannot be read.
    """
    root = _root(config, bundle)
    folder = root and _View(root, config, bundle).find(_COMPATIBILITY)
    try:
        names = os.listdir(folder) if folder else []
    except (FileNotFoundError, NotADirectoryError):
        names = []
    return [name[len(_LIBCUDA) :] for name in names if name.startswith(_LIBCUDA)]


class _View:
    """A container's files: its root with its mounts."""

    def __init__(self, root: str, config: dict[str, object], bundle: str) -> None:
        self._sources = {"/": root}
        for mount in map(table, items(config.get("mounts"))):
            kinds = {text(mount.get("type")), *map(text, items(mount.get("options")))}
            bound = os.path.join(bundle, text(mount.get("source")))
            self._sources[spec.destination(mount)] = "" if kinds.isdisjoint(_BIND) else bound

    def find(self, path: str) -> str:
        """Return the host's path of a container's file; empty if it does not exist.

        Links are followed within the container's root, never out of it.
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
                    if error.errno != errno.EINVAL:  # it is not a link
                        raise
                    continue
                links += 1
                if links > _MOST_LINKS:
                    return ""
                place = [] if target.startswith("/") else place[:-1]
                ahead += target.split("/")[::-1]
        return self._on_host(place)

    def odd_names(self, folder: str, beginning: str) -> list[str]:
        """Return the names in a folder with this prefix that are not regular files."""
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
        """Return the host's path of the file with these names; empty if it is not on a disk."""
        for count in range(len(place), -1, -1):
            source = self._sources.get("/" + "/".join(place[:count]))
            if source is not None:
                return "/".join((source, *place[count:])) if source else ""
        return ""


def _root(config: dict[str, object], bundle: str) -> str:
    path = text(table(config.get("root")).get("path"))
    return os.path.realpath(os.path.join(bundle, path)) if path else ""


def _volumes(config: dict[str, object], tasks: TaskFolders) -> str:
    """Return the folder of the CI system's volumes; empty if the task works outside of it.

    The names are baggageclaim's, which keeps Concourse's volumes (8.3 worker/baggageclaim/volume).
    """
    for mount in map(table, items(config.get("mounts"))):
        if spec.is_work_folder(spec.destination(mount), tasks):
            volume, name = os.path.split(os.path.realpath(text(mount.get("source"))))
            live = os.path.dirname(volume)
            if name == "volume" and os.path.basename(live) == "live":
                return live
    return ""


def _other_user(volume: str, bundle: str) -> str:
    """Return the id of another container that has the volume with this id; empty if none has.

    Containers whose init is gone are skipped, because no process of them is left. Failed builds
    can leave hundreds of bundles. A container without init.pid is about to start.
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
            continue  # it is gone, or is not a bundle
    return ""


def _has_ended(pid_file: str) -> bool:
    """Whether the process that a file names is gone; False if the file names none."""
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
