# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The decisions of the fault policy: frozen types only.

gpu_agent.health.executor carries them out, gpu_agent.reporting.joblog reports them to jobs.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TakeOut:
    """Quarantine a GPU: new tasks do not get it; running jobs continue.

    Attributes:
        uuid: the GPU's UUID.
        fault: the name of the fault's row in gpu_agent.fault_policy.fault_table.
        reason: one line; the part before `:` is short, such as `Xid 79`.
        level: the level of the self-test that returns the GPU; empty: an operator returns it.
        remedy: what the operator does about it.
        cause: the common cause of several GPUs, such as `the driver does not answer`.
        code: the cause for programs: the fault's name, for an Xid with its number (`xid-79`).
    """

    uuid: str
    fault: str
    reason: str
    level: str
    remedy: str
    cause: str = ""
    code: str = ""


@dataclasses.dataclass(frozen=True)
class BringBack:
    """Return a GPU whose fault is over without a test, for example a slowdown."""

    uuid: str
    fault: str


@dataclasses.dataclass(frozen=True)
class Test:
    """Test an idle GPU at this level; a GPU in use is tested later.

    Attributes:
        uuid: the GPU's.
        level: `quick`, `isolation`, `compute` or `burn-in`.
        why: the reason, one line.
    """

    uuid: str
    level: str
    why: str


@dataclasses.dataclass(frozen=True)
class Tell:
    """Report a fault to the jobs that hold this GPU.

    Attributes:
        uuid: the GPU's UUID.
        fault: the name of the fault's row in gpu_agent.fault_policy.fault_table.
        text: a short cause, such as `Xid 79, it has fallen off the bus`.
        hardware: whether the hardware is at fault and not the job.
        xid: the Xid's number; None: not an Xid.
    """

    uuid: str
    fault: str
    text: str
    hardware: bool
    xid: int | None = None


@dataclasses.dataclass(frozen=True)
class Suspect:
    """The circuit breaker tripped: too many GPUs failed for one cause. Quarantine no more.

    Attributes:
        cause: that cause; empty: it is over.
    """

    cause: str


Decision = TakeOut | BringBack | Test | Tell | Suspect
