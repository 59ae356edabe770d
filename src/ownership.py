# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""This unit and the machine: taken at its first hook, cleared after a unit that is gone, given up.

On a machine that is another unit's nothing is changed.
"""

import collections.abc
import typing

from ci.system import CiSystem, Remains
from effects import Say
from lifecycle import drain
from lifecycle.records import Records
from options.table import drain_timeout
from options.values import OptionError
from outside import Outside
from plan.unit_id import UnitId

Systems = collections.abc.Collection[CiSystem]

# How long the jobs of a unit may take to end, in seconds: if the unit or its CI system is removed,
# and if the unit is gone already.
PARTING: typing.Final = 300
_FAREWELL: typing.Final = 30
# In this order: a part goes before the parts that its programs run from. The first one is there if
# gpu-ci-agent was deleted by hand; its settings are in the runtime's folder.
_AGENT: typing.Final = (
    *("agent without Juju", "health watch", "gpu-run", "self-test", "engines", "runtime"),
    "receipts",
)


def take(
    unit: UnitId, mode: str, outside: Outside, systems: Systems, say: Say, *, new: bool
) -> None:
    """Have the machine for this unit; what a unit that is gone has left is cleared away first.

    Args:
        unit: this one.
        mode: its deployment-mode, known or not.
        outside: the machine.
        systems: all CI systems, since the unit that is gone may have had any.
        say: reports a step that takes long.
        new: whether it has not been set up before.

    Raises:
        lifecycle.machine_claim.TakenError: if another unit has it.
    """
    records, found = outside.records, None
    if not records.claim.read():
        owners = (system.former(unit, mode, new=new) for system in systems)
        found = next(filter(None, owners), None)
    former = records.claim.take(unit, found)
    if former:
        say(f"Clearing away what {former.name} has left on this machine")
        for system in systems:
            system.retire(_FAREWELL, say)
            system.set_data_aside(str(former))
        _remove(systems, Remains.SERVICES)
        for part in _AGENT:
            outside.effects.remove[part]()
    if former or new:
        records.unit.forget()
        drain.forget(records)
        records.remediation.forget()
    if former:
        records.claim.settle(unit)


def leave(
    unit: UnitId,
    options: collections.abc.Mapping[str, object],
    records: Records,
    systems: Systems,
    say: Say,
) -> None:
    """Note that this unit's removal has begun, and retire what takes its jobs.

    Juju puts off no removal, and other units on the machine wait for this hook, so jobs have
    five minutes at most. An operator who gives them longer pauses the unit before.

    Raises:
        OSError: the note can't be written, or an older one can't be removed. What takes jobs has
            been retired all the same, if this unit has the machine.
        machine.process.CommandError: systemd refuses something.
    """
    if not records.claim.has(unit):
        return
    try:
        records.unit.set_leaving()
    finally:
        retire(options, systems, say)
        drain.forget(records)


def retire(options: collections.abc.Mapping[str, object], systems: Systems, say: Say) -> None:
    """Let the jobs of these CI systems end, and take the systems out of service.

    Args:
        options: Juju's config; jobs have as long as drain-timeout, and at most five minutes.
        systems: those that go.
        say: reports what is waited for.

    Raises:
        machine.process.CommandError: systemd refuses something.
    """
    try:
        patience = min(drain_timeout(options), PARTING)
    except OptionError:
        patience = PARTING
    for system in systems:
        system.retire(patience, say)


def remove_services(system: CiSystem) -> None:
    """Remove a CI system from a unit that has another one; its data and its programs stay."""
    _remove([system], Remains.SERVICES)


def remove_programs(system: CiSystem) -> None:
    """Remove the programs of a CI system whose services have been removed."""
    _remove([system], Remains.PROGRAMS)


def give_up(unit: UnitId, outside: Outside, systems: Systems) -> None:
    """Remove all that this unit has set up, its data too, and let others have the machine."""
    if not outside.records.claim.has(unit):
        return
    _remove(systems, Remains.SERVICES)
    _remove(systems, Remains.DATA)
    for part in _AGENT:
        outside.effects.remove[part]()
    _remove(systems, Remains.PROGRAMS)
    outside.effects.remove["host software"]()
    outside.records.claim.give_up()


def _remove(systems: Systems, what: Remains) -> None:
    for system in systems:
        for remove in system.removals.get(what, ()):
            remove()
