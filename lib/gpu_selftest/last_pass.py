# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keep reports, and what isolation was last proven for: a change triggers a new self-test."""

import dataclasses
import hashlib
import json
import pathlib
import typing

from gpu_agent import paths as wrapper
from gpu_agent.model.host import Machine
from gpu_agent.model.inventory import Inventory
from gpu_selftest import results
from gpu_selftest.results import Report
from gpu_selftest.settings import Settings
from machine import files

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


@dataclasses.dataclass(frozen=True)
class Records:
    """The reports of self-tests, and what they prove until something changes.

    Attributes:
        home: the folder of the reports, and of the file that says what isolation was proven for.
        tested: a file that exists since the first verdict on all GPUs after boot, which empties
            its folder, or after the machine was given GPUs again.
    """

    home: pathlib.Path = results.HOME
    tested: pathlib.Path = TESTED

    def save(self, report: Report) -> None:
        """Keep a report; see results.save."""
        results.save(report, self.home)

    def report(self, run: str = "") -> Report | None:
        """Return the report of a run, by default of the last one; see results.read."""
        return results.read(run, self.home)

    def keep(self, subject: str) -> bool:
        """Note that all GPUs passed isolation as they are now. Return True if that is new."""
        files.ensure_directory(self.home)
        return files.ensure_file(self._proven, subject)

    def kept(self) -> str:
        """Return the subject with which all GPUs last passed isolation; empty without one."""
        if not self._proven.exists():
            return ""
        return self._proven.read_text(encoding="utf-8", errors="replace")

    def note_verdict(self) -> bool:
        """Note a verdict on all GPUs since the machine started. Return True if it is the first."""
        files.ensure_directory(self.tested.parent)
        return files.ensure_file(self.tested, "")

    def forget_verdict(self) -> bool:
        """Require a new test of GPUs that come back. Return True if that is new."""
        return files.ensure_absent(self.tested)

    def is_tested(self) -> bool:
        """Return whether there was a verdict on all GPUs since boot, or since GPUs were given.

        If the self-test at boot was killed, crashed or never started, there was none.
        """
        return self.tested.exists()

    @property
    def _proven(self) -> pathlib.Path:
        return self.home / "proven"
