# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Serve one call of runc that may need a GPU: decide, edit the bundle, exec the next runtime.

The process is always replaced (exec) and never forks: the shim waits for this pid.
"""

from __future__ import annotations

import os
import sys

from gpu_runtime import container_spec as spec
from gpu_runtime import decision_log as journal
from gpu_runtime import grant, rootfs, signals
from gpu_runtime import lease_manager as broker
from gpu_runtime import policy as policies
from gpu_runtime import refusal as refuse
from gpu_runtime import runc_arguments as arguments
from gpu_runtime import task_mounts as folders
from gpu_runtime.decision_log import Decision
from gpu_runtime.fast_json import SPEC
from gpu_runtime.holder_usage import Host
from gpu_runtime.json_files import read_object, replace
from gpu_runtime.lease_store import Store
from gpu_runtime.policy import Policy
from gpu_runtime.refusal import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_runtime.environment import Variables


class Paths:
    """The paths that the shell script `runc` passes.

    Attributes:
        runc: the real runc.
        policy: policy.json.
        store: the folder of leases.
        wrapper: the folder of that script.
        log: the operators' log.
        folders: folders.json, beside policy.json.
    """

    __slots__ = ("folders", "log", "policy", "runc", "store", "wrapper")

    def __init__(self, runc: str, policy: str, store: str, wrapper: str, log: str) -> None:
        self.runc = runc
        self.policy = policy
        self.folders = f"{os.path.dirname(policy)}/{folders.FILE}"
        self.store = store
        self.wrapper = wrapper
        self.log = log


def main(argv: list[str]) -> None:
    """Serve a call: `argv` has the five Paths, then runc's own arguments. Never returns."""
    paths, words = Paths(*argv[:5]), argv[5:]
    call = arguments.parse(words)
    log = call.options.get("log", os.devnull)
    refuse.report_crashes(log)
    decision = Decision(call.container)
    by_runtime = None
    try:
        if call.container and call.command == "create":
            by_runtime = _create(paths, call, decision)
        elif call.container and call.command == "exec":
            _exec(paths, call, decision)
        elif call.command in {"run", "restore"}:
            _other_start(paths, call, decision)
        decision.write(paths.log)
        if by_runtime:
            environment = nvidia_environment(by_runtime.config_home, paths.wrapper)
            become(by_runtime.nvidia_runtime, words, environment)
        else:
            become(paths.runc, words, own_environment())
    except Refused as refusal:
        decision.refuse(refusal)
        decision.write(paths.log)
        refuse.write(log, refusal.code, str(refusal))
        sys.exit(1)


def _create(paths: Paths, call: arguments.Call, decision: Decision) -> Policy | None:
    """Grant a task's devices and edit its bundle; return the policy for NVIDIA's runtime."""
    bundle = os.path.abspath(call.options.get("bundle", "."))
    path = f"{bundle}/config.json"
    store, host = Store(paths.store), Host()
    file = policies.File(paths.policy)
    task = _task(file, path, decision)
    if task is None:
        try:
            broker.do_without(store, host, call.container)
        except (OSError, ValueError):
            pass  # no error about GPUs stops a container without a GPU
        folders.give(paths.folders, path, file.tasks)
        return None
    allowed, config = task
    config = folders.bound(config, folders.read(paths.folders, call.container))
    request = broker.Request(call.container, bundle, spec.cgroups_path(config))
    try:
        if decision.asked == 0:
            granted = grant.Grant(allowed, [])
            broker.do_without(store, host, call.container, bundle, granted)
        else:
            rootfs.check_files(config, bundle)
            request.unfit = unfit(allowed, spec.variables(config.get("process")), config, bundle)
            granted = broker.acquire(store, host, _policies(paths, allowed), request, decision)
            journal.intruders(paths.log, host.intruders, granted.ids)
        replace(path, spec.at_create(config, granted), like=path)
    except Refused:
        broker.undo(store, host, request)
        raise
    except (OSError, ValueError) as error:
        broker.undo(store, host, request)
        raise Refused("worker-fault", f"{refuse.failed('task')}: {refuse.fault(error)}") from error
    return allowed if granted.ids and allowed.vendor.by_runtime else None


def _exec(paths: Paths, call: arguments.Call, decision: Decision) -> None:
    """Give a process that starts in a container with a record the variables of its grant."""
    name = os.path.basename(call.options.get("pid-file", "")).removesuffix(".pid")
    decision.kind = f"exec {name}".rstrip()
    path = call.options.get("process", "")
    try:
        host = Host()
        record = broker.resume(Store(paths.store), host, lambda: _policy(paths), decision)
        journal.intruders(paths.log, host.intruders, record.gpus)
        if path:  # without it runc uses the variables of config.json, which has them
            told = record.environment, record.gpus, record.groups
            replace(path, spec.at_exec(read_object(path, SPEC), *told), like=path)
    except FileNotFoundError:
        decision.kind = ""  # swept just now, or runc reports it
    except (OSError, ValueError) as error:
        raise Refused(
            "worker-fault",
            f"could not give this process its GPUs: {path} and the record of its container in "
            f"{paths.store}: {refuse.fault(error)}",
        ) from error


def _other_start(paths: Paths, call: arguments.Call, decision: Decision) -> None:
    """Refuse a task with GPUs that is started by `run` or `restore`, as Guardian does.

    nvidia-container-toolkit 1.20 acts on `create` only (internal/oci/args.go).
    """
    bundle = os.path.abspath(call.options.get("bundle", "."))
    file = policies.File(paths.policy)
    if _task(file, f"{bundle}/config.json", decision) and decision.asked != 0:
        raise Refused(
            "start-unsupported",
            f"GPUs are not supported with `runc {call.command}`. Ask the worker's operator to "
            "undo the change by which the CI system starts tasks otherwise than by containerd",
        )


def _task(
    file: policies.File, path: str, decision: Decision
) -> tuple[Policy, dict[str, object]] | None:
    """Return the policy and config.json of a task, None for others; set `decision.asked`.

    Raises:
        Refused: its configuration or its request is invalid.
    """
    fault: OSError | ValueError | None = None
    config: dict[str, object] = {}
    try:
        config = read_object(path, SPEC)
    except (FileNotFoundError, NotADirectoryError):
        return None  # runc reports it
    except (OSError, ValueError) as error:
        fault = error
    decision.kind = spec.TASK if fault else spec.kind(config, file.tasks)
    if decision.kind == spec.OTHER:
        decision.kind = ""
        return None
    allowed = file.policy()
    if allowed is None:
        decision.kind = ""
        return None
    if fault:
        raise _unreadable(path, fault)
    spec.check_folders(config, file.tasks)
    try:
        rootfs.check_origin(config, os.path.dirname(path), file.tasks)
        variables = spec.variables(config.get("process"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    privileged = decision.kind == spec.PRIVILEGED_TASK
    decision.asked = grant.asked_for(allowed, variables, privileged=privileged)
    if decision.asked and allowed.exclusive:
        variables.check_narrowing(decision.asked, [])
    runtime = allowed.nvidia_runtime if allowed.vendor.by_runtime else ""
    if decision.asked != 0 and runtime and not os.access(runtime, os.X_OK):
        raise no_runtime(runtime)
    return allowed, config


def unfit(
    policy: Policy, variables: Variables, config: dict[str, object], bundle: str
) -> dict[str, str]:
    """Return the devices that do not meet a container's requirements, by id, with the reason.

    Raises:
        Refused: no device meets them, or a requirement is malformed.
        OSError: the driver or the image cannot be read.
    """
    required = variables.required() if policy.vendor.by_runtime else []
    if not required:
        return {}
    from gpu_runtime import image_requirements as require  # noqa: PLC0415 - most images require nothing

    return require.unfit(
        policy, required, variables.noun, lambda: rootfs.own_drivers(config, bundle)
    )


def _unreadable(path: str, error: OSError | ValueError) -> Refused:
    said = refuse.fault(error)
    return Refused("worker-fault", f"{refuse.failed('task')}: cannot read {path}: {said}")


def _policy(paths: Paths) -> Policy:
    allowed = policies.read(paths.policy)
    if allowed is None:
        raise Refused(
            "gpus-disabled",
            "tasks on this worker no longer get GPUs (enable-gpu=false). Rerun the job, which "
            "then runs on another worker",
        )
    return allowed


def _policies(paths: Paths, first: Policy) -> Iterator[Policy]:
    """Yield the policy that was read already, then the current one each time."""
    yield first
    while True:
        yield _policy(paths)


def become(
    runtime: str, words: list[str], environment: dict[bytes, bytes], noun: str = "task"
) -> None:
    """Replace this process by another runtime, with these arguments and variables.

    Raises:
        Refused: the runtime cannot be executed.
    """
    signals.as_a_child_expects()
    try:
        os.execve(runtime, [runtime, *words], environment)  # noqa: S606
    except OSError as error:
        raise no_runtime(runtime, noun) from error


def no_runtime(runtime: str, noun: str = "task") -> Refused:
    """Make the refusal if a runtime cannot be executed."""
    return Refused(
        "runtime-missing",
        f"{runtime} cannot be executed, so this {noun} cannot start. Ask the worker's operator: "
        "`juju status` or `gpu-ci-agent start` shows what to install",
    )


def own_environment() -> dict[bytes, bytes]:
    """Return the original variables of this process: Python itself may add LC_CTYPE."""
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    return {name: value for name, _, value in (entry.partition(b"=") for entry in entries) if name}


def nvidia_environment(config_home: str, wrapper: str) -> dict[bytes, bytes]:
    """Return variables for NVIDIA's runtime: its private configuration, and PATH without ours.

    Args:
        config_home: the folder that holds the configuration.
        wrapper: the folder of this project's runtimes.
    """
    environment = own_environment()
    environment.pop(b"NVIDIA_CTK_CONFIG_FILE_PATH", None)  # would be read before XDG_CONFIG_HOME
    environment[b"XDG_CONFIG_HOME"] = os.fsencode(config_home)
    folders = environment.get(b"PATH", b"").split(b":")
    ours = os.fsencode(wrapper)
    environment[b"PATH"] = b":".join(folder for folder in folders if folder != ours)
    return environment
