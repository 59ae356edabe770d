# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check that Concourse's containerd starts tasks through the GPU runtime."""

import collections.abc
import os
import pathlib
import typing

from ci.concourse import release, service
from ci.concourse.worker import launcher, rivals, worker
from gpu_agent import paths
from gpu_agent.model import errors
from gpu_agent.runtime import manifest
from gpu_selftest.check import Check, Level, Outcome, Result
from machine import files
from machine import process_cleanup as leftovers

_REMEDY: typing.Final = "find out who changed it; it is restored within 5 minutes"
CHECK: typing.Final = Check(
    "launcher",
    Level.QUICK,
    "Concourse's containerd finds the GPU runtime instead of runc",
    remedy=_REMEDY,
)

_SERVICE: typing.Final = pathlib.Path("/etc/systemd/system") / worker.SERVICE
_ENVIRONMENT: typing.Final = service.CONFIG / "worker.env"


def check(
    installed: collections.abc.Mapping[str, str], root: pathlib.Path = pathlib.Path("/")
) -> Result:
    """Compare the launcher, and check that the running worker goes through it.

    A worker without GPUs need not go through it: the self-test runs before it gets any.

    Args:
        installed: what each installed file of the GPU runtime must be, by absolute path.
        root: where the machine's files are.
    """
    if not installed:
        text = "the GPU runtime is not installed yet; see juju status"
        return CHECK.result(Outcome.NOT_RUN, text)
    path = str(launcher.PATH)
    changed = ""
    if path in installed:
        changed = manifest.difference(root / path.lstrip("/"), installed[path])
    if changed:
        return CHECK.result(Outcome.FAILED, f"launcher changed: {path} {changed}")
    try:
        found = rivals.look(root)
    except errors.UnknownError as error:
        return CHECK.result(Outcome.NOT_RUN, str(error))
    # A tag that only this charm sets.
    promised = '"--tag=gpu-type=' in _text(root, _SERVICE)
    pids = leftovers.processes_running(release.ROOT, ("containerd",), root / "proc")
    without = [str(pid) for pid in pids if not _has_wrapper_first(root / f"proc/{pid}/environ")]
    named = f'CONCOURSE_CONTAINERD_BIN="{path}"' in _text(root, _ENVIRONMENT)
    faults = (
        (found.runc, f"{found.runc} is found before the GPU runtime", f"sudo rm {found.runc}"),
        (
            found.containerd,
            f"{found.containerd} uses /run/containerd/containerd.sock, which Concourse needs",
            f"sudo systemctl disable --now {found.containerd}, or use another machine",
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
            return CHECK.result(Outcome.FAILED, text, remedy=remedy)
    if without or not named:
        return CHECK.result(Outcome.PASSED, "as installed; no worker with GPUs has started yet")
    use = "in use" if pids else "the worker is not running"
    return CHECK.result(Outcome.PASSED, f"as installed, {use}")


def _text(root: pathlib.Path, path: pathlib.Path) -> str:
    """Return the content of a file; empty if there is none."""
    return files.read_text(root / str(path).lstrip("/")) or ""


def _has_wrapper_first(environ: pathlib.Path) -> bool:
    try:
        variables = environ.read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended
    path = next((entry[5:] for entry in variables if entry.startswith(b"PATH=")), b"")
    return path.split(b":")[0] == os.fsencode(paths.BIN)
