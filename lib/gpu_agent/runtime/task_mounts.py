# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The list of host folders that tasks get (lib/gpu_runtime/task_mounts.py)."""

import collections.abc
import dataclasses
import json

from gpu_agent import paths as wrapper
from gpu_agent.model.keep import Keep
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import Folder, GpuPlan, TaskFolders
from gpu_runtime import task_mounts as folders
from gpu_runtime.refusal import Refused
from machine import files

LIST = wrapper.CONFIG / folders.FILE


def ensure(
    wanted: collections.abc.Sequence[Folder] | Keep,
    gpu: GpuPlan | Keep | None,
    runc: str,
    tasks: TaskFolders,
) -> bool:
    """Give tasks these folders from now on. Return True if anything had to be changed.

    If tasks get no GPU, the GPU runtime is installed for the folders only.

    Args:
        wanted: the folders.
        gpu: the plan by which the GPU runtime is installed already; None: it is not.
        runc: as in GpuPlan.
        tasks: the same.

    Raises:
        machine.process.CommandError: the runtime's modules could not be compiled.
    """
    if isinstance(wanted, Keep):
        return False
    if not wanted:
        return files.ensure_absent(LIST)
    plan = GpuPlan((), "", runc=runc, tasks=tasks)
    changed = install.apply(plan) if gpu is None else False
    files.ensure_directory(LIST.parent)
    given = [dataclasses.asdict(folder) for folder in wanted]
    content = {"version": folders.VERSION, "folders": given}
    return files.ensure_file(LIST, json.dumps(content, indent=1) + "\n") or changed


def refused() -> str:
    """Why tasks are refused because of one of these folders; empty if they are not."""
    try:
        given = folders.read(str(LIST))
    except Refused as error:
        return str(error)
    for folder in given:
        if why := folders.what_is_wrong(folder.source):
            return f"{folder.source}: {why}"
    return ""
