# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A unit without jobs: drained before what would end them, or paused by the operator.

Both are states on the machine that hooks look at, so that none of them waits: the hook that begins
has the CI system take no further job and ends. Once the last job has ended, or the time is over, a
service of systemd's runs the charm, and that hook goes on with what the drain was for.
"""

import collections.abc
import dataclasses
import logging
import typing

from lifecycle.records import Records
from plan import draining
from plan.draining import Drain, Pause, Purpose, Rest, Rules
from plan.state import UnitState

# In seconds: until units that ask for their turn at once have seen each other's word, and until
# the remaining jobs are checked again.
_ASKED: typing.Final = 20
_AGAIN: typing.Final = 30

Progress = collections.abc.Callable[[str], None]
_log = logging.getLogger(__name__)


class DrainError(Exception):
    """The unit cannot be paused or resumed. The text says why."""


class Drainable(typing.Protocol):
    """What takes jobs on this unit.

    A job is a step of a CI system, or a holder of GPUs where there is none.

    Attributes:
        job: what people call what its jobs belong to, such as `build`.
    """

    job: str

    def name(self) -> str:
        """Return its name for people; empty: nothing takes jobs here."""
        ...

    def running(self) -> tuple[str, ...]:
        """Return the ids of the jobs that run now.

        Raises:
            OSError: they cannot be read.
        """
        ...

    def builds(self, ids: collections.abc.Sequence[str]) -> collections.abc.Mapping[str, str]:
        """Return what people call these jobs, as far as it is known."""
        ...

    def pid(self) -> int:
        """Return the process that takes jobs; 0: none runs."""
        ...

    def is_connected(self) -> bool:
        """Whether it can get jobs now.

        Raises:
            OSError: that cannot be seen.
        """
        ...

    def land(self) -> int:
        """Let it take no further job; running jobs go on. Return the pid that ends with them."""
        ...

    def halt(self) -> bool:
        """End its process; running jobs go on. Return True if it ran."""
        ...

    def resume(self, say: Progress) -> None:
        """Let it take jobs again; running jobs go on."""
        ...


def rules(state: UnitState) -> Rules:
    """Return the rules for a drain of this unit."""
    return Rules(state.unit, state.options.drain_timeout, state.elsewhere.turns)


def word(records: Records, *, takes_jobs: bool) -> str:
    """Return the word for other units: whether this one drains, or waits for its turn.

    Args:
        records: what the unit keeps on its machine.
        takes_jobs: whether something here is to take jobs; if not, drain and pause are forgotten.
    """
    found = records.drain.drain()
    if not takes_jobs and (found or records.drain.pause()):
        forget(records)
        return ""
    return found.word if found else ""


def forget(records: Records) -> bool:
    """Forget drain and pause, as when the worker is removed. Return True if there was one."""
    removed = forget_drain(records)
    return records.drain.remove_pause() or removed


def forget_drain(records: Records) -> bool:
    """Forget a drain, as when the CI system that it was for is removed. A pause stays.

    Returns:
        Whether there was one.
    """
    records.waker.sleep()
    return records.drain.remove()


class Drainer:
    """Drains and pauses what takes jobs on this unit."""

    def __init__(self, worker: Drainable, records: Records) -> None:
        """Begin with nothing.

        Args:
            worker: what takes jobs.
            records: what the unit keeps on its machine.
        """
        self._worker, self._record = worker, records.drain
        self._clock, self._waker = records.drain.clock, records.waker

    def ready(self, purpose: Purpose, then: str, rules: Rules, progress: Progress) -> bool:
        """Drain the worker for a purpose: the first call begins, later calls continue.

        If it returns True, the caller acts at once and then calls `finish`.

        Args:
            purpose: what for.
            then: the text for it, such as `NVIDIA driver 580-server`.
            rules: how long builds are waited for, and for which units.
            progress: reports what the drain waits for.

        Returns:
            Whether the drain is over: no job is left, or no time. If not, a later hook asks
            again, and this call has arranged for that hook.

        Raises:
            OSError: the drain cannot be noted.
        """
        found, now = self._record.drain(), self._clock.since_boot()
        if found is None:
            if rules.timeout == 0 or self.is_free():
                return True
            found = Drain(purpose, then, rules.unit, self._clock.boot(), rules.timeout, now)
        elif found.purpose is not purpose:
            return False
        found = dataclasses.replace(found, then=then, timeout=rules.timeout)
        if not found.since:
            found = _take_turn(found, rules, now)
        self._record.write(found)
        left = found.since + found.timeout - now
        if found.since and (left <= 0 or self.is_free()):
            self._say_who_is_left(found, progress)
            return True
        pid = self._worker.land() if found.since else 0
        self._waker.wake(rules.unit, pid, left if pid else _AGAIN)
        progress(draining.text(self._rest(None, found)))
        return False

    def go_on(self, purpose: Purpose, progress: Progress) -> bool | None:
        """Continue a drain that has begun, by its own rules; None if none has begun.

        Raises:
            OSError: the drain cannot be noted.
        """
        found = self._record.drain()
        if found is None or found.purpose is not purpose:
            return None
        return self.ready(purpose, found.then, Rules(found.unit, found.timeout), progress)

    def is_free(self) -> bool:
        """Whether no job runs or can come: the worker has landed, or can get no jobs now."""
        return not (self._jobs() or (self._worker.pid() and self._may_get_jobs()))

    def has_jobs(self) -> bool:
        """Whether a job runs now.

        Raises:
            OSError: that cannot be seen.
        """
        return bool(self._worker.running())

    def finish(self, purpose: Purpose) -> bool:
        """End a drain whose purpose is done. Return True if the worker was drained.

        A worker that has not landed in time is stopped, so that it starts with the change.
        """
        return self._end(purpose, self._worker.halt)

    def cancel(self, purpose: Purpose) -> bool:
        """Give up a drain: the worker takes jobs again. Return True if it was drained."""
        paused = self._record.pause() is not None
        return self._end(
            purpose, self._worker.land if paused else lambda: self._worker.resume(_log.info)
        )

    def pause(self, unit: str, reason: str) -> dict[str, str]:
        """Keep new jobs from the worker until `resume`. Running jobs end by themselves.

        Args:
            unit: Juju's name of this unit.
            reason: why, one line.

        Returns:
            The results of the action.

        Raises:
            DrainError: without a worker, with an empty reason, or if the pause cannot be noted.
        """
        self._check_worker(unit)
        if not reason.strip() or not reason.isprintable():
            raise DrainError("reason must be one line of printable text")
        try:
            earlier = self._record.pause()
            self._record.write_pause(Pause(reason.strip()))
        except OSError as error:
            raise DrainError(
                f"the pause cannot be saved ({error}); nothing was changed"
            ) from error
        if pid := self._worker.land():
            self._waker.wake(unit, pid, 0)  # the last build's end is to be said soon
        told = {"state": draining.text(self._rest(Pause(reason.strip()), None))}
        if earlier:
            told["was"] = f"paused already: {earlier.reason}"
        return told | {"next": f"juju run {unit} resume"}

    def resume(self, unit: str) -> dict[str, str]:
        """Let the worker take jobs again, after a pause or a drain that an operator began.

        Returns:
            The results of the action.

        Raises:
            DrainError: without a worker, or if it is not paused.
        """
        self._check_worker(unit)
        paused, found = self._record.pause(), self._record.drain()
        by_operator = found is not None and found.purpose is Purpose.DRIVER
        if paused is None and not by_operator:
            why = (
                f": {draining.text(self._rest(None, found))}, which ends by itself"
                if found
                else ""
            )
            raise DrainError(f"This worker is not paused{why}")
        if by_operator:
            self._record.remove_pause()
            self.cancel(Purpose.DRIVER)
            return {"state": "the driver upgrade is cancelled, and jobs are taken again"}
        if found and found.since:
            self._record.remove_pause()
            return {"state": draining.text(self._rest(None, found))}
        self._waker.sleep()
        self._worker.resume(_log.info)
        # No earlier: if this is killed, the worker is still paused, and resume can be repeated.
        self._record.remove_pause()
        return {"state": "jobs are taken again"}

    def give_up_overdue(self) -> None:
        """Give up a drain that has exceeded its time by far without anything continuing it."""
        found = self._record.drain()
        if found and found.since:
            end = found.since + found.timeout + draining.WORK
            if self._clock.since_boot() > end:
                self.cancel(found.purpose)

    def keeps_down(self) -> bool:
        """Whether the worker must not be started or changed now. A running one is landed again.

        It may be running since its CI system was away while it landed.
        """
        self.give_up_overdue()
        if held := self._record.rests():
            self._worker.land()
        return held

    def look(self) -> Rest | None:
        """Return the drain or pause for status; None if there is neither."""
        paused, found = self._record.pause(), self._record.drain()
        return self._rest(paused, found) if paused or found else None

    def _check_worker(self, unit: str) -> None:
        if not self._worker.name():
            raise DrainError(f"{unit} runs no worker: ask a unit of the worker application")

    def _may_get_jobs(self) -> bool:
        try:
            return self._worker.is_connected()
        except OSError:
            return True

    def _end(self, purpose: Purpose, bring: collections.abc.Callable[[], object]) -> bool:
        found = self._record.drain()
        if found is None or found.purpose is not purpose:
            return False
        if found.since:
            bring()
        self._waker.sleep()
        return self._record.remove()

    def _say_who_is_left(self, found: Drain, progress: Progress) -> None:
        rest = self._rest(None, found)
        if rest.builds or rest.steps:
            who = draining.few((*rest.builds, *(f"step {one}" for one in rest.steps)))
            waited = draining.duration(found.timeout)
            _log.warning(
                "%s goes on after %s and interrupts these %ss: %s",
                *(found.then, waited, self._worker.job, who),
            )
            jobs = f"{self._worker.job}s"
            progress(f"{found.then} goes on after {waited} and interrupts these {jobs}: {who}")

    def _rest(self, paused: Pause | None, found: Drain | None) -> Rest:
        left = self._jobs()
        whose = self._worker.builds(left) if left else dict[str, str]()
        builds = dict.fromkeys(whose.values())
        unknown = tuple(one for one in left if one not in whose)
        return Rest(
            paused,
            found,
            self._clock.since_boot(),
            runs=bool(self._worker.pid()),
            builds=(*builds,),
            steps=unknown,
            job=self._worker.job,
        )

    def _jobs(self) -> tuple[str, ...]:
        """Return the ids of the running jobs; one pseudo-name if they cannot be read."""
        try:
            return self._worker.running()
        except OSError:
            return ("that cannot be read",)


def _take_turn(found: Drain, rules: Rules, now: float) -> Drain:
    """Begin the drain if no other unit has its turn before."""
    found = draining.next_turn(found, rules, now)
    # Units that ask at the same time must see each other's word before one of them begins.
    if found.turn or (rules.peers and now - found.asked < _ASKED):
        return found
    return dataclasses.replace(found, since=now)
