# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the runners of this unit should be, and what status says of them. Pure."""

import collections.abc
import dataclasses
import hashlib
import typing

from ci.runners import github, messages
from ci.runners.daemon_unit import Report
from ci.runners.labels import Facts
from ci.runners.options import RunnersOptions, chosen
from ci.runners.service import Fault
from ci.runners.settings import Settings
from gpu_agent.model.inventory import Gpu, memory_gib
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from options.part import Part
from plan import labels, status
from plan.ci_plan import CiPlan, CiStatus
from plan.gpus import Choice
from plan.messages import Line
from plan.model import Plan
from plan.state import UnitState

# Days after which status warns, and for which GitHub gives jobs to a program that misses a release
# (github.com/actions/runner/issues/4392).
WARNED: typing.Final = 20
_GIVEN_UP: typing.Final = 30


@dataclasses.dataclass(frozen=True)
class Pinned:
    """A program that the charm may not replace by a newer release, though GitHub wants one.

    Attributes:
        by_resource: it is the resource; else the one of runner-download.
        days: how old the release is.
    """

    by_resource: bool
    days: int


@dataclasses.dataclass(frozen=True)
class Found:
    """What was found of runners on this unit.

    Attributes:
        program: absolute path of the program that new runners have; or empty.
        pinned: a program that is too old soon; None: there is no such, or its age is not known.
        runs: whether the daemon runs.
        report: what the daemon reported last.
        relations: endpoint and application of the relations that do nothing.
        model: the id of the Juju model.
        dispatch: path of the charm's dispatch.
        has_runc: whether the machine has a runc, by which the self-test makes containers.
        proxies: the model's.
    """

    program: str = ""
    pinned: Pinned | None = None
    runs: bool = False
    report: Report = Report()
    relations: tuple[tuple[str, str], ...] = ()
    model: str = ""
    dispatch: str = ""
    has_runc: bool = True
    proxies: collections.abc.Mapping[str, str] = dataclasses.field(
        default_factory=dict[str, str], repr=False
    )


def found(state: UnitState) -> Found:
    """Return what was found of runners on this unit."""
    return typing.cast(Found, state.ci)


def planned(plan: Plan) -> Settings | Keep | None:
    """Return the plan for the runners."""
    return typing.cast("Settings | Keep | None", plan.ci.own)


def make(
    state: UnitState, choice: Choice, gpu: GpuPlan | Keep | None, service: str, name: str
) -> CiPlan:
    """Return what the runners of this unit should be.

    Args:
        state: what was found.
        choice: the GPUs that gpu-device-ids allows here.
        gpu: what tasks may get; None: no GPU; Keep: unchanged.
        service: the CI service's name in settings.
        name: its name for people.
    """
    own, seen = chosen(state.options), found(state)
    if {Part.WORKER, Part.RELEASE} & state.frozen:
        return CiPlan(Keep.AS_IS, takes_jobs=True)
    problem = _lacks(state, own, seen, service, name)
    if problem:
        return CiPlan(None, takes_jobs=seen.runs, problems=(problem,))
    if gpu is Keep.AS_IS:
        return CiPlan(Keep.AS_IS, takes_jobs=True)
    options, given = state.options, choice.gpus if gpu else ()
    each = options.gpus_per_task if given else 0
    settings = Settings(
        service=service,
        url=own.url,
        scope=own.scope,
        group=own.group,
        credential=dict(own.credential),
        prefix=_prefix(state.unit, seen.model),
        program=seen.program,
        most=own.most or max(1, len(given) // max(1, each)),
        per_runner=each,
        # GitHub keeps labels in lower case.
        labels=tuple(tag.lower() for tag in options.extra_tags),
        gpus={one.uuid: _facts(one) for one in given},
        cuda=state.inventory.cuda if given and state.inventory else "",
        driver=state.inventory.driver if given and state.inventory else "",
        rests=state.rests,
        limits=own.limits,
        proxies=dict(seen.proxies),
        dispatch=seen.dispatch,
        unit=state.unit,
        engine=options.container_engines.default[0] if own.containers else "",
    )
    return CiPlan(settings, takes_jobs=True)


def _lacks(
    state: UnitState, own: RunnersOptions, seen: Found, service: str, name: str
) -> Line | None:
    application = state.application
    if not own.url:
        remedy = f"juju config {application} runner-url=<URL of {name}>"
        return messages.line("no-runner-service", lacks="runner-url", remedy=remedy)
    if service == github.NAME and not own.scope:
        remedy = f"juju config {application} runner-scope=<OWNER/REPOSITORY or ORGANISATION>"
        return messages.line("no-runner-service", lacks="runner-scope", remedy=remedy)
    if clash := _clash(own, state):
        return messages.line(clash, **state.names)
    is_token = "api-token" in own.credential
    if not own.credential or (service != github.NAME and not is_token):
        remedy = (
            f"juju add-secret <secret> api-token=<token>, juju grant-secret <secret> {application}"
            f", juju config {application} runner-secret=<its URI>"
        )
        return messages.line("no-runner-service", lacks="runner-secret", remedy=remedy)
    if not seen.program:
        return messages.line("no-runner-program", service=name, **state.names)
    return None


def _clash(own: RunnersOptions, state: UnitState) -> str:
    """Return the code of what two options say that cannot be together; or empty."""
    if own.group and "/" in own.scope:
        return "runner-group-of-repository"
    if own.containers and not state.options.container_engines.default:
        return "runner-containers-without-engine"
    return ""


def _prefix(unit: str, model: str) -> str:
    """Return what begins the names of this unit's runners; two models may have the same units."""
    return f"{unit.replace('/', '-')}-{hashlib.sha256(model.encode()).hexdigest()[:6]}"


def _facts(gpu: Gpu) -> Facts:
    return Facts(str(gpu.vendor), labels.model_name(gpu), memory_gib(gpu))


def status_of(state: UnitState, wanted: Plan, name: str, *, rests: bool) -> CiStatus:
    """Return what the runners add to the unit's status.

    Args:
        state: what was found, and what failed.
        wanted: what this unit should be.
        name: the CI service's name for people.
        rests: whether the unit is drained or paused.
    """
    own, seen = chosen(state.options), found(state)
    why = f"with ci-system={state.options.ci_system}"
    notes = [status.relation_idle(state, *one, why) for one in seen.relations]
    if seen.pinned:
        notes.append(_of_age(seen.pinned, state.application))
    lines = list[Line]()
    if isinstance(wanted.gpu, GpuPlan) and not seen.has_runc:
        notes += (messages.line("self-test-without-runc"),)
    if own.containers:
        notes += (messages.line("runner-containers-trusted"),)
    if isinstance(planned(wanted), Settings):
        lines += _of_report(seen.report, own, name, state.application)
        if not seen.runs and not rests:
            lines.append(messages.line("runners-down"))
    return CiStatus(ready="Runners ready", lines=tuple(lines), notes=tuple(notes))


def _of_age(pinned: Pinned, application: str) -> Line:
    remedy = f"juju config {application} runner-download= lets the charm follow GitHub"
    if pinned.by_resource:
        remedy = f"juju attach-resource {application} runner=<file of the current release>"
    code = "runner-program-old" if pinned.days <= _GIVEN_UP else "runner-program-too-old"
    return messages.line(code, days=pinned.days, remedy=remedy)


def _of_report(report: Report, own: RunnersOptions, name: str, application: str) -> list[Line]:
    is_token = "api-token" in own.credential
    values = {
        "url": own.url, "scope": own.scope or "the whole server", "service": name,
        "text": report.text, "application": application,
        "fields": "api-token=<new token>" if is_token else "private-key#file=<new key>",
    }  # fmt: skip
    codes = {
        Fault.CREDENTIAL.value: "runner-token-refused",
        Fault.FORBIDDEN.value: "runner-token-too-weak",
        Fault.NOT_FOUND.value: "runner-scope-unknown",
        Fault.STRANGE.value: "runner-service-strange",
        Fault.CLOCK.value: "runner-clock-wrong",
        Fault.UNREACHABLE.value: "runner-service-away",
        Fault.BUSY.value: "runner-service-away",
    }
    if report.fault:
        return [messages.line(codes.get(report.fault, "runner-service-away"), **values)]
    return [messages.line("runner-cannot-begin", **values)] if report.text else []
