# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Prepares a reboot that the driver or a GPU needs: once, after the worker is drained."""

import collections.abc

from gpu_agent.model import errors
from lifecycle import drain
from lifecycle.records import Records
from plan.draining import Purpose
from plan.gpu_remediation import Step
from plan.state import UnitState

_Progress = collections.abc.Callable[[str], None]


class Reboots:
    """Prepares reboots of the machine."""

    def __init__(self, drainer: drain.Drainer, records: Records, progress: _Progress) -> None:
        """Begin with nothing.

        Args:
            drainer: drains the unit.
            records: what the unit keeps on its machine.
            progress: reports each step.
        """
        self._drainer, self._records, self._say = drainer, records, progress

    def prepare(
        self, state: UnitState, *, may: bool, now: bool, sick: tuple[str, ...] = ()
    ) -> bool:
        """Prepare a reboot of the machine; False if it may not be rebooted now.

        The reboot is for the driver, or for the `sick` GPUs that Remediation.ensure returns. The
        worker is drained first; the first hook after the boot starts it again. A driver gets one
        reboot only. A reboot for a GPU begins only while no build runs, so that it interrupts
        none.

        Args:
            state: what was found.
            may: whether a reboot is wanted and allowed; if not, a prepared one is given up.
            now: whether this hook may ask Juju for it.
            sick: the GPUs that need it.

        Raises:
            gpu_agent.model.errors.UnknownError: the reboot or the drain before it cannot be
                noted.
        """
        self._forget_what_helped(state)
        if not may:
            self._drainer.cancel(Purpose.REBOOT)
        if not (may and now):
            return False
        needy = " and ".join(sick) or f"driver {state.driver.version}"
        if sick and self._has_jobs():
            self._drainer.cancel(Purpose.REBOOT)
            return False
        then, rules = f"reboot for {needy}", drain.rules(state)
        try:
            if not self._drainer.ready(Purpose.REBOOT, then, rules, self._say):
                return False
            self._note(state, sick)
        except OSError as error:
            self._drainer.cancel(Purpose.REBOOT)
            raise errors.unknown(f"the reboot cannot be noted: {error}") from error
        self._say(f"Rebooting: {needy} needs it")
        return True

    def _has_jobs(self) -> bool:
        try:
            return self._drainer.has_jobs()
        except OSError as error:
            raise errors.unknown(f"cannot see whether a build runs: {error}") from error

    def _forget_what_helped(self, state: UnitState) -> None:
        usable = state.inventory and state.inventory.gpus
        if usable and state.rebooted_for and state.rebooted_for == state.driver.loaded:
            self._records.unit.set_rebooted_for("")

    def _note(self, state: UnitState, sick: tuple[str, ...]) -> None:
        """Note the reason of the reboot; without the note the machine would reboot forever."""
        if sick:
            self._records.remediation.begin(Step.REBOOT, sick)
        else:
            self._records.unit.set_rebooted_for(state.driver.version)
