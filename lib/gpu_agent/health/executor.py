# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Does what was decided: records that take GPUs out of use, tests that are asked for, the memory.

What can't be written stays to be done, and is tried again at each turn; what was remembered is
saved only when nothing of it is left undone. Killed at any point, the watch decides the rest anew.
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
"""In settings.STATE: what the judge goes on with."""
SUSPECT: typing.Final = "suspect"
"""In settings.RUN: the cause that several GPUs went out for; not there: none."""

# However little the judge has learnt, seconds between two savings: it must know a reboot when it
# sees one.
_SAVED: typing.Final = 300.0

_log = logging.getLogger(__name__)

_Due = TakeOut | BringBack | Test | Suspect


class Remembers(typing.Protocol):
    """The judge's memory."""

    def as_json(self) -> str:
        """All of it; its `at` and `wall` are the time of the last turn."""
        ...


class Clerk:
    """A part of the watch; the first, since the others only tell."""

    def __init__(
        self,
        mode: str,
        memory: collections.abc.Callable[[], Remembers],
        changed: collections.abc.Callable[[], None],
        *,
        state: pathlib.Path = settings.STATE,
        run: pathlib.Path = settings.RUN,
    ) -> None:
        """Begin with nothing to do.

        Args:
            mode: the option gpu-health: where it is `observe`, all is only said.
            memory: what the judge remembers now.
            changed: called when status or tags may have to be others.
            state: where the memory is saved; made here.
            run: what tells the charm of a suspicion; it must exist.
        """
        self._observes = mode == settings.OBSERVE
        self._memory, self._changed, self._state, self._run = memory, changed, state, run
        # What an earlier process suspected is over, where its memory was lost.
        self._due: list[_Due] = [Suspect("")]
        self._saved, self._saved_at, self._fault = "", float("-inf"), ""

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything to do at a later turn."""
        return bool(self._due)

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        """Do what was decided, and what is left of what was decided before."""
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
                _log.error("what was decided can't be written, and is tried again: %s", error)
            self._fault = str(error)
        else:
            if self._fault:
                _log.info("what was decided is written now")
            self._fault = ""

    def _do(self) -> None:
        """Do all that can be done; of one GPU in the order in which it was decided.

        Raises:
            OSError: something is left, which is the first error of it.
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
        """Do one thing. Return True if status or tags may have to be others."""
        if isinstance(decision, TakeOut):
            return quarantine.put(
                decision.uuid,
                decision.reason,
                decision.fault,
                decision.level,
                decision.remedy,
                quarantine.WATCH,
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
        """Save the memory where it has changed in more than the time."""
        text = self._memory().as_json()
        content: dict[str, object] = json.loads(text)
        known = json.dumps({key: content[key] for key in content.keys() - {"at", "wall"}})
        if known == self._saved and now - self._saved_at < _SAVED:
            return
        files.ensure_directory(self._state, mode=0o700)
        files.ensure_file(self._state / MEMORY, text, mode=0o600)
        self._saved, self._saved_at = known, now


def _subject(decision: _Due) -> tuple[str, str]:
    """What a decision is about: those about the same must be done in order."""
    if isinstance(decision, Suspect):
        return "suspect", ""
    return "test" if isinstance(decision, Test) else "record", decision.uuid


def _words(decision: _Due, moment: Moment) -> str:
    if isinstance(decision, Suspect):
        if not decision.cause:
            return "GPUs are believed one by one again: what they had in common is over"
        return f"take no further GPU out: too many went out at once, {decision.cause}"
    indexes = {card.uuid: card.index for card in moment.cards}
    gpu = f"GPU {indexes.get(decision.uuid, '?')} ({decision.uuid})"
    if isinstance(decision, TakeOut):
        back = f"until its self-test passes {decision.level}" if decision.level else ""
        return f"take {gpu} out of use {back or 'until the operator says so'}: {decision.reason}"
    if isinstance(decision, BringBack):
        return f"bring {gpu} back: {decision.fault} is over"
    return f"have {gpu} tested, level {decision.level}: {decision.why}"
