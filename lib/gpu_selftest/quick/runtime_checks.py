# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check the GPU runtime and NVIDIA's configuration against what the charm wrote."""

import collections.abc
import contextlib
import os
import pathlib
import typing

from gpu_agent import paths as wrapper
from gpu_agent.runtime import manifest
from gpu_agent.runtime import nvidia_config as nvidia
from gpu_selftest.check import Check, Level, Outcome, Result
from gpu_selftest.settings import Settings

_REMEDY: typing.Final = "find out who changed it; it is restored within 5 minutes"

RUNTIME: typing.Final = Check(
    "gpu-runtime",
    Level.QUICK,
    "the GPU runtime for tasks, and the runtime gpu-ci for podman's and Docker's containers, are "
    "as they were installed",
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
# How many files one result names.
_NAMED: typing.Final = 3


def check_runtime(settings: Settings, root: pathlib.Path) -> Result:
    """Compare the files that gpu_agent.runtime.install listed, except other checks' files."""
    others = (*settings.programs, str(CONFIG), str(CONFIG.parent))
    files = {path: told for path, told in settings.files.items() if path not in others}
    changed = _changed(files, root)
    if not changed:
        return RUNTIME.result(Outcome.PASSED, f"{len(files)} files and folders are as installed")
    shown = changed[:_NAMED]
    if more := len(changed) - len(shown):
        shown.append(f"{more} more")
    return RUNTIME.result(Outcome.FAILED, f"GPU runtime changed: {', '.join(shown)}")


def check_configuration(settings: Settings, root: pathlib.Path) -> Result:
    """Compare the configuration of NVIDIA's runtime, and check what it means."""
    ours = (str(CONFIG.parent), str(CONFIG))
    named = settings.runc_path(root)
    found = _changed({path: settings.files[path] for path in ours}, root)
    content = _text(root, CONFIG)
    if content:
        found += [f"{CONFIG}: {fault}" for fault in nvidia.faults(content, named)]
    if found:
        return CONFIGURATION.result(
            Outcome.FAILED, f"NVIDIA runtime's configuration changed: {', '.join(found)}"
        )
    runc = (root / named.lstrip("/")).resolve()
    if not os.access(runc, os.X_OK):
        wrong = f"{named} is missing or not a program"
    elif runc == (root / str(wrapper.FRONT).lstrip("/")).resolve():
        wrong = f"{named} leads back to the GPU runtime, in a loop"
    else:
        return CONFIGURATION.result(Outcome.PASSED, f"as installed; calls {named}")
    return CONFIGURATION.result(
        Outcome.FAILED, f"runc not found: {wrong}", remedy=settings.runc_remedy
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
