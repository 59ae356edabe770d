# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a CI system adds to the plan of a unit and to its status: frozen types, and a protocol."""

import dataclasses
import typing

from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import Folder, GpuPlan
from plan.gpus import Choice, Unusable
from plan.messages import Line
from plan.state import UnitState


@dataclasses.dataclass(frozen=True)
class WaitLimit:
    """How long a job may wait for its GPUs, so that the refusal reaches it.

    Attributes:
        seconds: None: as long as gpu-wait-timeout says.
        why: the cause, for status.
    """

    seconds: int | None = None
    why: str = ""


@dataclasses.dataclass(frozen=True)
class CiPlan:
    """What the CI system on this unit should be.

    Attributes:
        own: its own plan, which only the CI system reads; None: nothing of it is to be here.
        takes_jobs: something here is to take jobs, so that a drain or a pause makes sense.
        problems: what keeps it from its work.
        folders: those of the host that tasks get.
        needs_runtime: its running worker may start containers through the GPU runtime, which then
            stays.
        closes_gpus: no request gets a GPU, as the unit is drained or paused.
    """

    own: object = None
    takes_jobs: bool = False
    problems: tuple[Line, ...] = ()
    folders: tuple[Folder, ...] | Keep = ()
    needs_runtime: bool = False
    closes_gpus: bool = False


@dataclasses.dataclass(frozen=True)
class CiStatus:
    """What the CI system on this unit adds to the status.

    Attributes:
        ready: the words for a unit that lacks nothing, such as `Worker ready`.
        lines: what keeps it from its work.
        notes: for the brackets of a unit that is ready.
        refused: what was refused of others' data.
        hint: what the operator may have meant, for a unit that waits; or empty.
    """

    ready: str
    lines: tuple[Line, ...] = ()
    notes: tuple[Line, ...] = ()
    refused: tuple[str, ...] = ()
    hint: str = ""


class CiPlanner(typing.Protocol):
    """The part of a CI system that decides; pure."""

    def longest_wait(self, state: UnitState, /) -> WaitLimit:
        """Return how long a job may wait for its GPUs at most."""
        ...

    def plan(
        self, state: UnitState, choice: Choice, gpu: GpuPlan | Keep | None, unusable: Unusable, /
    ) -> CiPlan:
        """Return what the CI system should be.

        Args:
            state: what was found.
            choice: the GPUs that gpu-device-ids allows here.
            gpu: what tasks may get; None: no GPU; Keep: unchanged.
            unusable: GPUs of tasks that tasks cannot use now.
        """
        ...
