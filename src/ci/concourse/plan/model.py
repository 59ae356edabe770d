# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What was found of Concourse on a unit, and what it should be; frozen types only."""

import dataclasses
import typing

from ci.concourse.options.web import WebOptions
from ci.concourse.options.worker import WorkerSettings
from gpu_agent.model.keep import Keep
from options.certificates import Tls
from plan.messages import Line
from plan.model import Plan
from plan.network import Network
from plan.state import UnitState
from relations.model import Database, Tsa, Web, WebSecrets
from relations.worker_view import Rotation, Seen


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
class Rivals:
    """Programs that obstruct Concourse's worker on this machine.

    Attributes:
        containerd: another owner of containerd's socket, as a systemd unit or process name; or
            empty.
        runc: path of a runc that containerd would find before the GPU runtime; or empty.
    """

    containerd: str = ""
    runc: str = ""


@dataclasses.dataclass(frozen=True)
class ConcourseState:
    """What was found of Concourse on this unit.

    Attributes:
        worker_name: the name of this unit's worker, such as `ci-worker-0` in the model `ci`; it
            never changes.
        rivals: what obstructs its worker here.
        network: where others reach this unit; empty if it serves no web.
        tarball: path of the charm resource `concourse`; empty when not given, None if Juju does
            not answer.
        installed: version on this machine; empty before the first.
        waits: why another release than the wanted one is used; None if none is.
        failed: why the upgrade to the wanted release was rolled back; or empty.
        local_database: the database of a web on this machine, used or not, such as `concourse of
            web/0 of model ci`; empty if there is none.
        rotation: keys that wait for their turn.
        seen: how web sees this unit's worker.
        idle_relations: those that do nothing here.
    """

    worker_name: str = ""
    rivals: Rivals = Rivals()
    network: Network = Network()
    tsa: Tsa = Tsa()
    web: Web = Web()
    tarball: str | None = ""
    installed: str = ""
    waits: Line | None = None
    failed: str = ""
    local_database: str = ""
    rotation: Rotation = Rotation()
    seen: Seen = Seen()
    idle_relations: tuple[IdleRelation, ...] = ()


def found(state: UnitState) -> ConcourseState:
    """Return what was found of Concourse on a unit that runs Concourse."""
    return typing.cast(ConcourseState, state.ci)


def noted(state: UnitState, **changes: typing.Any) -> UnitState:
    """Return the state of a unit with these changes of what was found of Concourse."""
    return dataclasses.replace(state, ci=dataclasses.replace(found(state), **changes))


@dataclasses.dataclass(frozen=True)
class ReleasePlan:
    """Which Concourse to have: a tarball at hand, or a version with its checksum to download.

    Attributes:
        mirror: base URL that has `v<version>/` below it; empty: upstream's own.
        attach: the command by which the operator gives another tarball.
        is_named: the operator has named the checksum, so that no other file will do.
        webs: the versions of the webs that the worker here serves; empty: unknown, or its own.
    """

    version: str
    architecture: str
    sha256: str
    tarball: str
    mirror: str = ""
    webs: tuple[str, ...] = ()
    attach: str = "juju attach-resource <application> concourse=<release tarball>"
    is_named: bool = False


@dataclasses.dataclass(frozen=True)
class WorkerPlan:
    """How the Concourse worker is to run.

    Attributes:
        private_key: PEM; empty: one is made on the machine and kept.
        wrapped: containerd starts through our launcher, so that our wrapper is its runc.
        request_timeout: how long a call to containerd may last, in seconds; 0: Concourse's own.
        max_active_tasks: at how many tasks the scheduler is to hold back more; 0: at none.
        team: whose steps alone it takes; empty: those of all teams.
        certificates: CAs that checks, gets and puts trust besides the machine's, PEM; or none.
    """

    name: str
    tsa_hosts: tuple[str, ...]
    tsa_public_keys: tuple[str, ...]
    private_key: str = dataclasses.field(repr=False)
    tags: tuple[str, ...]
    settings: WorkerSettings
    wrapped: bool
    request_timeout: int = 0
    max_active_tasks: int = 0
    team: str = ""
    certificates: str = ""


@dataclasses.dataclass(frozen=True)
class WebPlan:
    """How Concourse's web is to run.

    Attributes:
        address: where other web units reach this one.
        tsa_addresses: where the workers of each relation reach its TSA, by the relation's id.
        database: None means PostgreSQL on this machine.
        wanted: what else the operator wants of it.
        tls: its certificate; None: it speaks HTTP.
        queues_tasks: its scheduler holds tasks back until a worker has room for them.
    """

    address: str
    port: int
    external_url: str
    database: Database | None
    secrets: WebSecrets
    worker_keys: tuple[str, ...]
    wanted: WebOptions
    tls: Tls | None = None
    queues_tasks: bool = False
    tsa_addresses: tuple[tuple[int, str], ...] = ()

    @property
    def open_port(self) -> int:
        """The TCP port of UI and API that people use."""
        return self.wanted.tls_port if self.tls else self.port


@dataclasses.dataclass(frozen=True)
class ConcoursePlan:
    """What Concourse on this unit should be. A part that is None is removed; Keep: unchanged."""

    release: ReleasePlan | None = None
    worker: WorkerPlan | Keep | None = None
    web: WebPlan | Keep | None = None


def planned(plan: Plan) -> ConcoursePlan:
    """Return what Concourse should be by a unit's plan."""
    own = plan.ci.own
    if own is Keep.AS_IS:
        return ConcoursePlan(None, Keep.AS_IS, Keep.AS_IS)
    return own if isinstance(own, ConcoursePlan) else ConcoursePlan()
