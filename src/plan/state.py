# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The state of a unit, on which decisions are based: frozen types only."""

import dataclasses

from gpu_agent.model import host
from gpu_agent.model import verdict as model_verdict
from gpu_agent.model.inventory import Inventory
from gpu_agent.model.quarantine import Quarantine
from gpu_runtime.unavailable import Unavailable
from options.part import Part
from options.table import Options
from plan.agent_view import AgentView
from plan.gpu_offers import Elsewhere


@dataclasses.dataclass(frozen=True)
class RememberedIds:
    """Which card each chosen index meant when gpu-device-ids was set.

    Attributes:
        chosen: the normalised ids of that time.
        uuids: each id and the UUID that it meant.
        indexes: the index that each of these cards had then.
    """

    chosen: tuple[str, ...] = ()
    uuids: tuple[tuple[str, str], ...] = ()
    indexes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Failure:
    """What could not be done to a part of this unit.

    Attributes:
        text: why, with the next step.
        passes: whether it may be over by itself.
    """

    part: Part
    text: str
    passes: bool = False


@dataclasses.dataclass(frozen=True)
class UnitState:
    """The state of this unit, on which decisions are based.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        ci: what was found of the CI system, which only the CI system itself reads.
        agent: what the agent needs to know of the CI system here.
        planned_units: how many units the application has.
        inventory: None where no GPU was asked for.
        idle_gpus: how many GPUs are here though none was asked for.
        nodes: names of the GPUs' device nodes as the look at the machine began; empty where no GPU
            was asked for.
        driver: what there is of NVIDIA's driver; nothing where no GPU of NVIDIA's was asked for.
        packaged: the same of its container toolkit.
        upgrade: why the last upgrade of the driver was taken back, or what it waits for; or empty.
        rebooted_for: the version of the driver for which this charm last rebooted the machine.
        external: UUIDs of GPUs that are in use outside CI, each with the cause.
        handed_out: UUIDs of the GPUs that the GPU runtime here gives to tasks; empty: none.
        quarantined: GPUs that are out of use until further notice, those that are gone too.
        verdict: None before the first self-test.
        wheels: path of the charm resource `selftest-wheels`; empty when not given, None where Juju
            does not tell.
        elsewhere: which GPUs other units give to tasks.
        rests: it is drained or paused.
        leaving: this unit is being removed: nothing is started any more.
        repaired: whether something of the GPU runtime was not as it should be, and now is.
        failures: what could not be done so far.
    """

    options: Options
    unit: str
    machine: host.Machine
    agent: AgentView = AgentView()
    ci: object = None
    inventory: Inventory | None = None
    idle_gpus: int = 0
    nodes: tuple[str, ...] = ()
    driver: host.Driver = host.Driver()
    packaged: host.Packaged = host.Packaged()
    rebooted_for: str = ""
    upgrade: str = ""
    external: tuple[tuple[str, Unavailable], ...] = ()
    handed_out: tuple[str, ...] = ()
    quarantined: tuple[Quarantine, ...] = ()
    verdict: model_verdict.Verdict | None = None
    remembered: RememberedIds = RememberedIds()
    wheels: str | None = ""
    planned_units: int = 1
    elsewhere: Elsewhere = Elsewhere()
    rests: bool = False
    leaving: bool = False
    repaired: bool = False
    failures: tuple[Failure, ...] = ()

    @property
    def application(self) -> str:
        """This unit's application, as the operator's next command names it."""
        return self.unit.partition("/")[0]

    @property
    def names(self) -> dict[str, str]:
        """The names that the remedies of status lines have: `application` and `unit`."""
        return {"application": self.application, "unit": self.unit}

    @property
    def frozen(self) -> frozenset[Part]:
        """The parts that stay as they are, for what is wrong with their options or failed."""
        return self.options.frozen | {failure.part for failure in self.failures}
