# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Carry out decisions: write records of quarantined GPUs, requests of tests and the memory.

A write that fails is tried again at each turn. The memory is saved only when nothing is left to
do. So a service that is killed at any point makes the remaining decisions again.
"""

import collections.abc
import json
import logging
import pathlib
import typing

from gpu_agent.availability import quarantine, retests
from gpu_agent.health import settings
from gpu_agent.model.decisions import BringBack, Decision, Suspect, TakeOut, Tell, Test
from gpu_agent.model.observations import Moment
from machine import files

MEMORY: typing.Final = "memory.json"
"""File in settings.STATE: the judge's memory."""
SUSPECT: typing.Final = "suspect"
"""File in settings.RUN: the cause for which the circuit breaker tripped; absent: none."""

# Longest time between two saves in seconds, even without changes: the judge recognises a reboot
# by the saved times.
_SAVED: typing.Final = 300.0

_log = logging.getLogger(__name__)

_Due = TakeOut | BringBack | Test | Suspect


class Remembers(typing.Protocol):
    """The judge's memory."""

    def as_json(self) -> str:
        """The memory as JSON; its `at` and `wall` are the time of the last turn."""
        ...


class Clerk:
    """A part of the GPU health service; it comes first, since the other parts only report."""

    def __init__(
        self,
        mode: str,
        memory: collections.abc.Callable[[], Remembers],
        changed: collections.abc.Callable[[], None],
        *,
        state: pathlib.Path = settings.STATE,
        run: pathlib.Path = settings.RUN,
    ) -> None:
        """Start with nothing to do.

        Args:
            mode: the option gpu-health; `observe` only logs the decisions.
            memory: returns the judge's current memory.
            changed: called when status or tags may have changed.
            state: the folder for the memory; created if needed.
            run: the folder where the charm finds a suspicion; it must exist.
        """
        self._observes = mode == settings.OBSERVE
        self._memory, self._changed, self._state, self._run = memory, changed, state, run
        # A suspicion of an earlier process whose memory was lost is over.
        self._due: list[_Due] = [Suspect("")]
        self._saved, self._saved_at, self._fault = "", float("-inf"), ""

    @property
    def is_waiting(self) -> bool:
        """Whether something is left for a later turn."""
        return bool(self._due)

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        """Carry out these decisions and those left from earlier turns."""
        for decision in decisions:
            if isinstance(decision, Tell):
                continue
            _log.info("%s%s", "would: " if self._observes else "", _words(decision, moment))
            if not self._observes and decision not in self._due:
                self._due.append(decision)
        try:
            self._do()
            self._save(moment.now)
        except OSError as error:
            if str(error) != self._fault:
                _log.error("cannot carry out a decision, trying again: %s", error)
            self._fault = str(error)
        else:
            if self._fault:
                _log.info("all decisions are carried out now")
            self._fault = ""

    def _do(self) -> None:
        """Carry out what is due, for each GPU in the order of the decisions.

        Raises:
            OSError: something is left; the first error.
        """
        left: list[_Due] = []
        first: OSError | None = None
        for decision in self._due:
            subject = _subject(decision)
            if any(_subject(other) == subject for other in left):
                left.append(decision)
                continue
            try:
                if self._write(decision):
                    self._changed()
            except OSError as error:
                first = first or error
                left.append(decision)
        self._due = left
        if first:
            raise first

    def _write(self, decision: _Due) -> bool:
        """Carry out one decision. Return True if status or tags may have changed."""
        if isinstance(decision, TakeOut):
            return quarantine.put(
                decision.uuid,
                decision.reason,
                decision.code or decision.fault,
                decision.level,
                decision.remedy,
                quarantine.HEALTH,
            )
        if isinstance(decision, BringBack):
            return quarantine.lift_seen(decision.uuid, decision.fault)
        if isinstance(decision, Test):
            return retests.ask(decision.uuid, decision.level, decision.why)
        path = self._run / SUSPECT
        if not decision.cause:
            return files.ensure_absent(path)
        return files.ensure_file(path, decision.cause + "\n")

    def _save(self, now: float) -> None:
        """Save the memory if more than its times has changed."""
        text = self._memory().as_json()
        content: dict[str, object] = json.loads(text)
        known = json.dumps({key: content[key] for key in content.keys() - {"at", "wall"}})
        if known == self._saved and now - self._saved_at < _SAVED:
            return
        files.ensure_directory(self._state, mode=0o700)
        files.ensure_file(self._state / MEMORY, text, mode=0o600)
        self._saved, self._saved_at = known, now


def _subject(decision: _Due) -> tuple[str, str]:
    """The subject of a decision; decisions on the same subject are carried out in order."""
    if isinstance(decision, Suspect):
        return "suspect", ""
    return "test" if isinstance(decision, Test) else "record", decision.uuid


def _words(decision: _Due, moment: Moment) -> str:
    if isinstance(decision, Suspect):
        if not decision.cause:
            return "quarantine GPUs again: their common cause is gone"
        return f"quarantine no further GPU: too many failed at once ({decision.cause})"
    indexes = {card.uuid: card.index for card in moment.cards}
    gpu = f"GPU {indexes.get(decision.uuid, '?')} ({decision.uuid})"
    if isinstance(decision, TakeOut):
        until = f"it passes {decision.level}" if decision.level else "an operator returns it"
        return f"quarantine {gpu} until {until}: {decision.reason}"
    if isinstance(decision, BringBack):
        return f"return {gpu}: {decision.fault} is over"
    return f"request a test of {gpu}, level {decision.level}: {decision.why}"
