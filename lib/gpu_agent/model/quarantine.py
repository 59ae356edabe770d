# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A GPU that is out of use: a frozen type only."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Quarantine:
    """A GPU that is out of use until a self-test or the operator brings it back.

    Attributes:
        uuid: the GPU's id.
        reason: why; what stands before `:` is short, such as `Xid 79`.
        check: the id of the check that failed, or the name of the watch's fault; empty if an
            operator did it.
        level: the level that must pass for it to return; empty: only the operator brings it back.
        since: when, ISO 8601 in UTC.
        remedy: what the operator does about it.
        by: `self-test`, `watch` or `operator`.
    """

    uuid: str
    reason: str
    check: str = ""
    level: str = ""
    since: str = ""
    remedy: str = ""
    by: str = "self-test"
