# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads what the policy of the installed runtime allows tasks to have."""

from gpu_agent import paths
from gpu_runtime import policy
from gpu_runtime.lease_table import NOUNS, STEP
from gpu_runtime.policy import Policy, TaskFolders
from gpu_runtime.refusal import Refused


def allowed(kind: str = STEP) -> Policy | None:
    """The policy for tasks; None if they get no GPU, or the GPU runtime is not installed.

    Args:
        kind: kind of the holder for error messages, one of gpu_runtime.lease_table's KINDS.

    Raises:
        gpu_runtime.refusal.Refused: the policy can't be read or followed.
    """
    if not paths.FRONT.exists() and not paths.POLICY.exists():
        return None
    return policy.read(str(paths.POLICY), NOUNS[kind])


def task_folders() -> TaskFolders:
    """How the installed runtime knows the container of a task.

    Raises:
        gpu_runtime.refusal.Refused: the policy can't be read or followed.
    """
    file = policy.File(str(paths.POLICY))
    file.policy()
    return file.tasks


def handed_out() -> tuple[str, ...]:
    """UUIDs of the GPUs that tasks may get; none if all requests are refused."""
    try:
        found = allowed()
    except Refused:
        return ()
    return tuple(dict.fromkeys(device.gpu for device in found.devices)) if found else ()
