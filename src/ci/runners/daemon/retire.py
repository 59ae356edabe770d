# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""End runners of this machine in a hook, and have the service forget them."""

import collections.abc
import dataclasses
import os
import time
import typing

from ci.runners import daemon_unit, http, services
from ci.runners.daemon.keeper import Keeper, Outside, boottime
from ci.runners.daemon.leases import Leases
from ci.runners.decide import State
from ci.runners.units import Units
from gpu_runtime.refusal import Refused

# Seconds between two turns; how long the service may take to forget the last runners; and how long
# idle runners may take to end.
_EVERY: typing.Final = 1.0
_LAST: typing.Final = 20.0
_IDLE: typing.Final = 15.0
# And the processes of a killed one, which can hang in a driver.
_STUCK: typing.Final = 60.0


def retire(seconds: float, say: collections.abc.Callable[[str], None]) -> None:
    """Let no runner begin, let jobs end for so many seconds, and end the others.

    Args:
        seconds: how long jobs may take.
        say: reports what is waited for, and the runners that the service still lists.

    Raises:
        OSError, machine.process.CommandError: the machine cannot be read, or systemd refuses
            something.
        ci.runners.daemon_unit.RunnersError: the leases cannot be read.
    """
    try:
        _retire(seconds, say)
    except (ValueError, Refused) as error:
        raise daemon_unit.RunnersError(f"Runners cannot be ended: {error}") from error


def leave() -> None:
    """End the idle runners, so that the service forgets them; jobs go on.

    Raises:
        OSError, machine.process.CommandError: the machine cannot be read, or systemd refuses
            something.
        ci.runners.daemon_unit.RunnersError: the leases cannot be read.
    """
    try:
        keeper = _keeper()
        end = time.monotonic() + _IDLE
        while keeper:
            keeper.turn()
            is_done = all(one.state is State.BUSY for one in keeper.runners.values())
            if is_done or time.monotonic() >= end:
                keeper.forget()
                return
            time.sleep(_EVERY)
    except (ValueError, Refused) as error:
        raise daemon_unit.RunnersError(f"Runners cannot be ended: {error}") from error


def _keeper() -> Keeper | None:
    """Stop the daemon; return what begins no runner, in its place. None: its settings are lost."""
    daemon_unit.stop()
    found = daemon_unit.current()
    if found is None:
        return None
    outside = Outside(
        services.make(found), http.talk, Units(), Leases(), boottime, os.uname().machine
    )
    return Keeper(dataclasses.replace(found, rests=True), outside)


def _retire(seconds: float, say: collections.abc.Callable[[str], None]) -> None:
    keeper = _keeper()
    if keeper is None:
        units = Units()
        for name in units.names():
            units.unit(name).kill()
        return
    end, told = time.monotonic() + seconds, ""
    keeper.turn()
    while keeper.runners and time.monotonic() < end + _STUCK:
        busy = ", ".join(one.unit.unit for one in keeper.runners.values())
        if busy != told:
            told = busy
            say(f"Waiting for runners to end: {busy}")
        if time.monotonic() >= end:
            for runner in keeper.runners.values():
                runner.unit.kill()
        time.sleep(_EVERY)
        keeper.turn()
    if keeper.runners:
        say(f"Their processes cannot be ended: {told}")
    last = time.monotonic() + _LAST
    while (left := keeper.forget()) and time.monotonic() < last:
        time.sleep(_EVERY)
    if left:
        say(f"The service still lists these runners, which are gone: {', '.join(left)}")
