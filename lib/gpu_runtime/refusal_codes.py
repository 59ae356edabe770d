# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The codes of refusals, each with its meaning. docs/reference/errors.md has an entry for each.

The GPU runtime does not import this module: a task waits for each import. A code never changes its
meaning. Two refusals have different codes if their readers do different things next.
"""

from __future__ import annotations

CODES = {
    "caller-gone": "The program that requested the GPUs has ended.",
    "cgroup-unsupported": "The container's cgroup path does not identify the container.",
    "container-ended": "The container has ended, and its lease with it.",
    "device-node-missing": "A device node of a GPU is missing on the worker.",
    "device-rule-too-wide": "A device rule of the container allows every character device.",
    "gpu-count-ambiguous": "GPU_COUNT is set, possibly by the image and not by a person.",
    "gpu-count-invalid": "GPU_COUNT is not a number of GPUs.",
    "gpu-divided": "The GPU is divided into MIG devices.",
    "gpu-given-back": "The container's GPU was given back when its step ended.",
    "gpu-index-invalid": "A variable names a GPU that the lease does not include.",
    "gpu-not-offered": "The request names a GPU that the worker does not offer.",
    "gpu-run-in-container": "gpu-run was started in a container.",
    "gpu-run-nested": "gpu-run was started by a process that has a lease.",
    "gpu-run-not-permitted": "The user is not a member of gpu-run's group.",
    "gpu-run-not-set-up": "gpu-run is not enabled on the machine.",
    "gpu-run-total-limit": "Too many gpu-run commands are waiting.",
    "gpu-run-traced": "Another process traces gpu-run.",
    "gpu-run-unreachable": "The gpu-run service does not answer.",
    "gpu-run-user-limit": "Too many gpu-run commands of the user are waiting.",
    "gpu-unavailable": "The request names a GPU that is unavailable.",
    "gpu-withdrawn": "A GPU of the container is no longer available.",
    "gpus-changed": "The GPUs of the worker changed during the request.",
    "gpus-disabled": "The worker gives no GPU to tasks, containers or gpu-run commands.",
    "handover-failed": "A process keeps a GPU open after its holder has ended.",
    "image-special-file": "A file of the image would block the GPU runtime.",
    "internal-error": "The GPU runtime or gpu-run has a bug.",
    "lease-table-damaged": "The table of leases is damaged.",
    "not-confined": "The GPUs were granted, but other GPUs are not blocked.",
    "not-in-job": "A container of a runner's job requests GPUs that the job has not.",
    "path-reserved": "The step uses a path that the CI system reserves.",
    "policy-unreadable": "The GPU policy file is unreadable.",
    "privileged-not-allowed": "Privileged tasks and containers do not get GPUs on the worker.",
    "request-invalid": "The gpu-run service does not understand the request.",
    "requirement-invalid": "A requirement of the image is malformed.",
    "requirement-unmet": "No GPU or driver of the worker meets the image's requirements.",
    "reserved-variable": "A variable that the CI system reserves is set by the task or its image.",
    "rootfs-not-allowed": "The task's root is a folder of the worker that is not allowed.",
    "rootfs-shared": "Another container uses the task's root.",
    "rootless-engine": "The container belongs to a rootless container engine.",
    "runtime-damaged": "Files of the GPU runtime are missing or damaged.",
    "runtime-missing": "A program that starts containers is missing on the worker.",
    "scope-failed": "systemd did not create the scope of a gpu-run command.",
    "start-unsupported": "The container was not started by create and start.",
    "task-mounts-conflict": "A path of the task overlaps a task-mounts folder.",
    "task-mounts-unreadable": "The list of task-mounts folders is unreadable.",
    "task-mounts-unusable": "A task-mounts folder is missing or unsafe.",
    "too-few-gpus": "The request needs more GPUs than are available.",
    "wait-timeout": "The GPUs did not become free in time.",
    "worker-fault": "An operation failed on the worker.",
}
