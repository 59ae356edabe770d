# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""No CI system: the machine gives its GPUs to container engines and to gpu-run alone."""

import collections.abc
import dataclasses
import pathlib
import typing

from ci.system import Place, Remains, Remove, Say, Step
from gpu_agent import paths
from gpu_agent.availability import lease_report as leases
from gpu_agent.model.keep import Keep
from gpu_agent.runtime import runc as runcs
from gpu_agent.runtime.settings import GpuPlan
from gpu_runtime.refusal import Refused
from lifecycle.action_call import Action
from lifecycle.drain import Drainer
from lifecycle.records import Records
from options.declaration import CiOptions
from options.table import Options
from plan import messages, status
from plan.agent_view import AgentView
from plan.ci_plan import CiPlan, CiStatus, WaitLimit
from plan.gpus import Choice, Unusable
from plan.messages import Line
from plan.model import Plan
from plan.state import UnitState
from plan.unit_id import UnitId
from relations import cos_agent, juju, peers

OPTIONS: typing.Final = CiOptions(
    name="none",
    text="no CI system, for a machine whose GPUs containers of podman and Docker and gpu-run use",
    modes=("worker",),
)


class Holders:
    """The holders of GPUs, as what takes jobs on a machine without a CI system."""

    job = "lease"

    def __init__(self, store: pathlib.Path = paths.STORE) -> None:
        """Begin with nothing.

        Args:
            store: the folder of the leases.
        """
        self._store = store

    def name(self) -> str:
        """Return its name for people."""
        return "gpu-ci"

    def running(self) -> tuple[str, ...]:
        """Return the holders that use a GPU now.

        Raises:
            OSError: the leases cannot be read.
        """
        return tuple(self._held())

    def builds(self, ids: collections.abc.Sequence[str]) -> collections.abc.Mapping[str, str]:
        """Return what people call these holders."""
        held = self._held()
        return {name: held[name] for name in ids if name in held}

    def pid(self) -> int:
        """Return 0: no single process takes requests; each starts its own."""
        return 0

    def is_connected(self) -> bool:
        """Return False: a unit that rests gives out no GPU (plan.plan)."""
        return False

    def land(self) -> int:
        """Return 0: the hooks of a unit that rests give out no GPU."""
        return 0

    def halt(self) -> bool:
        """Return False: nothing has to end."""
        return False

    def resume(self, say: Say) -> None:
        """Do nothing: the next hook gives out GPUs again."""

    def _held(self) -> dict[str, str]:
        try:
            return leases.occupants(self._store)
        except (ValueError, Refused) as error:
            raise OSError(f"the leases cannot be read: {error}") from error


@dataclasses.dataclass(frozen=True)
class Found:
    """What was found on a unit without a CI system.

    Attributes:
        relations: endpoint and application of the relations that do nothing.
        has_runc: whether the machine has a runc, which starts containers with GPUs.
    """

    relations: tuple[tuple[str, str], ...]
    has_runc: bool


def found(state: UnitState) -> Found:
    """Return what was found on a unit without a CI system."""
    return typing.cast(Found, state.ci)


class NoCiSystem:
    """A unit without a CI system, during one hook."""

    name: str = OPTIONS.name
    changing: frozenset[str] = frozenset()

    def __init__(self, charm: juju.Charm, _say: Say, records: Records) -> None:
        """Begin with nothing.

        Args:
            charm: this unit's.
            records: what the unit keeps on its machine.
        """
        self._model = charm.model
        self.actions: collections.abc.Mapping[str, Action] = {}
        self.drainer = Drainer(Holders(), records)
        self.steps: collections.abc.Mapping[Place, tuple[Step, ...]] = {}
        self.removals: collections.abc.Mapping[Remains, tuple[Remove, ...]] = {}

    def revoke(self) -> None:
        """Do nothing: no worker registers here."""

    def observe(self, _options: Options) -> object:
        """Return the relations to CI systems, and whether the machine has a runc."""
        idle = juju.relations_but(self._model, cos_agent.ENDPOINT, peers.ENDPOINT)
        return Found(idle, pathlib.Path(runcs.for_tasks("")).exists())

    def agent(self, _options: Options) -> AgentView:
        """Return that the agent is alone."""
        return AgentView()

    def longest_wait(self, _state: UnitState) -> WaitLimit:
        """Return no limit."""
        return WaitLimit()

    def plan(
        self, state: UnitState, _choice: Choice, gpu: GpuPlan | Keep | None, _unusable: Unusable
    ) -> CiPlan:
        """Return that no request gets a GPU while the unit rests, or without a runc."""
        lacks = bool(gpu) and not found(state).has_runc
        return CiPlan(
            takes_jobs=True,
            problems=(messages.line("runc-missing"),) * lacks,
            closes_gpus=state.rests or lacks,
        )

    def status(self, state: UnitState, _wanted: Plan, *, rests: bool) -> CiStatus:  # noqa: ARG002
        """Return that the unit is ready, and which relations do nothing."""
        idle = found(state).relations
        why = f"with ci-system={state.options.ci_system}"
        notes = (status.relation_idle(state, *one, why) for one in idle)
        return CiStatus(ready="Ready", notes=tuple(notes))

    def metrics_port(self) -> int:
        """Return 0: only the agent has metrics."""
        return 0

    def departed(self, _endpoint: str) -> bool:
        """Return False: no relation ends this unit."""
        return False

    def left_behind(self, _state: UnitState) -> tuple[Line, ...]:
        """Return nothing: there is nothing to leave."""
        return ()

    def is_here(self) -> bool:
        """Return False: there is nothing to be here."""
        return False

    def former(self, _unit: UnitId, _mode: str, *, new: bool) -> UnitId | None:  # noqa: ARG002
        """Return None: no earlier revision had such units."""
        return None

    def retire(self, _seconds: float, _say: Say) -> None:
        """Do nothing: holders of GPUs go on without the charm."""

    def set_data_aside(self, _owner: str) -> None:
        """Do nothing: it keeps no data."""
