# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Options, GPUs found and relation data -> what this unit should be. Pure: no I/O, no clock."""

import dataclasses
import enum
import re
import typing

import allowed
from config import PINNED_SHA256, TSA_PORT, WEB_REQUEST_TIMEOUT
from found import Database, Found, RememberedIds, WebSecrets
from gpu.inventory import Gpu, Vendor

# Seconds. Concourse gives up a call to a worker after 300, by web and by the worker's own clock
# (8.2.5 CONCOURSE_GARDEN_REQUEST_TIMEOUT, CONCOURSE_CONTAINERD_REQUEST_TIMEOUT), and the sentence
# that says why a task got no GPU would be lost.
_CONCOURSE_TIMEOUT: typing.Final = 300
_LONGEST_WAIT: typing.Final = 280
# What is left for the rest of the call where its end is known.
_REST: typing.Final = 60


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
    """What tasks on this worker may get: the allowed GPUs in index order, all of one vendor.

    Attributes:
        nvidia_runtime: absolute path of nvidia-container-runtime; empty for other vendors' GPUs.
        allocation: `exclusive` or `shared`.
        gpus_per_task: how many GPUs, or MIG devices, a task gets that does not say.
        wait_timeout: how long a task may wait for them, in seconds, Concourse's patience regarded.
        hijack_limit: how long a hijack may keep them after the step, in seconds; 0: no limit.
        privileged_tasks: `no-gpu` or `gpu`.
        driver_capabilities: what NVIDIA_DRIVER_CAPABILITIES is to say.
    """

    gpus: tuple[Gpu, ...]
    nvidia_runtime: str
    allocation: str = "exclusive"
    gpus_per_task: int = 1
    wait_timeout: int = 240
    hijack_limit: int = 1800
    privileged_tasks: str = "no-gpu"
    driver_capabilities: str = "compute,utility"


@dataclasses.dataclass(frozen=True)
class WorkerPlan:
    """How the Concourse worker is to run.

    Attributes:
        private_key: PEM; empty: one is made on the machine and kept.
        wrapped: containerd starts through our launcher, so that our wrapper is its runc.
        request_timeout: how long a call to containerd may last, in seconds; 0: Concourse's own.
        max_active_tasks: at how many tasks the scheduler is to hold back more; 0: at none.
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


@dataclasses.dataclass(frozen=True)
class WebPlan:
    """How Concourse's web is to run.

    Attributes:
        database: None means PostgreSQL on this machine.
        queues_tasks: its scheduler holds tasks back until a worker has room for them.
    """

    address: str
    port: int
    external_url: str
    database: Database | None
    secrets: WebSecrets
    worker_keys: tuple[str, ...]
    queues_tasks: bool = False


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
    texts = missing_release, gpu_problem or allowed.none_left(found, choice)
    problems = [Problem(Severity.BLOCKED, text) for text in texts if text]
    gpu: GpuPlan | Keep | None = None
    if gpu_problem:
        gpu = Keep.AS_IS
    elif choice.gpus:
        gpu = _gpu(found, choice)
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
        gpu_note=allowed.note(found, choice) + _cap_note(found)
        if isinstance(gpu, GpuPlan)
        else "",
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


def _gpu(found: Found, choice: allowed.Choice) -> GpuPlan:
    options, toolkit = found.options, found.machine.toolkit
    by_runtime = choice.gpus[0].vendor is Vendor.NVIDIA
    return GpuPlan(
        gpus=choice.gpus,
        nvidia_runtime=toolkit.path if by_runtime and toolkit else "",
        allocation=options.gpu_allocation,
        gpus_per_task=options.gpus_per_task,
        wait_timeout=min(options.gpu_wait_timeout, _longest_wait(found)),
        hijack_limit=60 * options.hijack_gpu_limit,
        privileged_tasks=options.privileged_tasks,
        driver_capabilities=options.nvidia_driver_capabilities,
    )


def _web_timeout(found: Found) -> int:
    """Seconds after which the worker's web gives up a call to it; 0 if unknown."""
    if found.options.tsa_hosts:
        return 0
    return WEB_REQUEST_TIMEOUT if found.options.has_web else found.tsa.request_timeout


def _longest_wait(found: Found) -> int:
    """How long a task may wait at most, so that its refusal reaches the build, in seconds."""
    timeout = _web_timeout(found)
    return timeout - _REST if timeout else _LONGEST_WAIT


def _cap_note(found: Found) -> str:
    """What the operator must know where tasks wait less long than gpu-wait-timeout says."""
    longest, timeout = _longest_wait(found), _web_timeout(found)
    if found.options.gpu_wait_timeout <= longest:
        return ""
    why = f"web's request-timeout is {timeout}" if timeout else "web names no request-timeout"
    return f", gpu-wait-timeout capped at {longest}: {why}"


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
    timeout = max(gpu.wait_timeout + _REST, _CONCOURSE_TIMEOUT) if gpu else 0
    pool = allowed.pool(found, choice)
    return WorkerPlan(
        name=found.name,
        tsa_hosts=hosts,
        tsa_public_keys=keys,
        private_key=options.worker_private_key,
        tags=allowed.tags(found, pool) if gpu else options.tags,
        dns_servers=options.container_dns_servers,
        wrapped=gpu is not None,
        request_timeout=timeout,
        max_active_tasks=_max_active_tasks(found, gpu, pool) if gpu else 0,
    )


def _max_active_tasks(found: Found, gpu: GpuPlan, pool: allowed.Choice) -> int:
    if gpu.allocation == "shared" or not gpu.gpus_per_task or not _queues_tasks(found):
        return 0
    return max(1, len(allowed.devices(pool.gpus)) // gpu.gpus_per_task)


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
    ours = _version(found)
    for version in found.tsa.versions:
        if ours and not works_with(ours, version):
            how = f"juju config {found.application} concourse-version={version}"
            if found.tarball:
                how = f"juju attach-resource {found.application} concourse=<tarball of {version}>"
            return f"Web runs Concourse {version}, which gives no work to {ours}: {how}"
    return ""


def _version(found: Found) -> str:
    """Which Concourse will run; empty for a tarball, whose is known once it is unpacked."""
    return found.installed if found.tarball else found.options.concourse_version


def works_with(worker: str, web: str) -> bool:
    """Whether a web of one Concourse release schedules on a worker of another.

    The worker's API version must have the same major and be no older (concourse 8.2.5
    atc/worker/pool.go:395-425): 2.4 up to 7.9, 2.5 up to 8.2, 3.0 from 8.3 on.
    """

    def api(version: str) -> tuple[int, int]:
        if _numbers(version) >= [8, 3]:
            return 3, 0
        return (2, 5) if _numbers(version) >= [7, 10] else (2, 4)

    return api(worker)[0] == api(web)[0] and api(worker) >= api(web)


def _queues_tasks(found: Found) -> bool:
    """Whether the Concourse here knows a limit of tasks for each worker, as 8.3 and later do.

    Those before have one for all workers, which those without GPUs would be held to as well.
    """
    return _numbers(_version(found)) >= [8, 3]


def _numbers(version: str) -> list[int]:
    """Major and minor of a version; empty for one that is not known."""
    return [int(number) for number in re.findall(r"[0-9]{1,9}", version)[:2]]


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
        queues_tasks=_queues_tasks(found),
    )
