# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What isolation was last proven for, so that it is proven anew when that changes."""

import dataclasses
import hashlib
import json
import typing

from ci.concourse import release
from gpu_agent import paths as wrapper
from gpu_agent.model.host import Machine
from gpu_agent.model.inventory import Inventory
from gpu_selftest import results
from gpu_selftest.settings import Settings
from machine import files

PATH: typing.Final = results.HOME / "proven"
# There since the first verdict on all GPUs after the machine's start, which empties its folder,
# or after it was given them again.
TESTED: typing.Final = wrapper.RUN / "selftest.done"


def subject(settings: Settings, inventory: Inventory, machine: Machine) -> str:
    """A short name for all that a test of isolation is about.

    The policy is left out: what it says of GPUs is in the settings, and how long a task waits for
    one changes nothing here. So is the engines' runtime, which no container of the test runs by.
    """
    plain = dataclasses.asdict(settings)
    plain["files"] = {
        path: told
        for path, told in settings.files.items()
        if path != str(wrapper.POLICY) and not wrapper.is_for_engines(path)
    }
    toolkit = machine.toolkit and machine.toolkit.version
    whole = json.dumps(
        [plain, inventory.driver, toolkit, str(release.CURRENT.resolve())],
        default=str,
        sort_keys=True,
    )
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def keep(subject: str) -> bool:
    """Note that all GPUs passed isolation as they are now. Return True if that was not known."""
    files.ensure_directory(PATH.parent)
    return files.ensure_file(PATH, subject)


def kept() -> str:
    """The subject that all GPUs last passed isolation with; empty if they never did."""
    return PATH.read_text(encoding="utf-8", errors="replace") if PATH.exists() else ""


def note_verdict() -> bool:
    """Note that there was a verdict on all GPUs since the machine started. True if it is new."""
    files.ensure_directory(TESTED.parent)
    return files.ensure_file(TESTED, "")


def forget_verdict() -> bool:
    """Have GPUs that come back tested, whatever they were before. Return True if that is new."""
    return files.ensure_absent(TESTED)


def is_tested() -> bool:
    """Whether there was a verdict on all GPUs since the machine started, or was given them.

    Where the test at boot was killed, crashed, or never came so far, there was none.
    """
    return TESTED.exists()
