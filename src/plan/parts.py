# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The parts of a plan: frozen types only."""

import dataclasses
import enum

from gpu.inventory import Gpu
from plan.certificates import Tls
from plan.folders import Folder
from plan.gpus import Choice, Unusable
from plan.offers import GpuOffer
from plan.problems import Problem
from plan.state import Database, WebSecrets
from plan.web_options import WebOptions


class Keep(enum.Enum):
    """Stands where a part of the machine is to stay as it is, running or not."""

    AS_IS = "as is"


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
class DriverPlan:
    """Which of NVIDIA's drivers to have, by packages of the distribution.

    Attributes:
        branch: such as `580-server`; empty: the one recommended for this GPU, or on a machine that
            has one of ours, that.
        userspace: in a container, the exact version that the libraries must have, such as
            `580.65.06`; empty on a machine.
        fabric_manager: the GPUs need it.
    """

    branch: str = ""
    userspace: str = ""
    fabric_manager: bool = False


@dataclasses.dataclass(frozen=True)
class ToolkitPlan:
    """Which container toolkit of NVIDIA's to have, and from where.

    Attributes:
        version: of all its packages, such as `1.20.0-1`.
        mirror: base URL of its repository, without a slash at its end.
        key: the repository's public key, ASCII-armoured; empty: it is fetched from there, and
            taken only if it has the fingerprint that NVIDIA's is known by.
    """

    version: str
    mirror: str
    key: str = ""


@dataclasses.dataclass(frozen=True)
class HostPlan:
    """What the GPUs need of the host. A part that is None is given up, Keep stays as it is.

    What is given up loses its sources, pins and holds; its packages stay until the unit goes.

    Attributes:
        packages: further ones that the operator wants.
        settings: whether the kernel's limits and services are set for GPU work.
        nvidia: whether those are among them that NVIDIA's driver has.
    """

    driver: DriverPlan | Keep | None = None
    toolkit: ToolkitPlan | Keep | None = None
    packages: tuple[str, ...] = ()
    settings: bool = False
    nvidia: bool = False


@dataclasses.dataclass(frozen=True)
class GpuPlan:
    """What tasks on this worker may get: the allowed GPUs in index order, all of one vendor.

    Attributes:
        nvidia_runtime: absolute path of nvidia-container-runtime; empty for other vendors' GPUs.
        allocation: `exclusive` or `shared`.
        gpus_per_task: how many GPUs, or MIG devices, a task gets that does not say.
        wait_timeout: how long a task may wait for them, in seconds, Concourse's patience regarded.
        hijack_limit: how long a hijack may keep them after the step, in seconds; 0: no limit.
        privileged_tasks: `no-gpu` or `gpu`.
        driver: version of NVIDIA's driver, and
        cuda: the highest CUDA version of it; empty for other vendors' GPUs, or if unknown.
    """

    gpus: tuple[Gpu, ...]
    nvidia_runtime: str
    allocation: str = "exclusive"
    gpus_per_task: int = 1
    wait_timeout: int = 240
    hijack_limit: int = 1800
    privileged_tasks: str = "no-gpu"
    driver: str = ""
    cuda: str = ""


@dataclasses.dataclass(frozen=True)
class EnginesPlan:
    """Which engines are to know our runtime, so that their containers can have GPUs.

    Attributes:
        names: `podman`, `docker`.
        default: whether it is the runtime of containers that name none.
        nvidia: whether NVIDIA's runtime brings the GPUs in.
    """

    names: tuple[str, ...]
    default: bool = False
    nvidia: bool = True


@dataclasses.dataclass(frozen=True)
class WorkerPlan:
    """How the Concourse worker is to run.

    Attributes:
        private_key: PEM; empty: one is made on the machine and kept.
        wrapped: containerd starts through our launcher, so that our wrapper is its runc.
        request_timeout: how long a call to containerd may last, in seconds; 0: Concourse's own.
        max_active_tasks: at how many tasks the scheduler is to hold back more; 0: at none.
        team: whose steps alone it takes; empty: those of all teams.
        max_containers: how many it may have at once; 0: as many as Concourse thinks right.
        mtu: of containers' interfaces; 0: that of the machine's way out.
        certificates: CAs that checks, gets and puts trust besides the machine's, PEM; or none.
    """

    name: str
    tsa_hosts: tuple[str, ...]
    tsa_public_keys: tuple[str, ...]
    private_key: str = dataclasses.field(repr=False)
    tags: tuple[str, ...]
    dns_servers: tuple[str, ...]
    wrapped: bool
    request_timeout: int = 0
    max_active_tasks: int = 0
    team: str = ""
    max_containers: int = 0
    mtu: int = 0
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
    wanted: WebOptions = WebOptions()
    tls: Tls | None = None
    queues_tasks: bool = False
    tsa_addresses: tuple[tuple[int, str], ...] = ()

    @property
    def open_port(self) -> int:
        """The TCP port of UI and API that people use."""
        return self.wanted.tls_port if self.tls else self.port


@dataclasses.dataclass(frozen=True)
class Plan:
    """What this unit should be. A part that is None must not be there, Keep stays as it is.

    Attributes:
        choice: the GPUs that gpu-device-ids allows here.
        unusable: UUIDs of GPUs that the wrapper gives to tasks and that are of no use to them now,
            each with what is the matter.
        reboot: the driver that is installed takes a reboot, and the charm may do that.
        offer: what other units are told of the GPUs here; None: nothing new.
        folders: those of the host that tasks get.
        engines: which engines' containers can have GPUs.
    """

    problems: tuple[Problem, ...]
    release: ReleasePlan | None
    gpu: GpuPlan | Keep | None
    worker: WorkerPlan | Keep | None
    web: WebPlan | Keep | None
    choice: Choice = Choice()
    unusable: Unusable = ()
    host: HostPlan | Keep = Keep.AS_IS
    reboot: bool = False
    offer: GpuOffer | None = None
    folders: tuple[Folder, ...] | Keep = ()
    engines: EnginesPlan | Keep | None = None
