# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which unit of this charm has this machine: a record, and who may take it over.

Two units on one machine would undo each other's work at every event.
"""

import dataclasses
import json
import pathlib
import typing

from gpu_agent import paths
from machine import files, locks
from plan.unit_id import UnitId

RECORD: typing.Final = paths.STATE / "owner.json"


class TakenError(Exception):
    """The machine is another unit's, or nobody's yet. The text says whose, and the next step."""


@dataclasses.dataclass(frozen=True)
class Record:
    """Who has the machine.

    Attributes:
        owner: the unit.
        former: the one before, which is gone and whose things are not yet cleared away.
    """

    owner: UnitId
    former: UnitId | None = None


def read() -> Record | None:
    """The record of this machine; None if no unit has it."""
    text = files.read_text(RECORD)
    if text is None:
        return None
    found = json.loads(text)
    former = found["former"]
    return Record(UnitId(**found["owner"]), UnitId(**former) if former else None)


def has(unit: UnitId) -> bool:
    """Whether the machine is this unit's."""
    record = read()
    return record is not None and record.owner.is_same(unit)


def check(unit: UnitId) -> None:
    """Nothing if the machine is this unit's.

    Raises:
        TakenError: if it is not.
    """
    record = read()
    if record is None:
        raise TakenError(f"This machine is not {unit.name}'s yet: wait for its next hook")
    if not record.owner.is_same(unit):
        raise TakenError(_taken(unit, record.owner))


def claim(unit: UnitId, found: UnitId | None = None) -> UnitId | None:
    """Have the machine for this unit, unless another that is not gone has it.

    Of two that come at once, one has it.

    Args:
        unit: who wants it.
        found: whose things are here where there is no record, as an earlier revision of the charm
            left them; None: nobody's.

    Returns:
        The unit before, which is gone and whose things must be cleared away before `settle`.

    Raises:
        TakenError: if another has it.
        machine.locks.BusyError: another process decides on it for too long.
    """
    files.ensure_directory(paths.STATE)
    with locks.alone_in(paths.STATE):
        record = read() or (Record(found) if found else Record(unit))
        owner, former = record.owner, record.former
        if not owner.is_same(unit):
            if _lives(owner, unit):
                raise TakenError(_taken(unit, owner))
            former = owner
        _write(Record(unit, former))
    return former


def settle(unit: UnitId) -> None:
    """Nothing of the unit before is left."""
    _write(Record(unit))


def give_up() -> None:
    """Forget all that is remembered on this machine, and last whose it is.

    Raises:
        machine.locks.BusyError: another process decides on it for too long.
    """
    if not paths.STATE.is_dir():
        return
    with locks.alone_in(paths.STATE) as lock:
        for path in paths.STATE.iterdir():
            if path not in (RECORD, lock):
                files.ensure_absent(path)
        files.ensure_absent(RECORD)
        files.ensure_absent(lock)
        files.remove_if_empty(paths.STATE)


def _write(record: Record) -> None:
    files.ensure_file(RECORD, json.dumps(dataclasses.asdict(record), indent=1) + "\n")


def _lives(owner: UnitId, unit: UnitId) -> bool:
    # A folder has one unit's agent: where it is this one's, the owner of another model is gone.
    return owner.agent not in ("", unit.agent) and pathlib.Path(owner.agent).exists()


def _taken(unit: UnitId, owner: UnitId) -> str:
    return (
        f"This machine belongs to {owner}: juju remove-unit {unit.name}, or {owner.name}. "
        f"If Juju has no {owner.name} any more, remove {owner.agent} on the machine"
    )
