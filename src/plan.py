# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Options, GPUs found and relation data -> what this unit should be. Pure: no I/O, no clock."""

import dataclasses
import enum
import re

import allowed
from config import PINNED_SHA256, TSA_PORT
from found import Database, Found, RememberedIds, WebSecrets
from gpu.inventory import Gpu


class Severity(enum.Enum):
    """How a problem is shown: BLOCKED needs the operator, WAITING passes by itself."""

    BLOCKED = "blocked"
    WAITING = "waiting"


@dataclasses.dataclass(frozen=True)
class Problem:
    """What keeps a part of this unit from its work, as a sentence with the next step."""

    severity: Severity
    text: str


class Keep(enum.Enum):
    """Stands where a part of the machine is to stay as it is, running or not."""

    AS_IS = "as is"


@dataclasses.dataclass(frozen=True)
class ReleasePlan:
    """Which Concourse to have: a tarball at hand, or a version with its checksum to download."""

    version: str
    architecture: str
    sha256: str
    tarball: str


@dataclasses.dataclass(frozen=True)
class GpuPlan:
    """What tasks on this worker may get: the allowed GPUs in index order."""

    gpus: tuple[Gpu, ...]
    nvidia_runtime: str


@dataclasses.dataclass(frozen=True)
class WorkerPlan:
    """How the Concourse worker is to run.

    Attributes:
        private_key: PEM; empty: one is made on the machine and kept.
        wrapped: containerd starts through our launcher, so that our wrapper is its runc.
    """

    name: str
    tsa_hosts: tuple[str, ...]
    tsa_public_keys: tuple[str, ...]
    private_key: str = dataclasses.field(repr=False)
    tags: tuple[str, ...]
    dns_servers: tuple[str, ...]
    wrapped: bool


@dataclasses.dataclass(frozen=True)
class WebPlan:
    """How Concourse's web is to run. `database` None means PostgreSQL on this machine."""

    address: str
    port: int
    external_url: str
    database: Database | None
    secrets: WebSecrets
    worker_keys: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What this unit should be. A part that is None must not be there, Keep stays as it is.

    Attributes:
        gpu_note: what status says of the GPUs, such as `2x NVIDIA`; empty without any.
        remember: what to remember of gpu-device-ids.
    """

    problems: tuple[Problem, ...]
    release: ReleasePlan | None
    gpu: GpuPlan | Keep | None
    worker: WorkerPlan | Keep | None
    web: WebPlan | Keep | None
    gpu_note: str = ""
    remember: RememberedIds = dataclasses.field(default_factory=RememberedIds)


def make(found: Found) -> Plan:
    """Decide what this unit should be."""
    if found.leaving:
        return Plan((), None, None, None, None)
    options = found.options
    release, missing_release = _release(found)
    choice = allowed.choose(found) if options.has_worker else allowed.Choice()
    gpu_problem = allowed.problem_with(found, choice) if options.has_worker else ""
    problems = [Problem(Severity.BLOCKED, text) for text in (missing_release, gpu_problem) if text]
    gpu: GpuPlan | Keep | None = None
    if gpu_problem:
        gpu = Keep.AS_IS
    elif choice.gpus and found.machine.toolkit:
        gpu = GpuPlan(choice.gpus, found.machine.toolkit.path)
    web = _web(found, problems) if options.has_web else None
    worker = _worker(found, choice, gpu, problems) if options.has_worker else None
    if missing_release:
        web, worker = web and Keep.AS_IS, worker and Keep.AS_IS
    if gpu is None and worker is Keep.AS_IS:
        gpu = Keep.AS_IS  # the running containerd may have been started through our launcher
    return Plan(
        problems=tuple(problems),
        release=release,
        gpu=gpu,
        worker=worker,
        web=web,
        gpu_note=allowed.note(choice) if isinstance(gpu, GpuPlan) else "",
        remember=choice.remember,
    )


def _release(found: Found) -> tuple[ReleasePlan | None, str]:
    options, architecture = found.options, found.machine.architecture
    sha256 = options.concourse_sha256
    if not sha256 and architecture == "amd64":
        sha256 = PINNED_SHA256.get(options.concourse_version, "")
    if not sha256 and not found.tarball:
        return None, (
            f"No checksum is known for Concourse {options.concourse_version} on {architecture}: "
            f"juju config {found.application} concourse-sha256=..., or juju attach-resource "
            f"{found.application} concourse=<release tarball>"
        )
    return ReleasePlan(options.concourse_version, architecture, sha256, found.tarball), ""


def _worker(
    found: Found, choice: allowed.Choice, gpu: GpuPlan | Keep | None, problems: list[Problem]
) -> WorkerPlan | Keep | None:
    options, tsa = found.options, found.tsa
    hosts, keys = tsa.hosts, tsa.public_keys
    if options.tsa_hosts:
        hosts, keys = options.tsa_hosts, (options.tsa_public_key,)
    elif options.has_web:
        known = found.web.secrets is not None
        hosts = (f"127.0.0.1:{TSA_PORT}",) if known else ()
        keys = (found.web.tsa_public_key,) if known else ()
    blocked = _worker_blocked(found)
    if blocked:
        problems.append(Problem(Severity.BLOCKED, blocked))
        return Keep.AS_IS
    if not hosts:
        problems.append(Problem(Severity.WAITING, _missing_tsa(found)))
        related = tsa.related or options.has_web
        return Keep.AS_IS if related else None
    if gpu is Keep.AS_IS:
        return Keep.AS_IS
    return WorkerPlan(
        name=found.name,
        tsa_hosts=hosts,
        tsa_public_keys=keys,
        private_key=options.worker_private_key,
        tags=allowed.tags(found, choice) if gpu else options.tags,
        dns_servers=options.container_dns_servers,
        wrapped=gpu is not None,
    )


def _missing_tsa(found: Found) -> str:
    tsa = found.tsa
    if found.options.has_web:
        return "Waiting for the web's keys from the leader"
    if tsa.refused:
        return f"Waiting for usable data from web: {tsa.refused[0]}"
    if tsa.related:
        return "Waiting for the web unit to publish its TSA address and key"
    return (
        "Waiting for web-tsa: juju integrate <web application>:web-tsa "
        f"{found.application}:worker-tsa"
    )


def _worker_blocked(found: Found) -> str:
    options, machine = found.options, found.machine
    if machine.rival:
        return (
            f"{machine.rival} owns /run/containerd/containerd.sock, which Concourse needs: "
            f"stop and disable it, or use another machine"
        )
    if options.enable_gpu and machine.foreign_runc:
        return f"{machine.foreign_runc} would be used in place of the GPU wrapper: remove it"
    if options.tsa_hosts and found.tsa.related:
        return (
            f"tsa-host is set while a web is related: juju config {found.application} --reset "
            "tsa-host,tsa-public-key, or remove the relation"
        )
    # What a tarball holds is known once it has been unpacked.
    ours = found.installed if found.tarball else options.concourse_version
    for version in found.tsa.versions:
        if ours and not works_with(ours, version):
            how = f"juju config {found.application} concourse-version={version}"
            if found.tarball:
                how = f"juju attach-resource {found.application} concourse=<tarball of {version}>"
            return f"Web runs Concourse {version}, which gives no work to {ours}: {how}"
    return ""


def works_with(worker: str, web: str) -> bool:
    """Whether a web of one Concourse release schedules on a worker of another.

    The worker's API version must have the same major and be no older (concourse 8.2.5
    atc/worker/pool.go:395-425): 2.4 up to 7.9, 2.5 up to 8.2, 3.0 from 8.3 on.
    """

    def api(version: str) -> tuple[int, int]:
        numbers = [int(n) for n in re.findall(r"[0-9]{1,9}", version)[:2]]
        if numbers >= [8, 3]:
            return 3, 0
        return (2, 5) if numbers >= [7, 10] else (2, 4)

    return api(worker)[0] == api(web)[0] and api(worker) >= api(web)


def _web(found: Found, problems: list[Problem]) -> WebPlan | Keep | None:
    options, web = found.options, found.web
    if web.database is None:
        if web.database_related:
            text = "Waiting for the database's address and credentials"
            problems.append(Problem(Severity.WAITING, text))
            return Keep.AS_IS
        if options.deployment_mode == "web":
            text = (
                f"Waiting for a database: juju integrate {found.application}:postgresql "
                "postgresql:database"
            )
            problems.append(Problem(Severity.WAITING, text))
            return None
    if web.secrets is None:
        text = "Waiting for the leader to make the web's keys"
        problems.append(Problem(Severity.WAITING, text))
        return Keep.AS_IS
    if not found.address:
        problems.append(Problem(Severity.WAITING, "Waiting for Juju to tell this unit's address"))
        return Keep.AS_IS
    host = f"[{found.address}]" if ":" in found.address else found.address
    return WebPlan(
        address=found.address,
        port=options.web_port,
        external_url=options.external_url or f"http://{host}:{options.web_port}",
        database=web.database,
        secrets=web.secrets,
        worker_keys=web.worker_keys,
    )
