# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a CI system is to the charm, and which ones there are.

A CI system is a room below `ci`. Its state and its plan are its own: for the rest of the charm
`UnitState.ci` and `CiPlan.own` are opaque.
"""

import collections.abc
import enum
import typing

from lifecycle.action_call import Action
from lifecycle.drain import Drainer
from options.table import Options
from plan.agent_view import AgentView
from plan.ci_plan import CiPlanner, CiStatus
from plan.messages import Line
from plan.model import Plan
from plan.state import UnitState
from plan.unit_id import UnitId

Say = collections.abc.Callable[[str], None]
Remove = collections.abc.Callable[[], object]
Step = collections.abc.Callable[[UnitState, Plan], UnitState]
"""A step of a hook: does what the plan says, and returns the state with what came of it.

It reports what fails by lifecycle.part_runner, and raises only what the whole hook reports.
"""


class Place(enum.Enum):
    """The places of a hook, in their order, at which a CI system has steps."""

    KEYS = "keys, and what relations are asked for"
    RELEASE = "the programs of the CI system"
    POOL = "after the GPU runtime, before the self-test: offer fewer GPUs at once if some are gone"
    SERVICES = "after the self-test: the services as planned"
    PUBLISH = "last: what this unit gives to others, and how they see it"


class Remains(enum.Enum):
    """What a CI system leaves on a machine, in the order in which it is removed."""

    SERVICES = "services, containers, settings and keys"
    DATA = "data that a new unit might want"
    PROGRAMS = "programs, which the removal of everything else may need"


class CiSystem(CiPlanner, typing.Protocol):
    """A CI system on this unit, during one hook.

    Attributes:
        name: the value of the option ci-system that chooses it.
        actions: its actions, by name.
        changing: those actions after which the charm applies the plan and updates the status.
        drainer: drains and pauses what takes its jobs.
        steps: its steps, by their places in a hook.
        removals: what takes away what it leaves on a machine.
    """

    name: str
    actions: collections.abc.Mapping[str, Action]
    changing: frozenset[str]
    drainer: Drainer
    steps: collections.abc.Mapping[Place, tuple[Step, ...]]
    removals: collections.abc.Mapping[Remains, tuple[Remove, ...]]

    def revoke(self) -> None:
        """Refuse workers whose units are gone; this waits for nothing."""
        ...

    def observe(self, options: Options, /) -> object:
        """Return what there is of it, for `UnitState.ci`; this changes nothing.

        Raises:
            gpu_agent.model.errors.UnknownError: the machine cannot be read now.
        """
        ...

    def agent(self, options: Options, /) -> AgentView:
        """Return what the agent needs to know of it."""
        ...

    def status(self, state: UnitState, wanted: Plan, /, *, rests: bool) -> CiStatus:
        """Return what it adds to the unit's status.

        Args:
            state: what was found, and what failed.
            wanted: what this unit should be.
            rests: whether the unit is drained or paused.
        """
        ...

    def metrics_port(self) -> int:
        """Return the port of its own metrics on 127.0.0.1; 0: none."""
        ...

    def departed(self, endpoint: str, /) -> bool:
        """Note that this unit leaves a relation.

        Returns:
            Whether the unit's removal begins with it.
        """
        ...

    def left_behind(self, state: UnitState, /) -> tuple[Line, ...]:
        """Return notes about what it has left on a unit that has another CI system."""
        ...

    def is_here(self) -> bool:
        """Whether anything of it is on this machine."""
        ...

    def former(self, unit: UnitId, mode: str, /, *, new: bool) -> UnitId | None:
        """Return the unit whose CI system is on a machine that has no record of its owner.

        Args:
            unit: this one.
            mode: its deployment-mode, known or not.
            new: whether this unit has not been set up before.

        Returns:
            None if it is this unit's, or nothing of it is here.
        """
        ...

    def retire(self, seconds: float, say: Say, /) -> None:
        """Let its jobs end for so many seconds, and take it out of service.

        Raises:
            machine.process.CommandError: systemd refuses something.
        """
        ...

    def set_data_aside(self, owner: str, /) -> None:
        """Note whose data on this machine is, before another unit has the machine."""
        ...
