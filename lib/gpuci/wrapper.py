# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One call of runc that may concern a GPU: decide, edit the bundle, become the next runtime.

The process is always replaced (exec) and never forks: the shim ties runc's life to this pid.
"""

from __future__ import annotations

import os
import signal
import sys

from gpuci import arguments, grant, policy, refuse, spec, store
from gpuci.files import read_object, replace
from gpuci.refuse import Refused


class Paths:
    """Where things are, as the front passes them.

    Attributes:
        runc: the real runc.
        policy: policy.json.
        store: the folder of grants.
        wrapper: the folder in which the front lies under the name runc.
    """

    __slots__ = ("policy", "runc", "store", "wrapper")

    def __init__(self, runc: str, policy: str, store: str, wrapper: str) -> None:
        self.runc = runc
        self.policy = policy
        self.store = store
        self.wrapper = wrapper


def main(argv: list[str]) -> None:
    """Serve a call: `argv` is the four Paths, then runc's own arguments. Never returns."""
    paths, words = Paths(*argv[:4]), argv[4:]
    call = arguments.parse(words)
    log = call.options.get("log", os.devnull)
    refuse.report_crashes(log)
    try:
        granted = None
        if call.container and call.command == "create":
            granted = _create(paths, call)
        elif call.container and call.command == "exec":
            _exec(paths, call)
        if granted is None:
            _become(paths.runc, words, _environment())
        else:
            _become(granted.nvidia_runtime, words, _nvidia_environment(paths, granted))
    except Refused as refusal:
        refuse.write(log, str(refusal))
        sys.exit(1)


def _create(paths: Paths, call: arguments.Call) -> policy.Policy | None:
    """Grant what a task gets and edit its bundle; the policy if the NVIDIA runtime is next."""
    bundle = os.path.abspath(call.options.get("bundle", "."))
    path = os.path.join(bundle, "config.json")
    try:
        config = read_object(path)
    except OSError:
        return None  # runc says it best
    except ValueError as error:
        config, fault = {}, f"{path} cannot be read ({error})"
    else:
        fault = ""
        if not spec.is_task(config):
            return None
    allowed = policy.read(paths.policy)
    if allowed is None:
        store.remove(paths.store, call.container)  # of an earlier create with the same id
        return None
    if fault:
        raise Refused(f"this task cannot be given its GPU: {fault}; run it again")
    granted = grant.decide(allowed, config)
    if granted.devices and not os.access(allowed.nvidia_runtime, os.X_OK):
        raise _no_runtime(allowed.nvidia_runtime)
    try:
        changed = spec.at_create(config, granted.environment)
        store.put(paths.store, call.container, bundle, granted)
        replace(path, changed, like=path)
    except (OSError, ValueError) as error:
        raise Refused(
            f"this task cannot be given its GPU: {path}: {error}; "
            "look at the disk space and mounts of this worker"
        ) from error
    return allowed if granted.devices else None


def _exec(paths: Paths, call: arguments.Call) -> None:
    """Give a process in a container with a grant the variables that its container got."""
    path = call.options.get("process", "")
    if not path:
        return  # runc then takes the variables of config.json, where they are
    try:
        ours = store.environment(paths.store, call.container)
        replace(path, spec.at_exec(read_object(path), ours), like=path)
    except FileNotFoundError:
        return  # swept meanwhile, or runc says it best
    except (OSError, ValueError) as error:
        raise Refused(
            f"this process cannot be told its GPUs: {path} and the record of its container in "
            f"{paths.store}: {error}; run the task again"
        ) from error


def _become(runtime: str, words: list[str], environment: dict[bytes, bytes]) -> None:
    # Python ignores these two, and what is ignored stays so across exec, into the container.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execve(runtime, [runtime, *words], environment)  # noqa: S606
    except OSError as error:
        raise _no_runtime(runtime) from error


def _no_runtime(runtime: str) -> Refused:
    return Refused(
        f"{runtime} cannot be run, so this task cannot be started; "
        "`juju status` of this worker says what to install"
    )


def _environment() -> dict[bytes, bytes]:
    """The variables as this process was given them: Python itself may have added LC_CTYPE."""
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    return {name: value for name, _, value in (entry.partition(b"=") for entry in entries) if name}


def _nvidia_environment(paths: Paths, allowed: policy.Policy) -> dict[bytes, bytes]:
    """Variables for the NVIDIA runtime: its private configuration, no way back to this wrapper."""
    environment = _environment()
    environment.pop(b"NVIDIA_CTK_CONFIG_FILE_PATH", None)  # would be read before XDG_CONFIG_HOME
    environment[b"XDG_CONFIG_HOME"] = os.fsencode(allowed.config_home)
    folders = environment.get(b"PATH", b"").split(b":")
    ours = os.fsencode(paths.wrapper)
    environment[b"PATH"] = b":".join(folder for folder in folders if folder != ours)
    return environment
