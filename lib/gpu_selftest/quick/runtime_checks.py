# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check the GPU runtime, its launcher and NVIDIA's configuration against what the charm wrote.

And check that tasks really go through them.
"""

import collections.abc
import contextlib
import os
import pathlib
import typing

from ci.concourse import release, service
from ci.concourse.worker import worker
from gpu_agent import paths as wrapper
from gpu_agent.model.host import Machine
from gpu_agent.runtime import manifest
from gpu_agent.runtime import nvidia_config as nvidia
from gpu_selftest.check import Check, Level, Outcome, Result
from gpu_selftest.settings import Settings
from machine import process_cleanup as leftovers

_REMEDY: typing.Final = (
    "find out who changed it; the charm restores it at its next event, within 5 minutes"
)

RUNTIME: typing.Final = Check(
    "gpu-runtime",
    Level.QUICK,
    "the GPU runtime for tasks, and the runtime gpu-ci for podman's and Docker's containers, are "
    "as the charm installed them",
    remedy=_REMEDY,
)
LAUNCHER: typing.Final = Check(
    "launcher",
    Level.QUICK,
    "Concourse's containerd finds the GPU runtime instead of runc",
    remedy=_REMEDY,
)
CONFIGURATION: typing.Final = Check(
    "runtime-config",
    Level.QUICK,
    "NVIDIA's runtime gets GPUs from the GPU runtime only, and calls the real runc",
    remedy=_REMEDY,
)

# The configuration of NVIDIA's runtime for tasks alone.
CONFIG: typing.Final = nvidia.folder(wrapper.CONFIG) / "config.toml"
# A release counts as unpacked as long as the charm's note is beside it (ci.concourse.release).
UNPACK: typing.Final = (
    f"`sudo rm {release.CURRENT}/.release.json`; the charm unpacks Concourse again at its next "
    "event, within 5 minutes"
)

_SERVICE: typing.Final = pathlib.Path("/etc/systemd/system") / worker.SERVICE
_ENVIRONMENT: typing.Final = service.CONFIG / "worker.env"
# How many files one result names.
_NAMED: typing.Final = 3


def check_runtime(settings: Settings, root: pathlib.Path) -> Result:
    """Compare the files that gpu_agent.runtime.install listed, except the other checks' files."""
    others = (str(wrapper.LAUNCHER), str(CONFIG), str(CONFIG.parent))
    files = {path: told for path, told in settings.files.items() if path not in others}
    changed = _changed(files, root)
    if not changed:
        return RUNTIME.result(Outcome.PASSED, f"{len(files)} files and folders are as installed")
    shown = changed[:_NAMED]
    if more := len(changed) - len(shown):
        shown.append(f"{more} more")
    return RUNTIME.result(Outcome.FAILED, f"GPU runtime changed: {', '.join(shown)}")


def check_launcher(settings: Settings, machine: Machine, root: pathlib.Path) -> Result:
    """Compare the launcher, and check that the running worker goes through it.

    A worker without GPUs need not go through it: the self-test runs before it gets any.
    """
    path = str(wrapper.LAUNCHER)
    changed = _changed({path: settings.files.get(path, "")}, root)
    if changed:
        return LAUNCHER.result(Outcome.FAILED, f"launcher changed: {changed[0]}")
    # A tag that only this charm sets.
    promised = '"--tag=gpu-type=' in _text(root, _SERVICE)
    names = (pathlib.Path(wrapper.CONTAINERD).name,)
    pids = leftovers.processes_running(release.ROOT, names, root / "proc")
    without = [str(pid) for pid in pids if not _has_wrapper_first(root / f"proc/{pid}/environ")]
    named = f'CONCOURSE_CONTAINERD_BIN="{path}"' in _text(root, _ENVIRONMENT)
    rival, foreign = machine.rival, machine.foreign_runc
    faults = (
        (foreign, f"{foreign} is found before the GPU runtime", f"sudo rm {foreign}"),
        (
            rival,
            f"{rival} uses /run/containerd/containerd.sock, which Concourse needs",
            f"sudo systemctl disable --now {rival}, or use another machine",
        ),
        (
            promised and without,
            f"the PATH of Concourse's containerd ({', '.join(without)}) has another folder first",
            f"sudo systemctl restart {worker.SERVICE}; builds go on",
        ),
        (promised and not named, f"{_ENVIRONMENT} does not name it", _REMEDY),
    )
    for is_so, seen, remedy in faults:
        if is_so:
            text = f"launcher not in use: {seen}"
            return LAUNCHER.result(Outcome.FAILED, text, remedy=remedy)
    if without or not named:
        return LAUNCHER.result(Outcome.PASSED, "as installed; no worker with GPUs has started yet")
    use = "in use" if pids else "the worker is not running"
    return LAUNCHER.result(Outcome.PASSED, f"as installed, {use}")


def check_configuration(settings: Settings, root: pathlib.Path) -> Result:
    """Compare the configuration of NVIDIA's runtime, and check what it means."""
    ours = (str(CONFIG.parent), str(CONFIG))
    found = _changed({path: settings.files[path] for path in ours}, root)
    content = _text(root, CONFIG)
    if content:
        found += [f"{CONFIG}: {fault}" for fault in nvidia.faults(content, wrapper.RUNC)]
    if found:
        return CONFIGURATION.result(
            Outcome.FAILED, f"NVIDIA runtime's configuration changed: {', '.join(found)}"
        )
    runc = (root / wrapper.RUNC.lstrip("/")).resolve()
    if not os.access(runc, os.X_OK):
        wrong = f"{wrapper.RUNC} is missing or not a program"
    elif runc == (root / str(wrapper.FRONT).lstrip("/")).resolve():
        wrong = f"{wrapper.RUNC} leads back to the GPU runtime, in a loop"
    else:
        return CONFIGURATION.result(Outcome.PASSED, f"as installed; calls {wrapper.RUNC}")
    return CONFIGURATION.result(
        Outcome.FAILED,
        f"runc not found: {wrong}",
        remedy=UNPACK,
    )


def is_configured(settings: Settings) -> bool:
    """Return whether the charm has written a configuration for NVIDIA's runtime."""
    return str(CONFIG) in settings.files


def _changed(files: collections.abc.Mapping[str, str], root: pathlib.Path) -> list[str]:
    clauses = {path: manifest.difference(root / path.lstrip("/"), files[path]) for path in files}
    return [f"{path} {clause}" for path, clause in clauses.items() if clause]


def _text(root: pathlib.Path, path: pathlib.Path) -> str:
    """Return the content of a file; empty if there is none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return (root / str(path).lstrip("/")).read_text(encoding="utf-8", errors="replace")
    return ""


def _has_wrapper_first(environ: pathlib.Path) -> bool:
    try:
        variables = environ.read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended
    path = next((entry[5:] for entry in variables if entry.startswith(b"PATH=")), b"")
    return path.split(b":")[0] == os.fsencode(wrapper.BIN)
