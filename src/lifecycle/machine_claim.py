# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Records which unit of this charm has this machine.

Two units on one machine would undo each other's work at every event.
"""

import dataclasses
import json
import pathlib
import typing

from machine import files, locks
from plan import messages
from plan.messages import Level, Line
from plan.unit_id import UnitId

_RECORD: typing.Final = "owner.json"


class TakenError(Exception):
    """The machine belongs to another owner, or to none yet. The text has owner and next step.

    Attributes:
        line: the same as a line of the unit's status.
    """

    def __init__(self, line: Line) -> None:
        super().__init__(line.text)
        self.line = line


@dataclasses.dataclass(frozen=True)
class Record:
    """The owner of the machine.

    Attributes:
        owner: the unit.
        former: the previous unit, which is gone, until its files and services are removed.
    """

    owner: UnitId
    former: UnitId | None = None


@dataclasses.dataclass(frozen=True)
class Claim:
    """The claim of a unit on the machine.

    Attributes:
        folder: the folder of the record.
    """

    folder: pathlib.Path

    @property
    def path(self) -> pathlib.Path:
        """The file of the record."""
        return self.folder / _RECORD

    def read(self) -> Record | None:
        """The record of this machine; None if no unit has it."""
        text = files.read_text(self.path)
        if text is None:
            return None
        found = json.loads(text)
        former = found["former"]
        return Record(UnitId(**found["owner"]), UnitId(**former) if former else None)

    def has(self, unit: UnitId) -> bool:
        """Whether the machine is this unit's."""
        record = self.read()
        return record is not None and record.owner.is_same(unit)

    def check(self, unit: UnitId) -> None:
        """Check that the machine belongs to this unit.

        Raises:
            TakenError: if it does not.
        """
        record = self.read()
        if record is None:
            text = f"This machine does not belong to {unit.name} yet: wait for its next hook"
            raise TakenError(Line(Level.WAITING, "machine-taken", text))
        if not record.owner.is_same(unit):
            raise TakenError(_taken(unit, record.owner))

    def take(self, unit: UnitId, found: UnitId | None = None) -> UnitId | None:
        """Claim the machine for this unit, unless an existing unit has it.

        If two units claim at once, one gets it.

        Args:
            unit: the unit that claims it.
            found: the unit whose files are here without a record, as earlier revisions of the
                charm left them; None: no unit's.

        Returns:
            The previous unit, which is gone, and whose files must be removed before `settle`.

        Raises:
            TakenError: if another has it.
            machine.locks.BusyError: another process decides on it for too long.
        """
        files.ensure_directory(self.folder)
        with locks.alone_in(self.folder):
            record = self.read() or (Record(found) if found else Record(unit))
            owner, former = record.owner, record.former
            if not owner.is_same(unit):
                if _lives(owner, unit):
                    raise TakenError(_taken(unit, owner))
                former = owner
            self._write(Record(unit, former))
        return former

    def settle(self, unit: UnitId) -> None:
        """Note that nothing of the previous unit is left."""
        self._write(Record(unit))

    def give_up(self) -> None:
        """Remove all state from this machine, the owner last.

        Raises:
            machine.locks.BusyError: another process decides on it for too long.
        """
        if not self.folder.is_dir():
            return
        with locks.alone_in(self.folder) as lock:
            for path in self.folder.iterdir():
                if path not in (self.path, lock):
                    files.ensure_absent(path)
            files.ensure_absent(self.path)
            files.ensure_absent(lock)
            files.remove_if_empty(self.folder)

    def _write(self, record: Record) -> None:
        files.ensure_file(self.path, json.dumps(dataclasses.asdict(record), indent=1) + "\n")


def _lives(owner: UnitId, unit: UnitId) -> bool:
    # An agent folder belongs to one unit: if it is this unit's, an owner of another model is gone.
    return owner.agent not in ("", unit.agent) and pathlib.Path(owner.agent).exists()


def _taken(unit: UnitId, owner: UnitId) -> Line:
    # The agent without Juju has the same record (lib/gpu_standalone/owner.py), and no unit's name.
    if "/" not in owner.name:
        return messages.line("machine-has-agent", unit=unit.name)
    return messages.line(
        "machine-taken", owner=owner, unit=unit.name, other=owner.name, agent=owner.agent
    )
