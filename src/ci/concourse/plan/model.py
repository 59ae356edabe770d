# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The parts of a plan that are about Concourse: its release, worker and web; frozen types only."""

import dataclasses

from ci.concourse.options.web import WebOptions
from ci.concourse.options.worker import WorkerSettings
from options.certificates import Tls
from relations.model import Database, WebSecrets


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
