# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Classify a container by its config.json, and put a grant into that file. Pure.

A CI system says in which folder a container works (policy.TaskFolders: `parent` and `others`):

    container    work folder among the mounts   user namespace       answer
    task         <parent>/<8 hex digits>        yes                  TASK
    task, priv.  <parent>/<8 hex digits>        no                   PRIVILEGED_TASK
    other step   <parent>/<one of the others>   no if privileged     OTHER
    any other    none                           no if privileged     OTHER
    a session    an exec: its container was classified at its create

Nothing else decides. Images and pipelines write variables, and the annotations contain only the
image's user. Folders are compared as the runtime reads them: `<parent>//x/.` is a work folder too.
"""

from __future__ import annotations

import os.path

from gpu_runtime.environment import LOADER, Variables
from gpu_runtime.grant import Grant, Node
from gpu_runtime.json_shape import items, table, text
from gpu_runtime.policy import TaskFolders, is_task_name
from gpu_runtime.refusal import Refused
from gpu_runtime.seccomp import of_a_holder, without_rings

OTHER, TASK, PRIVILEGED_TASK = "other", "task", "privileged task"

# Requests for devices by mounts (nvidia-container-toolkit 1.20
# internal/config/image/cuda_image.go) and by annotations (CDI specification 0.7.0).
_DEVICE_MOUNTS = ("/var/run/nvidia-container-devices", "/run/nvidia-container-devices")
CDI_PREFIX = "cdi.k8s.io/"
# How the paths of GPUs' device nodes begin.
_GPU_NODES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")


def kind(config: dict[str, object], tasks: TaskFolders) -> str:
    """Return OTHER, TASK or PRIVILEGED_TASK for a container (see the table above)."""
    if not any(is_work_folder(place, tasks) for place in _destinations(config)):
        return OTHER
    namespaces = items(table(config.get("linux")).get("namespaces"))
    # Without a user namespace of its own, its root is the host's.
    own_root = any(table(namespace).get("type") == "user" for namespace in namespaces)
    return TASK if own_root else PRIVILEGED_TASK


def check_folders(config: dict[str, object], tasks: TaskFolders) -> None:
    """Check that a task's container has none of the folders of other steps.

    A put with an input named `../deadbeef` would look like a task.

    Raises:
        Refused: it has such a folder. No container that the CI system itself composes has both.
    """
    for place in _destinations(config):
        if f"{place}/".startswith(tasks.others):
            raise Refused(
                "path-reserved",
                f"input, output or cache path {place[:64]} is reserved by the CI system. Choose "
                "another name or path",
            )


def destination(mount: object) -> str:
    """Return the destination of a mount as the runtime reads it: below the container's /."""
    # normpath leaves two slashes at the beginning alone, unlike Go's filepath.Clean.
    return os.path.normpath("/" + text(table(mount).get("destination")).lstrip("/"))


def is_work_folder(place: str, tasks: TaskFolders) -> bool:
    """Whether a cleaned destination is a task's work folder."""
    above, slash, name = place.rpartition("/")
    return is_task_name(name) and tasks.parent in ("", above + slash)


def variables(process: object) -> Variables:
    """Return the variables of a config.json's `process`, or of a process file.

    Raises:
        Refused: the writers of the variables are ambiguous.
        ValueError: `process` is not a process.
    """
    found = table(process)
    if not found:
        raise ValueError("it has no process")
    return Variables([entry for entry in items(found.get("env")) if isinstance(entry, str)])


def cgroups_path(config: dict[str, object]) -> str:
    """Return the spec's path for the container's control group."""
    return text(table(config.get("linux")).get("cgroupsPath"))


def at_create(config: dict[str, object], grant: Grant) -> dict[str, object]:
    """Return `config` with `grant` in it, and without mounts and annotations that request devices.

    A process with a device must stay killable, and must not be able to hide an open device (see
    seccomp).

    Raises:
        Refused: the writers of its variables are ambiguous, or a variable exceeds the grant.
        ValueError: it has no process.
    """
    process = _with_grant(
        config.get("process"), grant.environment, grant.ids, grant.groups, LOADER
    )
    changed = {**config, "process": process}
    mounts = items(config.get("mounts"))
    if any(map(asks_for_device, mounts)):
        changed["mounts"] = [mount for mount in mounts if not asks_for_device(mount)]
    annotations = table(config.get("annotations"))
    if any(name.startswith(CDI_PREFIX) for name in annotations):
        changed["annotations"] = {
            name: value for name, value in annotations.items() if not name.startswith(CDI_PREFIX)
        }
    linux = _without_nodes(table(config.get("linux")))
    if linux != table(config.get("linux")):
        changed["linux"] = linux
    if profile := table(linux.get("seccomp")):
        restricted = of_a_holder(profile) if grant.ids else without_rings(profile)
        changed["linux"] = linux = {**linux, "seccomp": restricted}
    if grant.nodes:
        changed["linux"] = with_nodes(linux, grant.nodes)
    return changed


def at_exec(
    process: dict[str, object], environment: dict[str, str], ids: list[str], groups: list[int]
) -> dict[str, object]:
    """Return `process` for a container that was granted the devices `ids`.

    Raises:
        Refused: the writers of its variables are ambiguous, or a variable exceeds the grant.
        ValueError: `process` is not a process.
    """
    return _with_grant(process, environment, ids, groups)


def _with_grant(
    process: object,
    ours: dict[str, str],
    ids: list[str],
    groups: list[int],
    unwanted: tuple[str, ...] = (),
) -> dict[str, object]:
    return in_groups(with_variables(process, variables(process), ours, ids, unwanted), groups)


def with_variables(
    process: object,
    theirs: Variables,
    ours: dict[str, str],
    ids: list[str],
    unwanted: tuple[str, ...] = (),
) -> dict[str, object]:
    """Return a process with the variables `theirs`, in which `ours` replace those of that name.

    Raises:
        Refused: a variable names more than the devices `ids`.
    """
    if ids:
        theirs.check_narrowing(len(ids), ids)
    return {**table(process), "env": theirs.with_(ours, unwanted)}


def in_groups(process: dict[str, object], groups: list[int]) -> dict[str, object]:
    """Return a process that is also in these groups."""
    if not groups:
        return process
    user = table(process.get("user"))
    have = [group for group in items(user.get("additionalGids")) if isinstance(group, int)]
    return {**process, "user": {**user, "additionalGids": [*dict.fromkeys([*have, *groups])]}}


def with_nodes(linux: dict[str, object], nodes: list[Node]) -> dict[str, object]:
    """Add nodes. In a user namespace runc binds them from the host, with mode and owner."""
    ours = [
        {
            "path": node.path,
            "type": "c",
            "major": node.major,
            "minor": node.minor,
            "fileMode": 0o660,
            "uid": 0,
            "gid": node.gid,
        }
        for node in nodes
    ]
    rules = [
        {"allow": True, "type": "c", "major": node.major, "minor": node.minor, "access": "rw"}
        for node in nodes
    ]
    paths = {node.path for node in nodes}
    theirs = [node for node in items(linux.get("devices")) if table(node).get("path") not in paths]
    resources = table(linux.get("resources"))
    allowed = [*items(resources.get("devices")), *rules]
    return {
        **linux,
        "devices": [*theirs, *ours],
        "resources": {**resources, "devices": allowed},
    }


def _without_nodes(linux: dict[str, object]) -> dict[str, object]:
    """Return `linux` without the GPU nodes, and the rules for them, of an earlier create.

    Only this runtime puts such nodes into a CI system's containers.
    """
    devices = [*map(table, items(linux.get("devices")))]
    of_gpus = [node for node in devices if text(node.get("path")).startswith(_GPU_NODES)]
    if not of_gpus:
        return linux
    gone = [_place(node) for node in of_gpus]
    resources = table(linux.get("resources"))
    rules = items(resources.get("devices"))
    return {
        **linux,
        "devices": [node for node in devices if node not in of_gpus],
        "resources": {
            **resources,
            "devices": [
                rule
                for rule in rules
                if table(rule).get("allow") is not True or _place(table(rule)) not in gone
            ],
        },
    }


def _place(node: dict[str, object]) -> tuple[object, object, object]:
    return node.get("type"), node.get("major"), node.get("minor")


def _destinations(config: dict[str, object]) -> list[str]:
    return [destination(mount) for mount in items(config.get("mounts"))]


def asks_for_device(mount: object) -> bool:
    """Whether a mount requests devices: the toolkit, too, compares the beginning only."""
    return destination(mount).startswith(_DEVICE_MOUNTS)
