# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The record of whose this machine is, from the side of a machine without Juju.

The charm writes the same file (src/lifecycle/machine_claim.py), so each of the two refuses a
machine that is the other's.
"""

import json
import pathlib
import typing

from gpu_agent import paths
from machine import files, locks
from machine.errors import PartError

RECORD: typing.Final = paths.STATE / "owner.json"
NAME: typing.Final = "gpu-ci-agent"
"""The owner's name in the record. A unit of Juju always has a slash in its name."""

_BUSY: typing.Final = 60.0  # seconds; a hook holds the lock for milliseconds


class TakenError(PartError):
    """The machine belongs to a unit of Juju; the text names it and the remedy."""


def check() -> None:
    """Check that the machine is free, or belongs to the agent without Juju.

    Raises:
        TakenError: it belongs to a unit of Juju.
        OSError: the record cannot be read.
    """
    unit, model, agent = _owner()
    if unit in ("", NAME):
        return
    whose = f"{unit} of model {model}" if model else unit
    if agent and pathlib.Path(agent).exists():
        raise TakenError(
            f"This machine belongs to {whose}, a unit of Juju: juju remove-unit {unit}, or use "
            "another machine"
        )
    raise TakenError(
        f"{whose}, a unit of Juju that is gone, has left files and services on this machine: let "
        "a new unit of the charm clear them away (juju deploy to this machine, then juju "
        "remove-unit), or use another machine"
    )


def is_ours() -> bool:
    """Return whether the machine belongs to the agent without Juju.

    Raises:
        OSError: the record cannot be read.
    """
    name, _, _ = _owner()
    return name == NAME


def claim(command: pathlib.Path) -> bool:
    """Claim the machine. Return True if that is new.

    Args:
        command: the file that exists as long as the agent is installed. If it is gone, a unit of
            Juju may take the machine over, and clears away what is left.

    Raises:
        TakenError: the machine belongs to a unit of Juju.
        machine.locks.BusyError: another process decides on it for too long.
    """
    files.ensure_directory(paths.STATE)
    with locks.alone_in(paths.STATE, _BUSY):
        check()
        # As src/plan/unit_id.py has them; earlier revisions of the charm read them too.
        owner = {"name": NAME, "model": "", "model_uuid": "", "agent": str(command)}
        content = json.dumps({"owner": owner, "former": None}, indent=1) + "\n"
        return files.ensure_file(RECORD, content)


def give_up() -> bool:
    """Remove all state from this machine, the owner last. Return True if there was any.

    Raises:
        machine.locks.BusyError: another process decides on it for too long.
    """
    if not paths.STATE.is_dir():
        return False
    with locks.alone_in(paths.STATE, _BUSY) as lock:
        for path in files.entries(paths.STATE):
            if path not in (RECORD, lock):
                files.ensure_absent(path)
        files.ensure_absent(RECORD)
        files.ensure_absent(lock)
        files.remove_if_empty(paths.STATE)
    return True


def _owner() -> tuple[str, str, str]:
    """Return the name, the model and the agent's path of the owner; empty without one."""
    text = files.read_text(RECORD)
    if text is None:
        return "", "", ""
    try:
        owner = json.loads(text)["owner"]
        return str(owner["name"]), str(owner["model"]), str(owner["agent"])
    except (ValueError, LookupError, TypeError) as error:
        raise TakenError(
            f"{RECORD} cannot be read ({error}), so the owner of this machine is unknown: remove "
            "the file if no unit of Juju is on this machine"
        ) from error
