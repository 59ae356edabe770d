# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What is done to one part of a unit: whether it works or fails, the other parts go on.

What is done to none of them, and is refused, is told as well: no hook fails for what an operator
can mend, as a full disk.
"""

import collections.abc
import contextlib
import dataclasses
import errno
import logging
import typing

from ci.concourse import release
from ci.concourse.web import local_postgresql
from gpu_agent import install as app
from gpu_agent.engines.engine import EngineError
from gpu_agent.gpu_run.service import GpuRunError
from gpu_agent.health.service import WatchError
from gpu_agent.runtime import nvidia_config as nvidia
from gpu_selftest import service
from machine import download, packages, process
from machine import exhaustion as scarcity
from options.part import Part
from plan import status
from plan.state import Failure, UnitState

_Answer = typing.TypeVar("_Answer")

# What the operator must mend, or what may pass by itself; each text says how.
_FAILURES: typing.Final = (
    release.ReleaseError, download.DownloadError, local_postgresql.DatabaseError,
    nvidia.ConfigError, service.SelftestError, app.AppError, packages.PackageError,
    WatchError, GpuRunError, EngineError,
)  # fmt: skip
_SERVICES: typing.Final = ("concourse-web", "concourse-worker")

_log = logging.getLogger(__name__)


def make(
    state: UnitState, part: Part, work: collections.abc.Callable[..., _Answer], *arguments: object
) -> tuple[_Answer | None, UnitState]:
    """Do something to one part, whose failure is no other's.

    Args:
        state: what is known of the unit.
        part: what it is done to.
        work: does it.
        arguments: for it.

    Returns:
        What `work` has returned, None if it failed; and the state with that failure.
    """
    try:
        return work(*arguments), state
    except _FAILURES as error:
        failure = Failure(part, str(error), getattr(error, "passes", False))
    except (process.CommandError, OSError) as error:
        failure = _refused(part, state, error)
    return None, dataclasses.replace(state, failures=(*state.failures, failure))


@contextlib.contextmanager
def told(unit: str, lines: list[status.Line]) -> collections.abc.Generator[None]:
    """Have what is refused here, and is no part's failure, told and not raised.

    What would have come after it is not done; the next event tries all of it again.

    Args:
        unit: Juju's name of this unit.
        lines: of its status, to which it is added.
    """
    try:
        yield
    except (*_FAILURES, process.CommandError, OSError) as error:
        lines.append(status.failed(_words(error, unit), passes=_passes(error)))


def where(error: Exception, unit: str) -> str:
    """Where more is told of what systemd, another program or the kernel refused."""
    _log.error("refused", exc_info=error)
    failed = [name for name in _SERVICES if name in str(error)]
    return f"journalctl -u {failed[0]}" if failed else f"juju debug-log --include {unit}"


def _words(error: Exception, unit: str) -> str:
    remedy = ""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = ": make room there" if error.filename else ": make room"
    return f"{error}{remedy}; it is tried again at the next event: {where(error, unit)}"


def _refused(part: Part, state: UnitState, error: process.CommandError | OSError) -> Failure:
    _log.error("what is done to the part %s failed", part.value)
    return Failure(part, _words(error, state.unit), _passes(error))


def _passes(error: Exception) -> bool:
    """Whether it may be over by itself."""
    if isinstance(error, process.CommandError):
        return error.starved
    out = isinstance(error, OSError) and scarcity.is_told_by(error)
    return out or getattr(error, "passes", False)
