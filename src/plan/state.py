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
from plan import network as plan_network
from plan.gpu_offers import Elsewhere
from plan.messages import Line
from relations import model
from relations.worker_view import Rotation, Seen


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
class IdleRelation:
    """A relation that does nothing.

    Attributes:
        endpoint: this unit's.
        application: on its other side.
        beside: the endpoint whose relation to the same application does it all; empty: a unit of
            this deployment-mode has no use for it.
    """

    endpoint: str
    application: str
    beside: str = ""


@dataclasses.dataclass(frozen=True)
class UnitState:
    """The state of this unit, on which decisions are based.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        worker_name: the name of this unit's worker in Concourse, such as `ci-worker-0` in the
            model `ci`; it never changes.
        planned_units: how many units the application has.
        network: where others reach this unit; empty where it serves no web.
        inventory: None where no GPU was asked for.
        idle_gpus: how many GPUs are here though none was asked for.
        nodes: names of the GPUs' device nodes as the look at the machine began; the same.
        driver: what there is of NVIDIA's driver; nothing where no GPU of NVIDIA's was asked for.
        packaged: the same of its container toolkit.
        upgrade: why the last upgrade of the driver was taken back, or what it waits for; or empty.
        rebooted_for: the version of the driver for which this charm last rebooted the machine.
        external: UUIDs of GPUs that are in use outside CI, each with the cause.
        handed_out: UUIDs of the GPUs that the wrapper here gives to tasks; empty: it gives none.
        quarantined: GPUs that are out of use until further notice, those that are gone too.
        verdict: None before the first self-test.
        tarball: path of the charm resource `concourse`; empty when not given, None where Juju
            does not tell.
        wheels: path of the charm resource `selftest-wheels`; the same.
        installed: version of the Concourse that is on this machine; empty before the first.
        release_waits: why another Concourse than the wanted one is used; None if none is.
        release_failed: why the upgrade to the wanted Concourse was rolled back; or empty.
        elsewhere: which GPUs other units give to tasks.
        local_database: the database of a web on this machine, used or not, such as `concourse of
            web/0 of model ci`; empty if there is none.
        rotation: keys that wait for their turn.
        seen: how web sees this unit's worker.
        idle_relations: those that do nothing here.
        leaving: this unit is being removed: nothing is started any more.
        repaired: whether something of the wrapper was not as it should be, and now is.
        failures: what could not be done so far.
    """

    options: Options
    unit: str
    worker_name: str
    machine: host.Machine
    network: plan_network.Network = plan_network.Network()
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
    tarball: str | None = ""
    wheels: str | None = ""
    installed: str = ""
    release_waits: Line | None = None
    release_failed: str = ""
    tsa: model.Tsa = model.Tsa()
    web: model.Web = model.Web()
    planned_units: int = 1
    elsewhere: Elsewhere = Elsewhere()
    local_database: str = ""
    rotation: Rotation = Rotation()
    seen: Seen = Seen()
    idle_relations: tuple[IdleRelation, ...] = ()
    leaving: bool = False
    repaired: bool = False
    failures: tuple[Failure, ...] = ()

    @property
    def application(self) -> str:
        """This unit's application, as the operator's next command names it."""
        return self.unit.partition("/")[0]

    @property
    def frozen(self) -> frozenset[Part]:
        """The parts that stay as they are, for what is wrong with their options or failed."""
        return self.options.frozen | {failure.part for failure in self.failures}
