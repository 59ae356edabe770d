# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the operator reads in juju status; messages.py has what stands for a problem. Pure.

Facts only, nothing that changes by the minute but how far a drain has come; what the operator must
do is Blocked and names the next step, what passes by itself is Waiting.
"""

import dataclasses
import enum
import re
import typing

from ci.concourse.plan import plan as concourse
from ci.concourse.plan import registration_status as registration
from ci.concourse.plan.model import WorkerPlan
from gpu_agent.diagnosis import states as host_states
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from plan import diagnosis, draining, gpus
from plan import gpu_offers as offers
from plan.messages import BLOCKED, WAITING
from plan.model import Plan
from plan.problems import Problem, Reason
from plan.state import Quarantine, UnitState

# So many refusals are said; one hostile application may have many units.
_REFUSED: typing.Final = 3


class Kind(enum.Enum):
    """Juju's words for the state of a unit."""

    BLOCKED = "blocked"
    WAITING = "waiting"
    MAINTENANCE = "maintenance"
    ACTIVE = "active"


@dataclasses.dataclass(frozen=True)
class Line:
    """One candidate for the unit's status; Juju shows the worst."""

    kind: Kind
    text: str


@dataclasses.dataclass(frozen=True)
class Running:
    """Which of this unit's services answered just now, and what else is told of the worker.

    Attributes:
        certificate: the last day of web's certificate if that is near, and whether it is over.
        lost_database: where web's database can't be reached, and why; or empty.
        connected: web has let it in.
        copies: its volumes are copies.
        watch: the GPUs' watch, where there is to be one.
        aside: databases on this machine that had to make place for a backup's.
        suspect: what the GPUs that the watch took out had in common, too many to be believed.
        folder: why tasks are refused for a folder of this machine that they were promised.
        rest: the worker is drained or paused; None: neither.
        failing: `web` or `worker` where its process keeps ending, and how often it was started
            in the last ten minutes.
        taken: `web` or `worker` where another program has a port of it, and the port.
        metrics_taken: the port of the GPUs' metrics where another program has it; else 0.
    """

    web: bool = False
    lost_database: str = ""
    certificate: tuple[str, bool] = ("", False)
    worker: bool = False
    connected: bool = False
    copies: bool = False
    watch: bool = True
    aside: tuple[str, ...] = ()
    suspect: str = ""
    folder: str = ""
    rest: draining.Rest | None = None
    failing: tuple[tuple[str, int], ...] = ()
    taken: tuple[tuple[str, int], ...] = ()
    metrics_taken: int = 0


_SUSPECT: typing.Final = (
    "{out} of {all} GPUs went out of use within 5 min for one cause, {cause}: suspect the driver "
    "or the host, see sudo dmesg and journalctl -u gpu-ci-health. No further GPU is taken out for "
    "it until that is over, unless by juju config {application} max-quarantined=100"
)

_COPIES: typing.Final = (
    "volumes are copies, since no overlay can be mounted here: each image and get costs time and "
    "disk (a machine or VM with /var/lib/concourse on ext4 or XFS spares them)"
)


def lines(state: UnitState, plan: Plan, running: Running) -> list[Line]:
    """All that is to be said of this unit, the worst first.

    Args:
        state: what was found, and what failed.
        plan: what this unit should be.
        running: what of it answers.
    """
    said = [failed(failure.text, passes=failure.passes) for failure in state.failures]
    if running.suspect and plan.choice.gpus:
        said.append(Line(Kind.BLOCKED, _suspect(state, plan, running.suspect)))
    said += [sentence(problem, state, plan.choice) for problem in plan.problems]
    day, over = running.certificate
    if plan.web and over:
        said.append(Line(Kind.BLOCKED, _certificate_over(state, day)))
    said += _of_web(plan, running)
    said += _of_worker(state, plan, running) if plan.worker else []
    if not said and not plan.web and not plan.worker:
        said.append(Line(Kind.MAINTENANCE, "Leaving: this unit is being removed"))
    said.sort(key=lambda line: line.kind is not Kind.BLOCKED)
    if said and said[0].kind is Kind.WAITING and (idle := _idle_relations(state)):
        # It may be waited for what one of these was meant to be.
        said[0] = Line(Kind.WAITING, f"{said[0].text}; {idle[0]}")
    rest = running.rest if plan.worker else None
    if rest and not draining.waits(rest) and said[0].kind is Kind.BLOCKED:
        # Juju shows the worst alone, and who reads that must not take the worker for one at work.
        said[0] = Line(Kind.BLOCKED, f"{said[0].text}; {draining.words(rest)}")
    return said or [Line(Kind.ACTIVE, _ready(state, plan, running))]


def _of_web(plan: Plan, running: Running) -> list[Line]:
    if plan.web and running.lost_database:
        return [Line(Kind.WAITING, f"Web can't reach its database: {running.lost_database}")]
    if plan.web and (port := dict(running.taken).get("web")):
        return [Line(Kind.BLOCKED, f"Web's {_taken(port)}, or set another port")]
    if plan.web and (starts := dict(running.failing).get("web")):
        return [Line(Kind.BLOCKED, _keeps_failing("Web", "web", starts))]
    if plan.web and not isinstance(plan.web, Keep) and not running.web:
        return [Line(Kind.WAITING, "Waiting for web to answer: journalctl -u concourse-web")]
    return []


def _of_worker(state: UnitState, plan: Plan, running: Running) -> list[Line]:
    """What keeps a worker from its work, but for what is planned so."""
    said: list[Line] = []
    if rest := running.rest:
        # One that waits for its turn works as before.
        kind = Kind.WAITING if draining.waits(rest) else Kind.MAINTENANCE
        said.append(Line(kind, draining.words(rest)))
    elif port := dict(running.taken).get("worker"):
        said.append(Line(Kind.BLOCKED, f"The worker's {_taken(port)}"))
    elif starts := dict(running.failing).get("worker"):
        said.append(Line(Kind.BLOCKED, _keeps_failing("The worker", "worker", starts)))
    elif isinstance(plan.worker, WorkerPlan) and not running.worker:
        text = "Waiting for the worker to answer: journalctl -u concourse-worker"
        said.append(Line(Kind.WAITING, text))
    elif isinstance(plan.worker, WorkerPlan) and not running.connected:
        text = (
            "Waiting for web to see this worker: no lasting connection to its TSA "
            f"{', '.join(plan.worker.tsa_hosts)}: journalctl -u concourse-worker"
        )
        said.append(Line(Kind.WAITING, text))
    elif wrong := registration.wrong(state):
        said.append(failed(wrong.text, passes=wrong.passes))
    if running.folder:
        said.append(Line(Kind.BLOCKED, f"Tasks are refused for task-mounts {running.folder}"))
    return said


def _taken(port: int) -> str:
    return (
        f"port {port} of 127.0.0.1 is taken by another program: end it "
        f"(sudo ss -ltnp 'sport = :{port}' names it)"
    )


def _keeps_failing(who: str, name: str, starts: int) -> str:
    return f"{who} keeps failing ({starts} starts in 10 min): journalctl -u concourse-{name}"


def failed(why: object, *, passes: bool) -> Line:
    """What could not be done, and whether it may be over by itself."""
    return Line(Kind.WAITING if passes else Kind.BLOCKED, str(why))


def sentence(problem: Problem, state: UnitState, choice: gpus.Choice) -> Line:
    """A problem in the words of status."""
    if problem.reason is Reason.ALL_QUARANTINED:
        return Line(Kind.BLOCKED, _all_quarantined(state, choice))
    kind = Kind.BLOCKED if problem.reason in BLOCKED else Kind.WAITING
    text = {**BLOCKED, **WAITING}[problem.reason]
    if dict(problem.about).get("option") == "gpu-device-ids":
        text += gpus.as_before(state)
    about = {"application": state.application, "unit": state.unit, **dict(problem.about)}
    return Line(kind, text.format(**about))


def _ready(state: UnitState, plan: Plan, running: Running) -> str:
    if plan.web and plan.worker:
        role = "Web and worker ready"
    else:
        role = "Web ready" if plan.web else "Worker ready"
    notes: list[str] = []
    if isinstance(plan.gpu, GpuPlan):
        notes.append(f"GPU: {gpu_note(state, plan.choice)}")
        facts = diagnosis.facts(state)
        notes += host_states.notes(facts) if facts else ()
        notes += _shared(state, plan)
    notes += _idle_gpus(state, plan)
    if state.inventory and (watch := _watch(state, running)):
        notes.append(watch)
    if state.upgrade:
        notes.append(state.upgrade)
    if state.release_waits:
        notes.append(state.release_waits)
    if plan.web and running.certificate[0]:
        notes.append(f"web's certificate ends on {running.certificate[0]}")
    notes += _of_signer(state, plan)
    if plan.worker and running.copies:
        notes.append(_COPIES)
    if state.local_database and not concourse.may_use_local(plan.web):
        notes.append(f"kept database {state.local_database}")
    notes += map("kept database {}".format, running.aside)
    notes += registration.rotation_notes(state)
    notes += _idle_relations(state)
    refused = *state.web.refused, *state.tsa.refused, *state.elsewhere.refused
    notes += [f"refused {text}" for text in refused[:_REFUSED]]
    if more := len(refused[_REFUSED:]):
        notes.append(f"refused {more} more")
    return f"{role} ({'; '.join(notes)})" if notes else role


def _idle_gpus(state: UnitState, plan: Plan) -> list[str]:
    """How many GPUs are here that no task gets, since none were asked for."""
    if not state.idle_gpus or not plan.worker:
        return []
    found = f"{state.idle_gpus} GPU{'s' * (state.idle_gpus > 1)}"
    return [f"{found} here, none for tasks: enable-gpu=false"]


def _idle_relations(state: UnitState) -> list[str]:
    """Which relations do nothing, and how each is removed."""
    mode = state.options.deployment_mode
    return [
        f"relation {one.endpoint} to {one.application} does nothing "
        + (f"beside {one.beside}" if one.beside else f"in deployment-mode {mode}")
        + f": juju remove-relation {state.application}:{one.endpoint} {one.application}"
        for one in state.idle_relations
    ]


def _of_signer(state: UnitState, plan: Plan) -> list[str]:
    """Why the certificate that web shows is not followed by the one that was asked for."""
    web = state.web
    if not plan.web or state.options.web.tls:
        return []
    if web.certificate_refused:
        return [f"no new certificate for web: {web.certificate_refused}"]
    return ["web's certificate was revoked: another is waited for"] * web.certificate_revoked


def _certificate_over(state: UnitState, day: str) -> str:
    remedy = "look at the application that is related by certificates"
    if state.options.web.tls:
        remedy = "juju update-secret <that of tls-secret> with a new one"
    return f"Web's certificate has ended on {day}: {remedy}"


def _watch(state: UnitState, running: Running) -> str:
    """What the operator must know of the GPUs' watch; empty where it does its work."""
    mode = state.options.gpu_health
    if mode == "off":
        return "GPUs are not watched: gpu-health=off"
    if not running.watch:
        return "GPUs are not watched: journalctl -u gpu-ci-health"
    if running.metrics_taken:
        return (
            f"no GPU metrics: another program has port {running.metrics_taken}, end it or set "
            "another gpu-metrics-port below 1024"
        )
    return "GPUs are watched, and none is taken out: gpu-health=observe" if mode != "on" else ""


def _suspect(state: UnitState, plan: Plan, cause: str) -> str:
    out = {entry.uuid for entry in state.quarantined if entry.by == "watch"}
    ours = {gpu.uuid for gpu in plan.choice.gpus} | out
    application = state.application
    return _SUSPECT.format(out=len(out), all=len(ours), cause=cause, application=application)


def _shared(state: UnitState, plan: Plan) -> list[str]:
    """Which GPUs other units give to their tasks too."""
    notes: list[str] = []
    met = offers.shared(plan.offer, state.elsewhere.offers) if plan.offer else {}
    for uuids, units in met.items():
        cards = [
            str(index)
            for index, gpu in zip(plan.choice.indexes, plan.choice.gpus, strict=True)
            if set(gpu.devices) & set(uuids)
        ]
        notes.append(
            f"GPU {', '.join(cards)} also given to tasks by {', '.join(units)}: divide the cards "
            f"(on the LXD host: scripts/lxd-gpu {state.application}) or set gpu-device-ids"
        )
    return notes


def _cap_note(state: UnitState) -> str:
    """What the operator must know where tasks wait less long than gpu-wait-timeout says."""
    longest, timeout = concourse.longest_wait(state), concourse.web_timeout(state)
    if state.options.gpu_wait_timeout <= longest:
        return ""
    why = f"web's request-timeout is {timeout}" if timeout else "web names no request-timeout"
    return f", gpu-wait-timeout capped at {longest}: {why}"


def gpu_note(state: UnitState, choice: gpus.Choice) -> str:
    """What status says of the GPUs, such as `2x NVIDIA`; the choice must not be empty.

    What changes by the minute, after the `:` of a reason, is left out.
    """
    quarantined = _quarantined(state, choice)
    gone = {entry.uuid for entry in state.quarantined}
    reasons = {uuid: reason for uuid, reason in state.cordoned if uuid not in gone}
    out = [
        f"GPU {index} {reasons[gpu.uuid].partition(':')[0]}"
        for index, gpu in zip(choice.indexes, choice.gpus, strict=True)
        if gpu.uuid in reasons
    ]
    count = len(gpus.pool(state, choice).gpus) - len(out)
    note = f"{count}x {choice.gpus[0].vendor.display}"
    if quarantined:
        shown = [
            _quarantine_words(indexes, entry)
            + ("" if entry.level or entry.remedy else f" ({_uncordon(state, indexes)})")
            for indexes, entry in quarantined
        ]
        note += f", {len(choice.gpus) - count - len(out)} quarantined: {', '.join(shown)}"
    if out:
        note += f", {len(out)} cordoned: {', '.join(out)}"
    if choice.missing:
        note += f", {len(choice.missing)} missing: GPU {', '.join(map(str, choice.missing))}"
    if choice.lost:
        note += f", {len(choice.lost)} lost: {', '.join(choice.lost)}"
    note += _verdict_words(state, {entry.reason for _, entry in quarantined})
    return note + _cap_note(state)


def _quarantined(state: UnitState, choice: gpus.Choice) -> list[tuple[list[int], Quarantine]]:
    """The quarantined of the allowed GPUs, by what is said of them."""
    entries = {entry.uuid: entry for entry in state.quarantined}
    alike: dict[tuple[str, str, str], tuple[list[int], Quarantine]] = {}
    for index, gpu in zip(choice.indexes, choice.gpus, strict=True):
        if entry := entries.get(gpu.uuid):
            key = entry.reason.partition(":")[0], _in_brackets(entry.remedy), entry.by
            alike.setdefault(key, ([], entry))[0].append(index)
    return list(alike.values())


def _uncordon(state: UnitState, indexes: list[int]) -> str:
    return f"juju run {state.unit} gpu-uncordon gpu=gpu-{indexes[0]}"


def _quarantine_words(indexes: list[int], entry: Quarantine) -> str:
    reason = entry.reason.partition(":")[0]
    return f"GPU {', '.join(map(str, indexes))} {reason}{_in_brackets(entry.remedy)}"


def _verdict_words(state: UnitState, shown: set[str]) -> str:
    """What there is to say of the verdict besides what quarantine's reasons show."""
    verdict = state.verdict
    if verdict is None:
        return ""
    if verdict.outcome == "failed" and shown and verdict.failure in {*shown, ""}:
        return ""
    what = "self-test of one GPU" if verdict.partial else "self-test"
    words = f", {what} {verdict.outcome}"
    if verdict.failure:
        words += f": {verdict.failure}"
    return words + _in_brackets(verdict.remedy)


def _in_brackets(remedy: str) -> str:
    """The first step of a remedy; the report of the self-test has all of it."""
    step = re.split(r" \(|;|: |\. ", remedy)[0]
    return f" ({step})" if step else ""


def _all_quarantined(state: UnitState, choice: gpus.Choice) -> str:
    quarantined = _quarantined(state, choice)
    shown = [_quarantine_words(indexes, entry) for indexes, entry in quarantined]
    commands = {
        f"juju run {state.unit} gpu-selftest level={entry.level}"
        if entry.level
        else _uncordon(state, indexes)
        for indexes, entry in quarantined
    }
    return f"All GPUs are quarantined: {', '.join(shown)}. Then {' and '.join(sorted(commands))}"
