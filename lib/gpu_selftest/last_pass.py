# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Remember what isolation was last proven for, so that a change triggers a new self-test."""

import dataclasses
import hashlib
import json
import pathlib
import typing

from gpu_agent import paths as wrapper
from gpu_agent.model.host import Machine
from gpu_agent.model.inventory import Inventory
from gpu_selftest import results
from gpu_selftest.settings import Settings
from machine import files

PATH: typing.Final = results.HOME / "proven"
# Exists since the first verdict on all GPUs after boot (which empties its folder) or after the
# machine was given GPUs again.
TESTED: typing.Final = wrapper.RUN / "selftest.done"


def subject(settings: Settings, inventory: Inventory, machine: Machine) -> str:
    """Return a short name for everything that a test of isolation depends on.

    The policy is left out: its GPUs are in the settings, and the time that a task waits for a GPU
    makes no difference. The container engines' runtime and a CI system's programs are left out
    too: no container of the self-test uses them.
    """
    plain = dataclasses.asdict(settings)
    # What other checks have of the CI system, and what a report says.
    for name in ("runc_remedy", "programs", "checks", "disks"):
        del plain[name]
    plain["files"] = {
        path: told
        for path, told in settings.files.items()
        if path != str(wrapper.POLICY)
        and not wrapper.is_for_engines(path)
        and (pathlib.Path(path).parent != wrapper.BIN or path == str(wrapper.FRONT))
    }
    toolkit = machine.toolkit and machine.toolkit.version
    runc = str(pathlib.Path(settings.runc_path()).resolve())
    whole = json.dumps([plain, inventory.driver, toolkit, runc], default=str, sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def keep(subject: str) -> bool:
    """Note that all GPUs passed isolation as they are now. Return True if that is new."""
    files.ensure_directory(PATH.parent)
    return files.ensure_file(PATH, subject)


def kept() -> str:
    """Return the subject with which all GPUs last passed isolation; empty if they never did."""
    return PATH.read_text(encoding="utf-8", errors="replace") if PATH.exists() else ""


def note_verdict() -> bool:
    """Note a verdict on all GPUs since the machine started. Return True if it is the first."""
    files.ensure_directory(TESTED.parent)
    return files.ensure_file(TESTED, "")


def forget_verdict() -> bool:
    """Require a new test of GPUs that come back. Return True if that is new."""
    return files.ensure_absent(TESTED)


def is_tested() -> bool:
    """Return whether there was a verdict on all GPUs since boot, or since GPUs were given.

    If the self-test at boot was killed, crashed or never started, there was none.
    """
    return TESTED.exists()
