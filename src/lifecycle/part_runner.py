# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runs a step for one part of a unit, so that its failure does not stop the other parts.

Errors that an operator can fix, such as a full disk, become status lines. They fail no hook.
"""

import collections.abc
import contextlib
import dataclasses
import errno
import logging
import re
import typing

from machine import exhaustion as scarcity
from machine import process
from machine.errors import PartError
from options.part import Part
from plan import status
from plan.messages import Line
from plan.state import Failure, UnitState

_Answer = typing.TypeVar("_Answer")

_SERVICE: typing.Final = re.compile(r"\b([a-z][\w@-]*)\.service\b")

_log = logging.getLogger(__name__)


def make(
    state: UnitState, part: Part, work: collections.abc.Callable[..., _Answer], *arguments: object
) -> tuple[_Answer | None, UnitState]:
    """Run a step for one part of the unit.

    Args:
        state: what is known of the unit.
        part: the part that the step changes.
        work: the step.
        arguments: its arguments.

    Returns:
        The answer of `work`, None if it failed; and the state with that failure.
    """
    try:
        return work(*arguments), state
    except PartError as error:
        failure = Failure(part, str(error), error.passes)
    except (process.CommandError, OSError) as error:
        failure = _refused(part, state, error)
    return None, dataclasses.replace(state, failures=(*state.failures, failure))


@contextlib.contextmanager
def told(unit: str, lines: list[Line]) -> collections.abc.Generator[None]:
    """Turn an error of the block into a status line instead of raising it.

    The rest of the block is skipped; the next event runs it again.

    Args:
        unit: Juju's name of this unit.
        lines: the status lines, to which it is added.
    """
    try:
        yield
    except (PartError, process.CommandError, OSError) as error:
        lines.append(status.failed(_words(error, unit), passes=_passes(error)))


def where(error: Exception, unit: str) -> str:
    """Return the command that shows the log for an error of systemd, a program or the kernel."""
    _log.error("refused", exc_info=error)
    service = _SERVICE.search(str(error))
    return f"journalctl -u {service[1]}" if service else f"juju debug-log --include {unit}"


def _words(error: Exception, unit: str) -> str:
    remedy = ""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = ": free disk space there" if error.filename else ": free disk space"
    return f"{error}{remedy}; tried again at the next event: {where(error, unit)}"


def _refused(part: Part, state: UnitState, error: process.CommandError | OSError) -> Failure:
    _log.error("a step for the part %s failed", part.value)
    return Failure(part, _words(error, state.unit), _passes(error))


def _passes(error: Exception) -> bool:
    """Whether the error may pass by itself."""
    if isinstance(error, process.CommandError):
        return error.starved
    starved = isinstance(error, OSError) and scarcity.is_told_by(error)
    return starved or getattr(error, "passes", False)
