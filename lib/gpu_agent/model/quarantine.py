# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A GPU that an operator cordoned or a fault quarantined: a frozen type only."""

import dataclasses
import typing

from gpu_runtime.unavailable import CORDONED, OPERATOR, QUARANTINED, Unavailable

SELF_TEST: typing.Final = "self-test"
# The name of the GPU health service in records, which two revisions of the charm read.
HEALTH: typing.Final = "watch"


@dataclasses.dataclass(frozen=True)
class Quarantine:
    """A GPU that is unavailable until a self-test passes or an operator returns it.

    Attributes:
        uuid: the GPU's id.
        reason: the cause for people; the part before `:` is short, such as `Xid 79`.
        check: the cause for programs: the id of the check that failed, the name of the fault or
            DAMAGED_RECORD; empty for a cordon.
        level: the level of the self-test that returns the GPU; empty: only an operator does.
        since: when the GPU was taken out, ISO 8601 in UTC.
        remedy: what the operator does about it, imperative.
        by: SELF_TEST, HEALTH or OPERATOR.
    """

    uuid: str
    reason: str
    check: str = ""
    level: str = ""
    since: str = ""
    remedy: str = ""
    by: str = SELF_TEST

    @property
    def is_cordon(self) -> bool:
        """Whether an operator took the GPU out, and not a fault."""
        return self.by == OPERATOR and not self.check

    @property
    def way_back(self) -> str:
        """What returns the GPU to use, for people."""
        if not self.level:
            return "gpu-uncordon returns it"
        return f"it returns when gpu-selftest level={self.level} passes, or by gpu-uncordon"

    @property
    def cause(self) -> Unavailable:
        """Why tasks do not get the GPU."""
        if self.is_cordon:
            return Unavailable(CORDONED, OPERATOR, self.reason)
        return Unavailable(QUARANTINED, self.check, self.reason)
