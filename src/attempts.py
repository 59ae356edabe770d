# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What is done to one part of a unit: whether it works or fails, the other parts go on."""

import collections.abc
import dataclasses
import typing

from ci.concourse import local_postgresql, release
from health.service import WatchError
from machine import app, download, packages
from oci import nvidia
from plan.options import Part
from plan.state import Failure, UnitState
from selftest import service

_Answer = typing.TypeVar("_Answer")

# What the operator must mend, or what may pass by itself; each text says how.
_FAILURES: typing.Final = (
    release.ReleaseError, download.DownloadError, local_postgresql.DatabaseError,
    nvidia.ConfigError, service.SelftestError, app.AppError, packages.PackageError,
    WatchError,
)  # fmt: skip


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
    return None, dataclasses.replace(state, failures=(*state.failures, failure))
