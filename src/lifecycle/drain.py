# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The worker without builds: drained before what would end them, or paused by the operator.

Both are states on the machine that hooks look at, so that none of them waits: the hook that begins
has the worker land (SIGUSR1) and ends. Once the worker's process has ended, or the time is over, a
service of systemd's runs the charm, and that hook goes on with what the drain was for.
"""

import collections.abc
import dataclasses
import logging
import pathlib
import sys
import time
import typing

from ci.concourse.api import build_info as handles
from ci.concourse.api import build_info_program as names
from ci.concourse.restart import running_steps as steps
from ci.concourse.worker import worker
from gpu_agent.reporting.joblog import build_names
from gpu_agent.reporting.notifier import device_watch as watch
from lifecycle import drain_record
from machine import process
from machine import systemd as services
from machine import systemd_transient as transient
from plan import draining
from plan.draining import Drain, Pause, Purpose, Rest, Rules
from plan.state import UnitState

WAKER: typing.Final = "gpu-ci-drain.service"

# In seconds: until units that ask for their turn at once have seen each other's word, and until
# the worker's remaining steps are checked again.
_ASKED: typing.Final = 20
_AGAIN: typing.Final = 30
# The first branch waits for the worker's end or the time's, the second for the time alone. An
# agent that is away for some minutes, as for its own upgrade, is asked again.
_WAKER: typing.Final = """
if [ "$1" -gt 0 ]; then /usr/bin/timeout "$2" /usr/bin/tail --pid="$1" -f /dev/null
else /usr/bin/sleep "$2"; fi
shift 2
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  "$@" && exit
  /usr/bin/sleep 15
done
"""
_CODE: typing.Final = pathlib.Path(__file__).resolve().parents[2]
_PATH: typing.Final = f"{_CODE}/lib:{_CODE}/src"
_NAMES: typing.Final = (sys.executable, "-B", "-S", "-m", "ci.concourse.api.build_info_program")

Progress = collections.abc.Callable[[str], None]
_log = logging.getLogger(__name__)


class DrainError(Exception):
    """The worker cannot be paused or resumed. The text says why."""


def rules(state: UnitState) -> Rules:
    """Return the rules for a drain of this unit."""
    return Rules(state.unit, state.options.worker.drain_timeout, state.elsewhere.turns)


def ready(purpose: Purpose, then: str, rules: Rules, progress: Progress) -> bool:
    """Drain the worker for a purpose: the first call begins, later calls continue.

    If it returns True, the caller acts at once and then calls `finish`.

    Args:
        purpose: what for.
        then: the text for it, such as `Concourse 8.3.0`.
        rules: how long builds are waited for, and for which units.
        progress: reports what the drain waits for.

    Returns:
        Whether the drain is over: no build is left, or the time is. If not, a later hook asks
        again, and this call has arranged for that hook.

    Raises:
        OSError: the drain cannot be noted.
    """
    found, now = drain_record.drain(), drain_record.now()
    if found is None:
        if rules.timeout == 0 or is_free():
            return True
        found = Drain(purpose, then, rules.unit, drain_record.boot(), rules.timeout, now)
    elif found.purpose is not purpose:
        return False
    found = dataclasses.replace(found, then=then, timeout=rules.timeout)
    if not found.since:
        found = _take_turn(found, rules, now)
    drain_record.write(found)
    left = found.since + found.timeout - now
    if found.since and (left <= 0 or is_free()):
        _say_who_is_left(found, progress)
        return True
    pid = worker.land() if found.since else 0
    _wake(rules.unit, pid, left if pid else _AGAIN)
    progress(draining.text(_rest(None, found)))
    return False


def go_on(purpose: Purpose, progress: Progress) -> bool | None:
    """Continue a drain that has begun, by its own rules; None if none has begun.

    Raises:
        OSError: the drain cannot be noted.
    """
    found = drain_record.drain()
    if found is None or found.purpose is not purpose:
        return None
    return ready(purpose, found.then, Rules(found.unit, found.timeout), progress)


def is_free() -> bool:
    """Whether the worker has no build and gets none, as it has landed or has lost its web."""
    return not (_steps() or (worker.main_pid() and _has_web()))


def finish(purpose: Purpose) -> bool:
    """End a drain whose purpose is done. Return True if the worker was drained.

    A worker that has not landed in time is stopped, so that it starts with the change.
    """
    return _end(purpose, worker.halt)


def cancel(purpose: Purpose) -> bool:
    """Give up a drain: the worker takes steps again. Return True if it was drained."""
    paused = drain_record.pause() is not None
    return _end(purpose, worker.land if paused else lambda: worker.take_up(_log.info))


def pause(unit: str, reason: str) -> dict[str, str]:
    """Keep new steps from the worker until `resume`. Running steps end by themselves.

    Args:
        unit: Juju's name of this unit.
        reason: why, one line.

    Returns:
        The results of the action.

    Raises:
        DrainError: without a worker, with an empty reason, or if the pause cannot be noted.
    """
    _check_worker(unit)
    if not reason.strip() or not reason.isprintable():
        raise DrainError("reason must be one line of printable text")
    try:
        earlier = drain_record.pause()
        drain_record.write_pause(Pause(reason.strip()))
    except OSError as error:
        raise DrainError(f"the pause cannot be saved ({error}); nothing was changed") from error
    if pid := worker.land():
        _wake(unit, pid, 0)  # the last build's end is to be said soon
    told = {"state": draining.text(_rest(Pause(reason.strip()), None))}
    if earlier:
        told["was"] = f"paused already: {earlier.reason}"
    return told | {"next": f"juju run {unit} resume"}


def resume(unit: str) -> dict[str, str]:
    """Let the worker take steps again, after a pause or a drain that an operator began.

    Returns:
        The results of the action.

    Raises:
        DrainError: without a worker, or if it is not paused.
    """
    _check_worker(unit)
    paused, found = drain_record.pause(), drain_record.drain()
    by_operator = found is not None and found.purpose is Purpose.DRIVER
    if paused is None and not by_operator:
        why = f": {draining.text(_rest(None, found))}, which ends by itself" if found else ""
        raise DrainError(f"This worker is not paused{why}")
    if by_operator:
        drain_record.remove_pause()
        cancel(Purpose.DRIVER)
        return {"state": "the driver upgrade is cancelled, and the worker takes steps again"}
    if found and found.since:
        drain_record.remove_pause()
        return {"state": draining.text(_rest(None, found))}
    _let_sleep()
    worker.take_up(_log.info)
    # No earlier: if this is killed, the worker is still paused, and resume can be asked for again.
    drain_record.remove_pause()
    return {"state": "the worker takes steps again"}


def _check_worker(unit: str) -> None:
    if not worker.name():
        raise DrainError(f"{unit} runs no worker: ask a unit of the worker application")


def keeps_down() -> bool:
    """Whether the worker must not be started or changed now. A running one is landed again.

    It may be running since its web was away while it landed. A drain that has exceeded its time by
    far, without anything continuing it, is given up.
    """
    found = drain_record.drain()
    if found and found.since and drain_record.now() > found.since + found.timeout + draining.WORK:
        cancel(found.purpose)
    if held := rests():
        worker.land()
    return held


def rests() -> bool:
    """Whether the worker takes no steps now: it is paused, or a drain has begun.

    Raises:
        OSError: the records cannot be read.
    """
    found = drain_record.drain()
    return drain_record.pause() is not None or (found is not None and found.since > 0)


def word(plan: object) -> str:
    """Return the word for other units: whether this one drains, or waits for its turn.

    If no worker is planned any more, drain and pause are forgotten.
    """
    found = drain_record.drain()
    if plan is None and (found or drain_record.pause()):
        forget()
        return ""
    return found.word if found else ""


def look() -> Rest | None:
    """Return the drain or pause for status; None if the worker is neither drained nor paused."""
    paused, found = drain_record.pause(), drain_record.drain()
    return _rest(paused, found) if paused or found else None


def forget() -> bool:
    """Forget drain and pause, as when the worker is removed. Return True if there was one."""
    _let_sleep()
    removed = drain_record.remove()
    return drain_record.remove_pause() or removed


def _take_turn(found: Drain, rules: Rules, now: float) -> Drain:
    """Begin the drain if no other unit has its turn before."""
    found = draining.next_turn(found, rules, now)
    # Units that ask at the same time must see each other's word before one of them begins.
    if found.turn or (rules.peers and now - found.asked < _ASKED):
        return found
    return dataclasses.replace(found, since=now)


def _has_web() -> bool:
    try:
        return worker.is_connected()
    except OSError:
        return True


def _end(purpose: Purpose, bring: collections.abc.Callable[[], object]) -> bool:
    found = drain_record.drain()
    if found is None or found.purpose is not purpose:
        return False
    if found.since:
        bring()
    _let_sleep()
    return drain_record.remove()


def _wake(unit: str, pid: int, seconds: float) -> None:
    """Let the charm run when a process has ended, at the latest after so many seconds.

    Args:
        unit: Juju's name of this unit.
        pid: the process; 0: none.
        seconds: 0: however long it takes.
    """
    _let_sleep()
    limit = "0" if not seconds else f"{seconds + 1:.0f}"
    argv = ["/bin/sh", "-c", _WAKER, "sh", str(pid), limit, *watch.command(unit)]
    description = f"Runs the charm once the worker has no build (asked at {time.time():.3f})"
    try:
        transient.start(WAKER, argv, description=description, properties={"TimeoutStopSec": "5"})
    except process.CommandError as error:
        _log.warning("%s: the drain goes on at Juju's next event", error)


def _let_sleep() -> None:
    services.ensure_stopped(WAKER)


def _say_who_is_left(found: Drain, progress: Progress) -> None:
    rest = _rest(None, found)
    if rest.builds or rest.steps:
        who = draining.few((*rest.builds, *(f"step {one}" for one in rest.steps)))
        waited = draining.duration(found.timeout)
        _log.warning(
            "%s goes on after %s and interrupts these builds: %s", found.then, waited, who
        )
        progress(f"{found.then} goes on after {waited} and interrupts these builds: {who}")


def _rest(paused: Pause | None, found: Drain | None) -> Rest:
    left = _steps()
    whose = _names(left)
    builds = dict.fromkeys(whose.values())
    unknown = tuple(one for one in left if one not in whose)
    return Rest(paused, found, drain_record.now(), bool(worker.main_pid()), (*builds,), unknown)


def _steps() -> tuple[str, ...]:
    """Return the containers in which a step runs; one pseudo-name if they cannot be read."""
    try:
        return steps.running()
    except OSError:
        return ("that cannot be read",)


def _names(found: collections.abc.Sequence[str]) -> dict[str, str]:
    """Return the builds of these steps, if web is on this machine and answers."""
    if not found or not handles.SETTINGS.exists():
        return {}
    try:
        done = process.run([*_NAMES, *found], timeout=names.SECONDS + 5, env={"PYTHONPATH": _PATH})
        known = build_names.read(done.stdout)
    except (process.CommandError, build_names.AnswerError) as error:
        _log.info("the names of builds are not known: %s", error)
        return {}
    return {
        step: "/".join(filter(None, (one.team, one.pipeline, one.job))) + f" #{one.build}"
        for step, one in known.items()
    }
