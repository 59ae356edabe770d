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

# In seconds: until units that ask for their turn at once have heard of each other, and until what
# the worker has left is looked at again.
_ASKED: typing.Final = 20
_AGAIN: typing.Final = 30
# The first waits for the worker's end or the time's, the second for the time alone. An agent that
# is away for some minutes, as for its own upgrade, is asked again; later Juju's own events come.
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
    """The worker can't be paused or resumed. The text says why."""


def rules(state: UnitState) -> Rules:
    """How a drain of this unit is to go."""
    return Rules(state.unit, state.options.worker.drain_timeout, state.elsewhere.turns)


def ready(purpose: Purpose, then: str, rules: Rules, progress: Progress) -> bool:
    """Have the worker without builds for something; the first call begins, later ones go on.

    Where it is True, the caller does it at once and says so by `finish`.

    Args:
        purpose: what for.
        then: that in words, such as `Concourse 8.3.0`.
        rules: how long builds are waited for, and for which units.
        progress: told what is waited for.

    Returns:
        Whether it is time: no build is left, or they took too long. If not, a later hook asks
        again, which this has seen to.

    Raises:
        OSError: it can't be noted.
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
    progress(draining.words(_rest(None, found)))
    return False


def go_on(purpose: Purpose, progress: Progress) -> bool | None:
    """The same for a drain that has begun, by its own rules; None if none has.

    Raises:
        OSError: it can't be noted.
    """
    found = drain_record.drain()
    if found is None or found.purpose is not purpose:
        return None
    return ready(purpose, found.then, Rules(found.unit, found.timeout), progress)


def is_free() -> bool:
    """Whether the worker has no build and gets none: it has landed, or there is no web."""
    return not (_steps() or (worker.main_pid() and _has_web()))


def finish(purpose: Purpose) -> bool:
    """What the worker was drained for is done: it may be started. Return True if it was drained.

    One that has not landed in time is stopped, so that it comes up with what was done.
    """
    return _end(purpose, worker.halt)


def cancel(purpose: Purpose) -> bool:
    """It is wanted no more: the worker runs on as it was. Return True if it was drained."""
    paused = drain_record.pause() is not None
    return _end(purpose, worker.land if paused else lambda: worker.take_up(_log.info))


def pause(unit: str, reason: str) -> dict[str, str]:
    """Let no step begin on the worker until `resume`; those that run end.

    Args:
        unit: Juju's name of this unit.
        reason: why, one line.

    Returns:
        What there is to tell the operator.

    Raises:
        DrainError: there is no worker, the reason is none, or it can't be noted.
    """
    _check_worker(unit)
    if not reason.strip() or not reason.isprintable():
        raise DrainError("reason must be one line of printable text")
    try:
        earlier = drain_record.pause()
        drain_record.write_pause(Pause(reason.strip()))
    except OSError as error:
        raise DrainError(f"the pause can't be noted: {error}: nothing was changed") from error
    if pid := worker.land():
        _wake(unit, pid, 0)  # the last build's end is to be said soon
    told = {"state": draining.words(_rest(Pause(reason.strip()), None))}
    if earlier:
        told["before"] = f"it was paused already: {earlier.reason}"
    return told | {"next": f"juju run {unit} resume"}


def resume(unit: str) -> dict[str, str]:
    """Have the worker take steps again, after a pause or a drain that an operator began.

    Returns:
        What there is to tell the operator.

    Raises:
        DrainError: there is no worker, or it is not paused.
    """
    _check_worker(unit)
    paused, found = drain_record.pause(), drain_record.drain()
    by_operator = found is not None and found.purpose is Purpose.DRIVER
    if paused is None and not by_operator:
        why = f": {draining.words(_rest(None, found))}, which ends by itself" if found else ""
        raise DrainError(f"This worker is not paused{why}")
    if by_operator:
        drain_record.remove_pause()
        cancel(Purpose.DRIVER)
        return {"state": "the driver's upgrade is given up, and the worker takes steps again"}
    if found and found.since:
        drain_record.remove_pause()
        return {"state": draining.words(_rest(None, found))}
    _let_sleep()
    worker.take_up(_log.info)
    # No earlier: if this is killed, the worker is still paused, and resume can be asked for again.
    drain_record.remove_pause()
    return {"state": "the worker takes steps again"}


def _check_worker(unit: str) -> None:
    if not worker.name():
        raise DrainError(f"{unit} runs no worker: ask a unit of the worker application")


def keeps_down() -> bool:
    """Whether the worker must not be started or changed now; one that runs is told to land again.

    It would run on after a web that was away while it landed. A drain that nobody goes on with,
    long after its time, is given up: its purpose is gone.
    """
    found = drain_record.drain()
    if found and found.since and drain_record.now() > found.since + found.timeout + draining.WORK:
        cancel(found.purpose)
    if held := rests():
        worker.land()
    return held


def rests() -> bool:
    """Whether the worker takes no step now: it is paused, or a drain of it has begun.

    Raises:
        OSError: that can't be told.
    """
    found = drain_record.drain()
    return drain_record.pause() is not None or (found is not None and found.since > 0)


def word(plan: object) -> str:
    """What other units are told: whether this one has its turn to drain, or waits for it.

    Where no worker is planned any more, there is none to be drained or paused: both are forgotten.
    """
    found = drain_record.drain()
    if plan is None and (found or drain_record.pause()):
        forget()
        return ""
    return found.word if found else ""


def look() -> Rest | None:
    """What there is to say of it; None if the worker is neither drained nor paused."""
    paused, found = drain_record.pause(), drain_record.drain()
    return _rest(paused, found) if paused or found else None


def forget() -> bool:
    """Forget all of it, as where the worker goes. Return True if there was anything."""
    _let_sleep()
    removed = drain_record.remove()
    return drain_record.remove_pause() or removed


def _take_turn(found: Drain, rules: Rules, now: float) -> Drain:
    """Begin, if no other unit is before this one."""
    found = draining.next_turn(found, rules, now)
    # Those that ask at the same time have to hear of each other before one of them begins.
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
    """Have the charm run once a process has ended, at the latest after so many seconds.

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
        _log.warning("%s goes on after %s without these builds: %s", found.then, waited, who)
        progress(f"{found.then} goes on after {waited} without these builds: {who}")


def _rest(paused: Pause | None, found: Drain | None) -> Rest:
    left = _steps()
    whose = _names(left)
    builds = dict.fromkeys(whose.values())
    unknown = tuple(one for one in left if one not in whose)
    return Rest(paused, found, drain_record.now(), bool(worker.main_pid()), (*builds,), unknown)


def _steps() -> tuple[str, ...]:
    """The containers in which a step runs; where that can't be told, somebody's may."""
    try:
        return steps.running()
    except OSError:
        return ("that can't be looked at",)


def _names(found: collections.abc.Sequence[str]) -> dict[str, str]:
    """Which builds these steps are of, where web is on this machine and says so."""
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
