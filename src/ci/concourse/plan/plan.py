# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What Concourse's web and worker on this unit should be. Pure."""

import urllib.parse

from ci.concourse.options import web_values
from ci.concourse.plan import addresses
from ci.concourse.plan import release as concourse_release
from ci.concourse.plan.model import WebPlan, WorkerPlan
from ci.concourse.upstream import (
    LONGEST_WAIT,
    REQUEST_TIMEOUT,
    REST_OF_CALL,
    TSA_PORT,
    WEB_REQUEST_TIMEOUT,
    knows_key_forms,
    limits_each_worker,  # fmt: skip
)
from gpu_agent.model import inventory
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from options.certificates import Tls
from plan import gpus
from plan import labels as tags
from plan.problems import Problem, Reason, problem
from plan.state import UnitState


def web_timeout(state: UnitState) -> int:
    """Seconds after which the worker's web gives up a call to it; 0 if unknown."""
    if state.options.worker.tsa_hosts:
        return 0
    return WEB_REQUEST_TIMEOUT if state.options.has_web else state.tsa.request_timeout


def longest_wait(state: UnitState) -> int:
    """How long a task may wait at most, so that its refusal reaches the build, in seconds."""
    timeout = web_timeout(state)
    return timeout - REST_OF_CALL if timeout else LONGEST_WAIT


def wait_timeout(state: UnitState) -> int:
    """How long a task waits for its GPUs here, in seconds."""
    return min(state.options.gpu_wait_timeout, longest_wait(state))


def worker(
    state: UnitState,
    choice: gpus.Choice,
    gpu: GpuPlan | Keep | None,
    unusable: gpus.Unusable,
    problems: list[Problem],
) -> WorkerPlan | Keep | None:
    """Return how the worker should run, and add what prevents that to `problems`.

    A worker whose GPUs are all unusable now gets the tag `gpu-unusable`, since it would refuse
    GPU tasks.
    """
    options, tsa = state.options, state.tsa
    hosts, keys = _way_to_web(state)
    if wrong := _against_worker(state):
        problems.append(wrong)
        return Keep.AS_IS
    if options.has_web and _lacks_database(state):
        return Keep.AS_IS
    if not hosts:
        if not options.has_web:  # else web itself has said so
            problems.append(_missing_tsa(state))
        return Keep.AS_IS if tsa.related or options.has_web else None
    if gpu is Keep.AS_IS and len(unusable) < max(1, len(state.handed_out)):
        return Keep.AS_IS
    pool = gpus.pool(state, choice)
    return WorkerPlan(
        name=state.worker_name,
        tsa_hosts=hosts,
        tsa_public_keys=keys,
        private_key=options.worker.private_key,
        tags=_tags(state, pool, gpu),
        settings=options.worker.settings,
        wrapped=gpu is not None or bool(options.task_folders),
        request_timeout=max(wait_timeout(state) + REST_OF_CALL, REQUEST_TIMEOUT) if gpu else 0,
        max_active_tasks=_max_active_tasks(state, gpu, pool) if isinstance(gpu, GpuPlan) else 0,
        team=options.worker.team,
        certificates=options.worker.certificates,
    )


def _tags(state: UnitState, pool: gpus.Choice, gpu: GpuPlan | Keep | None) -> tuple[str, ...]:
    if isinstance(gpu, GpuPlan):
        return tags.of_gpus(state, pool)
    return tags.instead(state, tags.NO_GPU_USABLE) if gpu else state.options.worker.tags


def _way_to_web(state: UnitState) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Addresses and host keys of the TSA that is this worker's; both empty while unknown."""
    options, web = state.options, state.web
    if options.worker.tsa_hosts:
        return options.worker.tsa_hosts, tuple(options.worker.tsa_public_key.splitlines())
    if not options.has_web:
        return state.tsa.hosts, state.tsa.public_keys
    if web.secrets is None:
        return (), ()
    shown = filter(None, (web.tsa_public_key, web.tsa_next_public_key))
    return (f"127.0.0.1:{TSA_PORT}",), tuple(shown)


def _max_active_tasks(state: UnitState, gpu: GpuPlan, pool: gpus.Choice) -> int:
    if gpu.allocation == "shared" or not gpu.gpus_per_task or not _queues_tasks(state):
        return 0
    return max(1, len(inventory.devices(pool.gpus)) // gpu.gpus_per_task)


def _missing_tsa(state: UnitState) -> Problem:
    if state.tsa.refused:
        return problem(Reason.NO_USABLE_TSA_DATA, refused=state.tsa.refused[0])
    return Problem(Reason.NO_TSA_DATA if state.tsa.related else Reason.NO_TSA)


def _against_worker(state: UnitState) -> Problem | None:
    options, machine, tsa = state.options, state.machine, state.tsa
    if machine.rival:
        return problem(Reason.RIVAL, rival=machine.rival)
    if (options.enable_gpu or options.task_folders) and machine.foreign_runc:
        return problem(Reason.FOREIGN_RUNC, path=machine.foreign_runc)
    if tsa.related and (options.worker.tsa_hosts or options.has_web):
        own = options.has_web
        return Problem(Reason.OWN_WEB_AND_ANOTHER if own else Reason.TWO_WAYS_TO_WEB)
    if tsa.webs:
        return problem(Reason.SEVERAL_WEBS, webs=" and ".join(tsa.webs))
    return concourse_release.against_web(state)


def _knows_key_forms(state: UnitState) -> bool:
    """Whether the Concourse here knows an encryption key in the form that it is given in."""
    keys, ours = state.options.web.encryption, concourse_release.version(state)
    forms = {web_values.key_form(key) for key in (keys.new, keys.old) if key}
    return not ours or forms <= {""} or knows_key_forms(ours)


def _queues_tasks(state: UnitState) -> bool:
    """Whether the Concourse here knows a limit of tasks for each worker, as 8.3 and later do.

    Those before have one for all workers, which those without GPUs would be held to as well.
    """
    return limits_each_worker(concourse_release.version(state))


def _lacks_database(state: UnitState) -> bool:
    """Whether web has none, and may have none of its own: another unit would not share that."""
    is_alone = state.options.has_worker and state.planned_units == 1
    return not state.web.database_related and not is_alone


def may_use_local(web: WebPlan | Keep | None) -> bool:
    """Whether web keeps its data in the database on this machine, or may do so."""
    return web is Keep.AS_IS or (web is not None and web.database is None)


def _against_web(state: UnitState) -> Problem | None:
    web = state.web
    if web.database_related and web.database is None:
        if web.database_refused:
            return problem(Reason.NO_USABLE_DATABASE_DATA, refused=web.database_refused)
        withheld = web.database_withheld
        return Problem(Reason.DATABASE_NOT_GRANTED if withheld else Reason.NO_DATABASE_DATA)
    if web.secrets_lost:
        return Problem(Reason.WEB_KEYS_LOST)
    if not _knows_key_forms(state):
        return problem(Reason.KEY_FORM_UNKNOWN, ours=concourse_release.version(state))
    return _against_tls(state)


def _against_tls(state: UnitState) -> Problem | None:
    options = state.options.web
    if not _tls(state):
        if why := state.web.certificate_refused:
            return problem(Reason.CERTIFICATE_REFUSED, why=why)
        waits = state.web.certificates_related
        return Problem(Reason.NO_CERTIFICATE) if waits else None
    if options.external_url.startswith("http:"):
        return problem(Reason.URL_WITHOUT_TLS, url=options.external_url)
    if options.tls_port == options.port:
        return problem(Reason.TLS_PORT_TAKEN, port=options.port)
    return None


def _tls(state: UnitState) -> Tls | None:
    """The certificate of web: the operator's own before one that another application signs."""
    return state.options.web.tls or state.web.certificate


def _url(state: UnitState) -> str:
    """Where people find web."""
    options, public = state.options.web, addresses.public(state)
    host = f"[{public}]" if ":" in public else public
    if not _tls(state):
        return f"http://{host}:{options.port}"
    return f"https://{host}" + (f":{options.tls_port}" if options.tls_port != 443 else "")


def names(state: UnitState) -> tuple[str, ...]:
    """What web's certificate is to be for: names and addresses that people and others use."""
    url = urllib.parse.urlsplit(state.options.web.external_url).hostname or ""
    found = (url, addresses.public(state), addresses.own(state))
    return tuple(dict.fromkeys(name for name in found if name))


def web(state: UnitState, problems: list[Problem]) -> WebPlan | Keep | None:
    """Return how web should run, and add what prevents that to `problems`."""
    options, web = state.options, state.web
    if _lacks_database(state):
        if not options.has_worker:
            problems.append(Problem(Reason.NO_DATABASE))
            return None
        problems.append(problem(Reason.SEVERAL_WITHOUT_DATABASE, units=state.planned_units))
        return Keep.AS_IS
    wrong = _against_web(state)
    if wrong or web.secrets is None:
        problems.append(wrong or Problem(Reason.NO_WEB_KEYS))
        return Keep.AS_IS
    own = addresses.own(state)
    problems += addresses.missing(state)
    if not own:
        return Keep.AS_IS
    return WebPlan(
        address=own,
        port=options.web.port,
        external_url=options.web.external_url or _url(state),
        database=web.database,
        secrets=web.secrets,
        worker_keys=web.worker_keys,
        wanted=options.web,
        tls=_tls(state),
        queues_tasks=_queues_tasks(state),
        tsa_addresses=tuple(pair for pair in addresses.of_relations(state) if pair[1]),
    )
