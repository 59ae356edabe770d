# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a container is, told by its config.json, and that file with a grant in it. Pure.

What Concourse writes (8.2.5 atc/engine/step_factory.go:80-184, worker/runtime/spec/namespaces.go):

    step         work folder among the mounts   user namespace       answer
    task         /tmp/build/<8 hex digits>      yes                  task
    task, priv.  /tmp/build/<8 hex digits>      no                   task, privileged
    get          /tmp/build/get                 no if privileged     not a task
    put          /tmp/build/put                 no if privileged     not a task
    run          /tmp/build/run                 no if privileged     not a task
    check        none                           no if privileged     not a task
"""

from __future__ import annotations

import os.path

from gpuci.environment import LOADER, rewrite
from gpuci.shapes import items, table, text

_WORK_FOLDERS = "/tmp/build/"  # noqa: S108  Concourse's, inside the container
_HEX = frozenset("0123456789abcdef")

# Requests for devices by mounts (nvidia-container-toolkit 1.20
# internal/config/image/cuda_image.go) and by annotations (CDI specification 0.7.0).
_DEVICE_MOUNTS = ("/var/run/nvidia-container-devices", "/run/nvidia-container-devices")
_CDI_PREFIX = "cdi.k8s.io/"


def is_task(config: dict[str, object]) -> bool:
    """Whether a mount is a task's work folder. Nothing else decides: anybody may write env."""
    return any(
        destination.startswith(_WORK_FOLDERS)
        and len(destination) == len(_WORK_FOLDERS) + 8
        and _HEX.issuperset(destination[len(_WORK_FOLDERS) :])
        for destination in _destinations(config)
    )


def is_privileged(config: dict[str, object]) -> bool:
    """Whether it has no user namespace of its own: its root is the host's."""
    namespaces = items(table(config.get("linux")).get("namespaces"))
    return all(table(namespace).get("type") != "user" for namespace in namespaces)


def at_create(config: dict[str, object], ours: dict[str, str]) -> dict[str, object]:
    """`config` with the variables `ours`, without the mounts and annotations that ask for devices.

    Raises:
        Refused: its variables can't be told apart (see `environment.rewrite`).
        ValueError: it has no process.
    """
    changed = {**config, "process": _with_variables(config.get("process"), ours, LOADER)}
    mounts = items(config.get("mounts"))
    if any(map(_asks_for_device, mounts)):
        changed["mounts"] = [mount for mount in mounts if not _asks_for_device(mount)]
    annotations = table(config.get("annotations"))
    if any(name.startswith(_CDI_PREFIX) for name in annotations):
        changed["annotations"] = {
            name: value for name, value in annotations.items() if not name.startswith(_CDI_PREFIX)
        }
    return changed


def at_exec(process: dict[str, object], ours: dict[str, str]) -> dict[str, object]:
    """The process `process` with the variables `ours`; it has all others as its step wants them.

    Raises:
        Refused: its variables can't be told apart (see `environment.rewrite`).
    """
    return _with_variables(process, ours, frozenset())


def _with_variables(
    process: object, ours: dict[str, str], unwanted: frozenset[str]
) -> dict[str, object]:
    found = table(process)
    if not found:
        raise ValueError("it has no process")
    entries = [entry for entry in items(found.get("env")) if isinstance(entry, str)]
    return {**found, "env": rewrite(entries, ours, unwanted)}


def _destinations(config: dict[str, object]) -> list[str]:
    return [text(table(mount).get("destination")) for mount in items(config.get("mounts"))]


def _asks_for_device(mount: object) -> bool:
    destination = os.path.normpath(text(table(mount).get("destination")) or "/")
    return any(
        destination == folder or destination.startswith(f"{folder}/") for folder in _DEVICE_MOUNTS
    )
