# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What Concourse's web and worker on this unit should be. Pure."""

import urllib.parse

from ci.concourse.options import web_values
from ci.concourse.options.table import chosen
from ci.concourse.plan import addresses, messages
from ci.concourse.plan import release as concourse_release
from ci.concourse.plan.model import ConcoursePlan, WebPlan, WorkerPlan, found
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
from options.part import Part
from plan import gpus
from plan import labels as tags
from plan.ci_plan import CiPlan, WaitLimit
from plan.messages import Line
from plan.state import UnitState


def make(
    state: UnitState, choice: gpus.Choice, gpu: GpuPlan | Keep | None, unusable: gpus.Unusable
) -> CiPlan:
    """Return what Concourse on this unit should be."""
    options, frozen = state.options, state.frozen
    problems: list[Line] = []
    release = concourse_release.make(state, problems)
    web_plan = worker_plan = None
    if options.has_web:
        web_plan = Keep.AS_IS if Part.WEB in frozen else web(state, problems)
    if options.has_worker:
        as_is = Part.WORKER in frozen
        worker_plan = Keep.AS_IS if as_is else worker(state, choice, gpu, unusable, problems)
    if release is None or Part.RELEASE in frozen:
        web_plan, worker_plan = web_plan and Keep.AS_IS, worker_plan and Keep.AS_IS
    folders = chosen(options).worker.folders if options.has_worker else ()
    return CiPlan(
        own=ConcoursePlan(release, worker_plan, web_plan),
        takes_jobs=worker_plan is not None,
        problems=tuple(problems),
        folders=Keep.AS_IS if Part.WORKER in frozen else folders,
        # The running containerd may have been started through our launcher.
        needs_runtime=worker_plan is Keep.AS_IS,
    )


def longest_wait(state: UnitState) -> WaitLimit:
    """Return how long a task may wait, so that its refusal reaches the build."""
    timeout = _web_timeout(state)
    why = f"web's request-timeout is {timeout} s" if timeout else "web names no request-timeout"
    return WaitLimit(_longest_wait(state), why)


def _longest_wait(state: UnitState) -> int:
    timeout = _web_timeout(state)
    return timeout - REST_OF_CALL if timeout else LONGEST_WAIT


def _web_timeout(state: UnitState) -> int:
    """Seconds after which the worker's web gives up a call to it; 0 if unknown."""
    if chosen(state.options).worker.tsa_hosts:
        return 0
    return WEB_REQUEST_TIMEOUT if state.options.has_web else found(state).tsa.request_timeout


def worker(
    state: UnitState,
    choice: gpus.Choice,
    gpu: GpuPlan | Keep | None,
    unusable: gpus.Unusable,
    problems: list[Line],
) -> WorkerPlan | Keep | None:
    """Return how the worker should run, and add what prevents that to `problems`.

    A worker whose GPUs are all unusable now gets the tag `gpu-unusable`, since it would refuse
    GPU tasks.
    """
    options, tsa, own = state.options, found(state).tsa, chosen(state.options).worker
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
    wait = min(options.gpu_wait_timeout, _longest_wait(state))
    return WorkerPlan(
        name=found(state).worker_name,
        tsa_hosts=hosts,
        tsa_public_keys=keys,
        private_key=own.private_key,
        tags=_tags(state, pool, gpu),
        settings=own.settings,
        wrapped=gpu is not None or bool(own.folders),
        request_timeout=max(wait + REST_OF_CALL, REQUEST_TIMEOUT) if gpu else 0,
        max_active_tasks=_max_active_tasks(state, gpu, pool) if isinstance(gpu, GpuPlan) else 0,
        team=own.team,
        certificates=own.certificates,
    )


def _tags(state: UnitState, pool: gpus.Choice, gpu: GpuPlan | Keep | None) -> tuple[str, ...]:
    if isinstance(gpu, GpuPlan):
        return tags.of_gpus(state, pool)
    return tags.instead(state, tags.NO_GPU_USABLE) if gpu else state.options.extra_tags


def _way_to_web(state: UnitState) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Addresses and host keys of the TSA that is this worker's; both empty while unknown."""
    own, web = chosen(state.options).worker, found(state).web
    if own.tsa_hosts:
        return own.tsa_hosts, tuple(own.tsa_public_key.splitlines())
    if not state.options.has_web:
        return found(state).tsa.hosts, found(state).tsa.public_keys
    if web.secrets is None:
        return (), ()
    shown = filter(None, (web.tsa_public_key, web.tsa_next_public_key))
    return (f"127.0.0.1:{TSA_PORT}",), tuple(shown)


def _max_active_tasks(state: UnitState, gpu: GpuPlan, pool: gpus.Choice) -> int:
    if gpu.allocation == "shared" or not gpu.gpus_per_task or not _queues_tasks(state):
        return 0
    return max(1, len(inventory.devices(pool.gpus)) // gpu.gpus_per_task)


def _missing_tsa(state: UnitState) -> Line:
    tsa = found(state).tsa
    if tsa.refused:
        return messages.line("unusable-web-data", refused=tsa.refused[0], **state.names)
    return messages.line("no-web-data" if tsa.related else "no-web", **state.names)


def _against_worker(state: UnitState) -> Line | None:
    options, rivals, tsa = state.options, found(state).rivals, found(state).tsa
    own = chosen(options).worker
    if rivals.containerd:
        return messages.line("other-containerd", rival=rivals.containerd, **state.names)
    if (options.enable_gpu or own.folders) and rivals.runc:
        return messages.line("foreign-runc", path=rivals.runc)
    if tsa.related and (own.tsa_hosts or options.has_web):
        code = "own-web-and-another" if options.has_web else "two-ways-to-web"
        return messages.line(code, **state.names)
    if tsa.webs:
        return messages.line("several-webs", webs=" and ".join(tsa.webs), **state.names)
    return concourse_release.against_web(state)


def _knows_key_forms(state: UnitState) -> bool:
    """Whether the Concourse here knows an encryption key in the form that it is given in."""
    keys, ours = chosen(state.options).web.encryption, concourse_release.version(state)
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
    return not found(state).web.database_related and not is_alone


def may_use_local(web: WebPlan | Keep | None) -> bool:
    """Whether web keeps its data in the database on this machine, or may do so."""
    return web is Keep.AS_IS or (web is not None and web.database is None)


def _against_web(state: UnitState) -> Line | None:
    web = found(state).web
    if web.database_related and web.database is None:
        if refused := web.database_refused:
            return messages.line("unusable-database-data", refused=refused, **state.names)
        withheld = web.database_withheld
        return messages.line("database-secret-not-granted" if withheld else "no-database-data")
    if web.secrets_lost:
        return messages.line("web-keys-lost", **state.names)
    if not _knows_key_forms(state):
        ours = concourse_release.version(state)
        return messages.line("key-form-unknown", ours=ours, **state.names)
    return _against_tls(state)


def _against_tls(state: UnitState) -> Line | None:
    options, web = chosen(state.options).web, found(state).web
    if not _tls(state):
        if why := web.certificate_refused:
            return messages.line("certificate-refused", why=why, **state.names)
        return messages.line("no-certificate") if web.certificates_related else None
    if (url := options.external_url).startswith("http:"):
        return messages.line("url-without-tls", url=url, **state.names)
    if options.tls_port == options.port:
        return messages.line("tls-port-taken", port=options.port, **state.names)
    return None


def _tls(state: UnitState) -> Tls | None:
    """The certificate of web: the operator's own before one that another application signs."""
    return chosen(state.options).web.tls or found(state).web.certificate


def _url(state: UnitState) -> str:
    """Where people find web."""
    options, public = chosen(state.options).web, addresses.public(state)
    host = f"[{public}]" if ":" in public else public
    if not _tls(state):
        return f"http://{host}:{options.port}"
    return f"https://{host}" + (f":{options.tls_port}" if options.tls_port != 443 else "")


def names(state: UnitState) -> tuple[str, ...]:
    """What web's certificate is to be for: names and addresses that people and others use."""
    url = urllib.parse.urlsplit(chosen(state.options).web.external_url).hostname or ""
    those = (url, addresses.public(state), addresses.own(state))
    return tuple(dict.fromkeys(name for name in those if name))


def web(state: UnitState, problems: list[Line]) -> WebPlan | Keep | None:
    """Return how web should run, and add what prevents that to `problems`."""
    options, web = state.options, found(state).web
    own = chosen(options).web
    if _lacks_database(state):
        if not options.has_worker:
            problems.append(messages.line("no-database", **state.names))
            return None
        about = {"units": state.planned_units, **state.names}
        problems.append(messages.line("no-shared-database", **about))
        return Keep.AS_IS
    wrong = _against_web(state)
    if wrong or web.secrets is None:
        problems.append(wrong or messages.line("no-web-keys"))
        return Keep.AS_IS
    address = addresses.own(state)
    problems += addresses.missing(state)
    if not address:
        return Keep.AS_IS
    return WebPlan(
        address=address,
        port=own.port,
        external_url=own.external_url or _url(state),
        database=web.database,
        secrets=web.secrets,
        worker_keys=web.worker_keys,
        wanted=own,
        tls=_tls(state),
        queues_tasks=_queues_tasks(state),
        tsa_addresses=tuple(pair for pair in addresses.of_relations(state) if pair[1]),
    )
