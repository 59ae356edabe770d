# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The record of whose this machine is, from the side of a machine without Juju.

The charm writes the same file (src/lifecycle/machine_claim.py), so each of the two refuses a
machine that is the other's.
"""

import dataclasses
import json
import pathlib
import re
import typing

from gpu_agent import paths
from machine import files, locks
from machine.errors import PartError

NAME: typing.Final = "gpu-ci-agent"
"""The owner's name in the record. A unit of Juju always has a slash in its name."""

_BUSY: typing.Final = 60.0  # seconds; a hook holds the lock for milliseconds
# Of a charm that Juju has unpacked.
_IS_THIS_CHARM: typing.Final = re.compile(rb"^name: *[\"']?gpu-ci-worker[\"']? *(#.*)?$", re.M)


class TakenError(PartError):
    """The machine belongs to a unit of Juju; the text names it and the remedy."""


@dataclasses.dataclass(frozen=True)
class Owner:
    """The owner of this machine.

    Attributes:
        folder: the folder of the record.
        agents: the folder in which Juju has a folder for each unit on this machine.
    """

    folder: pathlib.Path = paths.STATE
    agents: pathlib.Path = pathlib.Path("/var/lib/juju/agents")

    @property
    def record(self) -> pathlib.Path:
        """The file of the record."""
        return self.folder / "owner.json"

    def check(self) -> None:
        """Check that the machine is free, or belongs to the agent without Juju.

        Raises:
            TakenError: it belongs to a unit of Juju, or its units are unknown.
            OSError: the record cannot be read.
        """
        name, model, agent = self._read()
        if name == NAME:
            return
        # Units of early revisions of the charm have no record.
        unit = name or self._unrecorded()
        if not unit:
            return
        whose = f"{unit} of model {model}" if model else unit
        if not name or (agent and pathlib.Path(agent).exists()):
            raise TakenError(
                f"This machine belongs to {whose}, a unit of Juju: juju remove-unit {unit}, or "
                "use another machine"
            )
        raise TakenError(
            f"{whose}, a unit of Juju that is gone, has left files and services on this machine: "
            "let a new unit of the charm clear them away (juju deploy to this machine, then juju "
            "remove-unit), or use another machine"
        )

    def is_ours(self) -> bool:
        """Return whether the machine belongs to the agent without Juju.

        Raises:
            OSError: the record cannot be read.
        """
        name, _, _ = self._read()
        return name == NAME

    def claim(self, command: pathlib.Path) -> bool:
        """Claim the machine. Return True if that is new.

        Args:
            command: the file that exists as long as the agent is installed. If it is gone, a unit
                of Juju may take the machine over, and clears away what is left.

        Raises:
            TakenError: the machine belongs to a unit of Juju.
            machine.locks.BusyError: another process decides on it for too long.
        """
        files.ensure_directory(self.folder)
        with locks.alone_in(self.folder, _BUSY):
            self.check()
            # As src/plan/unit_id.py has them; earlier revisions of the charm read them too.
            owner = {"name": NAME, "model": "", "model_uuid": "", "agent": str(command)}
            content = json.dumps({"owner": owner, "former": None}, indent=1) + "\n"
            return files.ensure_file(self.record, content)

    def give_up(self) -> bool:
        """Remove all state from this machine, the owner last. Return True if there was any.

        Raises:
            machine.locks.BusyError: another process decides on it for too long.
        """
        if not self.folder.is_dir():
            return False
        with locks.alone_in(self.folder, _BUSY) as lock:
            for path in files.entries(self.folder):
                if path not in (self.record, lock):
                    files.ensure_absent(path)
            files.ensure_absent(self.record)
            files.ensure_absent(lock)
            files.remove_if_empty(self.folder)
        return True

    def _read(self) -> tuple[str, str, str]:
        """Return the name, the model and the agent's path of the owner; empty without one."""
        try:
            text = files.read_text(self.record)
            if text is None:
                return "", "", ""
            owner = json.loads(text)["owner"]
            return str(owner["name"]), str(owner["model"]), str(owner["agent"])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise TakenError(
                f"{self.record} cannot be read ({error}), so the owner of this machine is "
                "unknown: remove the file if no unit of Juju is on this machine"
            ) from error

    def _unrecorded(self) -> str:
        """Return the name of a unit of this charm that Juju has here; empty if there is none.

        Raises:
            TakenError: that is unknown.
        """
        try:
            for folder in files.entries(self.agents):
                if folder.name.startswith("unit-") and _is_of_this_charm(folder):
                    application, _, number = folder.name.removeprefix("unit-").rpartition("-")
                    return f"{application}/{number}"
        except OSError as error:
            raise TakenError(
                f"{error}, so the units of Juju on this machine are unknown: repair that, then "
                "run it again"
            ) from error
        return ""


def _is_of_this_charm(agent: pathlib.Path) -> bool:
    """Return whether the unit with this folder is one of this charm.

    Raises:
        OSError: its charm cannot be read.
    """
    try:
        metadata = (agent / "charm/metadata.yaml").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return _IS_THIS_CHARM.search(metadata) is not None
