# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""End all runners of this machine in a hook: first jobs have some time to end."""

import collections.abc
import dataclasses
import os
import time
import typing

from ci.runners import daemon_unit, http, services
from ci.runners.daemon.keeper import Keeper, Outside, boottime
from ci.runners.daemon.leases import Leases
from ci.runners.units import Units
from gpu_runtime.refusal import Refused

# Seconds between two turns; and how long the service may take to forget the last runners.
_EVERY: typing.Final = 1.0
_LAST: typing.Final = 20.0


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


def _retire(seconds: float, say: collections.abc.Callable[[str], None]) -> None:
    daemon_unit.stop()
    units, found = Units(), daemon_unit.current()
    if found is None:
        for name in units.names():
            units.unit(name).kill()
        return
    outside = Outside(
        services.make(found), http.talk, units, Leases(), boottime, os.uname().machine
    )
    keeper = Keeper(dataclasses.replace(found, rests=True), outside)
    end, told = time.monotonic() + seconds, ""
    keeper.turn()
    while keeper.runners:
        busy = ", ".join(one.unit.unit for one in keeper.runners.values())
        if busy != told:
            told = busy
            say(f"Waiting for runners to end: {busy}")
        if time.monotonic() >= end:
            for runner in keeper.runners.values():
                runner.unit.kill()
        time.sleep(_EVERY)
        keeper.turn()
    last = time.monotonic() + _LAST
    while (left := keeper.forget()) and time.monotonic() < last:
        time.sleep(_EVERY)
    if left:
        say(f"The service still lists these runners, which are gone: {', '.join(left)}")
