# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the fault policy decides: frozen types only.

gpu_agent.health.executor carries it out, gpu_agent.reporting.joblog reports it to jobs.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TakeOut:
    """No task gets this GPU any more; jobs that have it are left alone.

    Attributes:
        uuid: the GPU's.
        fault: the name of the fault's row in gpu_agent.fault_policy.fault_table.
        reason: one line; what stands before `:` is short, such as `Xid 79`.
        level: the self-test's level that has to pass for it to return; empty: the operator alone
            brings it back.
        remedy: what the operator does about it.
        cause: what several GPUs may have in common, such as `the driver does not answer`.
    """

    uuid: str
    fault: str
    reason: str
    level: str
    remedy: str
    cause: str = ""


@dataclasses.dataclass(frozen=True)
class BringBack:
    """What took this GPU out is over and needs no test, as where the driver answers again."""

    uuid: str
    fault: str


@dataclasses.dataclass(frozen=True)
class Test:
    """The GPU is to be tested at this level as soon as nobody uses it.

    Attributes:
        uuid: the GPU's.
        level: `quick`, `isolation`, `compute` or `burn-in`.
        why: one line.
    """

    uuid: str
    level: str
    why: str


@dataclasses.dataclass(frozen=True)
class Tell:
    """The jobs that hold this GPU are to be told.

    Attributes:
        uuid: the GPU's.
        fault: the name of the fault's row in gpu_agent.fault_policy.fault_table.
        text: a short cause, such as `Xid 79, it has fallen off the bus`.
        hardware: whether it is the machine's fault and not the job's.
        xid: its number, where it is one.
    """

    uuid: str
    fault: str
    text: str
    hardware: bool
    xid: int | None = None


@dataclasses.dataclass(frozen=True)
class Suspect:
    """Too many GPUs went out for one cause: the driver or the host. Nothing more is taken out.

    Attributes:
        cause: that cause; empty: it is over.
    """

    cause: str


Decision = TakeOut | BringBack | Test | Tell | Suspect
