# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the operator reads in juju status; messages.py has the texts. Pure.

Status shows facts, and no value that changes by the minute except the progress of a drain. Blocked
names the operator's next step. Waiting passes by itself, or when another unit or application has
acted.
"""

import collections.abc
import dataclasses
import re
import typing

from ci.concourse.plan import plan as concourse
from ci.concourse.plan import registration_status as registration
from ci.concourse.plan import release
from ci.concourse.plan.model import WorkerPlan
from gpu_agent.diagnosis import states as host_states
from gpu_agent.model.keep import Keep
from gpu_agent.model.quarantine import HEALTH
from gpu_agent.runtime.settings import GpuPlan
from plan import diagnosis, draining, gpus, messages
from plan import gpu_offers as offers
from plan.messages import Level, Line
from plan.model import Plan
from plan.problems import Problem, Reason
from plan.state import Quarantine, UnitState

# A hostile application may have many units: only so many refusals are shown.
_REFUSED: typing.Final = 3
# An operator's reason for a cordon may be long; gpu-inventory shows all of it.
_REASON: typing.Final = 40


@dataclasses.dataclass(frozen=True)
class Running:
    """The state of this unit's services and of its worker, as of now.

    Attributes:
        web: web answers.
        lost_database: the address of a database that web cannot reach, and why; or empty.
        certificate: the last day of web's certificate if that is near, and whether it has passed.
        worker: the worker answers.
        connected: the worker is registered with web.
        copies: the worker copies its volumes, as it cannot mount overlays.
        watch: the GPU health service runs.
        aside: databases on this machine that a restored backup has replaced.
        suspect: the cause for which too many GPUs failed at once; or empty.
        folder: the folder of task-mounts that is unusable, and why; or empty.
        rest: the worker is drained or paused; None: neither.
        failing: `web` or `worker` if its process keeps ending, and how often it was started
            in the last ten minutes.
        taken: `web` or `worker` if another program has one of its ports, and the port.
        metrics_taken: the port of the GPU metrics if another program has it; else 0.
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


@dataclasses.dataclass(frozen=True)
class _Group:
    """GPUs that are out of use for the same reason, under their indexes."""

    indexes: list[int]
    entry: Quarantine

    def text(self, remedy: str = "") -> str:
        reason = self.entry.reason
        if self.entry.by != "operator":
            reason = reason.partition(":")[0]
        elif len(reason) > _REASON:
            reason = f"{reason[:_REASON].rstrip()}..."
        inside = "; ".join(filter(None, (reason, remedy)))
        return f"GPU {_listed(self.indexes)} ({inside})"


def lines(state: UnitState, plan: Plan, running: Running) -> list[Line]:
    """Return all lines of this unit's status, the worst first.

    Args:
        state: what was found, and what failed.
        plan: what this unit should be.
        running: the state of its services.
    """
    found = [failed(failure.text, passes=failure.passes) for failure in state.failures]
    if running.suspect and plan.choice.gpus:
        found.append(_failed_together(state, plan, running.suspect))
    found += [of_problem(problem, state, plan.choice) for problem in plan.problems]
    day, over = running.certificate
    if plan.web and over:
        found.append(_certificate_ended(state, day))
    found += _of_web(plan, running)
    found += _of_worker(state, plan, running) if plan.worker else []
    if not found and not plan.web and not plan.worker:
        found.append(messages.line("removing"))
    found.sort(key=lambda line: line.level is not Level.BLOCKED)
    if found and found[0].level is Level.WAITING and (idle := _idle_relations(state)):
        # The operator may have meant such a relation for what is waited for.
        found[0] = _with(found[0], idle[0].text)
    rest = running.rest if plan.worker else None
    if rest and not draining.waits(rest) and found[0].level is Level.BLOCKED:
        # Juju shows only the worst line, which must not hide that this worker takes no steps.
        found[0] = _with(found[0], draining.line(rest).text)
    return found or [_ready(state, plan, running)]


def _with(line: Line, text: str) -> Line:
    return dataclasses.replace(line, text=f"{line.text}; {text}")


def _of_web(plan: Plan, running: Running) -> list[Line]:
    if plan.web and running.lost_database:
        return [messages.line("web-database-lost", database=running.lost_database)]
    if plan.web and (port := dict(running.taken).get("web")):
        return [messages.line("web-port-taken", port=port)]
    if plan.web and (starts := dict(running.failing).get("web")):
        return [messages.line("web-keeps-failing", starts=starts)]
    if plan.web and not isinstance(plan.web, Keep) and not running.web:
        return [messages.line("web-not-answering")]
    return []


def _of_worker(state: UnitState, plan: Plan, running: Running) -> list[Line]:
    """Return what keeps a worker from its steps, a drain or pause included."""
    found: list[Line] = []
    if running.rest:
        found.append(draining.line(running.rest))
    elif port := dict(running.taken).get("worker"):
        found.append(messages.line("worker-port-taken", port=port))
    elif starts := dict(running.failing).get("worker"):
        found.append(messages.line("worker-keeps-failing", starts=starts))
    elif isinstance(plan.worker, WorkerPlan) and not running.worker:
        found.append(messages.line("worker-not-answering"))
    elif isinstance(plan.worker, WorkerPlan) and not running.connected:
        hosts = ", ".join(plan.worker.tsa_hosts)
        found.append(messages.line("worker-not-connected", hosts=hosts))
    elif wrong := registration.wrong(state):
        found.append(wrong)
    if running.folder:
        found.append(messages.line("task-mount-unusable", folder=running.folder))
    return found


def failed(why: object, *, passes: bool) -> Line:
    """Return the line of a step that failed, and that is retried by itself if it `passes`."""
    return messages.line("step-retried" if passes else "step-failed", text=why)


def of_problem(problem: Problem, state: UnitState, choice: gpus.Choice) -> Line:
    """Return the line of a problem."""
    about = dict(problem.about)
    if problem.reason is Reason.ALL_UNAVAILABLE:
        return _all_out(state, choice)
    if problem.reason in (Reason.GPU_OBSTACLE, Reason.GPU_OBSTACLE_PASSES):
        passes = problem.reason is Reason.GPU_OBSTACLE_PASSES
        level = Level.WAITING if passes else Level.BLOCKED
        return Line(level, about["code"], f"{about['what']}: {about['remedy']}")
    kind = messages.KINDS[problem.reason.value]
    if problem.reason is Reason.RELEASE_FAILED:
        return Line(kind.level, kind.code, about["text"])
    text = kind.text(**{"application": state.application, "unit": state.unit, **about})
    if problem.reason is Reason.UNKNOWN_GPU_IDS or about.get("option") == "gpu-device-ids":
        text += gpus.as_before(state)
    return Line(kind.level, kind.code, text)


def _ready(state: UnitState, plan: Plan, running: Running) -> Line:
    role = "Web and worker" if plan.web and plan.worker else "Web" if plan.web else "Worker"
    ready = messages.line("ready", role=role)
    given = _of_given_gpus(state, plan.choice) if isinstance(plan.gpu, GpuPlan) else []
    notes = [*_of_gpus(state, plan), *_of_health(state, running), *_of_rest(state, plan, running)]
    # What is said of the GPUs for tasks is one list, with commas.
    shown = [", ".join(note.text for note in given)] * bool(given)
    shown += [note.text for note in notes]
    if not shown:
        return ready
    codes = tuple(note.code for note in (*given, *notes))
    return dataclasses.replace(ready, text=f"{ready.text} ({'; '.join(shown)})", notes=codes)


def _of_gpus(state: UnitState, plan: Plan) -> list[Line]:
    """Return the notes about the driver, the container toolkit and GPUs that are not for tasks."""
    notes: list[Line] = []
    if isinstance(plan.gpu, GpuPlan):
        facts = diagnosis.facts(state)
        found = host_states.notes(facts) if facts else ()
        notes += [Line(Level.ACTIVE, note.code, str(note)) for note in found]
        notes += _shared(state, plan)
    if state.idle_gpus and plan.worker:
        found = f"{state.idle_gpus} GPU{'s' * (state.idle_gpus > 1)}"
        notes.append(messages.line("gpus-not-enabled", found=found, application=state.application))
    return notes


def _of_rest(state: UnitState, plan: Plan, running: Running) -> list[Line]:
    """Return the notes about everything but GPUs."""
    notes: list[Line] = []
    if state.upgrade:
        notes.append(messages.line("driver-upgrade", text=state.upgrade))
    if state.release_waits:
        notes.append(state.release_waits)
    if plan.worker and (about := release.not_followed(state)):
        notes.append(messages.line("web-release-unknown", **about))
    if plan.web and running.certificate[0]:
        notes.append(messages.line("web-certificate-ends", day=running.certificate[0]))
    notes += _of_signer(state, plan)
    if plan.worker and running.copies:
        notes.append(messages.line("volumes-copied"))
    if state.local_database and not concourse.may_use_local(plan.web):
        notes.append(_database_kept(state, state.local_database))
    notes += [_database_kept(state, name) for name in running.aside]
    notes += registration.rotation_notes(state)
    notes += _idle_relations(state)
    refused = *state.web.refused, *state.tsa.refused, *state.elsewhere.refused
    notes += [messages.line("data-refused", text=text) for text in refused[:_REFUSED]]
    if more := len(refused[_REFUSED:]):
        notes.append(messages.line("data-refused", text=f"{more} more"))
    return notes


def _database_kept(state: UnitState, name: str) -> Line:
    # The name is followed by its former owner, and by the day since which it is unused.
    confirm = re.split("[ ,]", name)[0]
    return messages.line("database-kept", name=name, unit=state.unit, confirm=confirm)


def _idle_relations(state: UnitState) -> list[Line]:
    """Return a line for each relation that does nothing, with the command that removes it."""
    mode = state.options.deployment_mode
    return [
        messages.line(
            "relation-idle",
            application=state.application,
            endpoint=one.endpoint,
            other=one.application,
            why=f"beside {one.beside}" if one.beside else f"in deployment-mode {mode}",
        )
        for one in state.idle_relations
    ]


def _of_signer(state: UnitState, plan: Plan) -> list[Line]:
    """Return why no new certificate replaces the one that web presents."""
    web = state.web
    if not plan.web or state.options.web.tls:
        return []
    if web.certificate_refused:
        return [messages.line("web-certificate-refused", why=web.certificate_refused)]
    return [messages.line("web-certificate-revoked")] * web.certificate_revoked


def _certificate_ended(state: UnitState, day: str) -> Line:
    remedy = "check the application that is integrated with certificates"
    if state.options.web.tls:
        remedy = "juju update-secret <that of web-tls-secret> with a new one"
    return messages.line("web-certificate-ended", day=day, remedy=remedy)


def _of_health(state: UnitState, running: Running) -> list[Line]:
    """Return a note if the GPU health service does not do all that it could."""
    mode = state.options.gpu_health
    if not state.inventory:
        return []
    if mode == "disabled":
        return [messages.line("gpu-health-disabled")]
    if not running.watch:
        return [messages.line("gpu-health-down")]
    if running.metrics_taken:
        return [messages.line("gpu-metrics-port-taken", port=running.metrics_taken)]
    return [messages.line("gpu-health-observes")] if mode == "observe" else []


def _failed_together(state: UnitState, plan: Plan, cause: str) -> Line:
    out = {entry.uuid for entry in state.quarantined if entry.by == HEALTH}
    chosen = {gpu.uuid for gpu in plan.choice.gpus} | out
    return messages.line(
        "gpus-failed-together",
        out=len(out),
        all=len(chosen),
        cause=cause,
        application=state.application,
    )


def _shared(state: UnitState, plan: Plan) -> list[Line]:
    """Return a note for each set of GPUs that other units give to their tasks too."""
    notes: list[Line] = []
    met = offers.shared(plan.offer, state.elsewhere.offers) if plan.offer else {}
    for uuids, units in met.items():
        indexes = [
            index
            for index, gpu in zip(plan.choice.indexes, plan.choice.gpus, strict=True)
            if set(gpu.devices) & set(uuids)
        ]
        notes.append(
            messages.line(
                "gpu-shared",
                gpus=_listed(indexes),
                units=", ".join(units),
                application=state.application,
            )
        )
    return notes


def gpu_note(state: UnitState, choice: gpus.Choice) -> str:
    """Return what status shows of the GPUs for tasks, such as `2x NVIDIA, self-test passed`.

    Args:
        state: what was found.
        choice: the GPUs for tasks; not empty.
    """
    return ", ".join(note.text for note in _of_given_gpus(state, choice)).removeprefix("GPU: ")


def _of_given_gpus(state: UnitState, choice: gpus.Choice) -> list[Line]:
    """Return the notes about the GPUs for tasks, which must be some.

    Details that change by the minute, after the `:` of a reason, are left out.
    """
    groups = _out_of_use(state, choice)
    gone, users = {entry.uuid for entry in state.quarantined}, dict(state.external)
    external = [
        index
        for index, gpu in zip(choice.indexes, choice.gpus, strict=True)
        if gpu.uuid in users and gpu.uuid not in gone
    ]
    count = len(gpus.pool(state, choice).gpus) - len(external)
    notes = [messages.line("gpus", count=count, vendor=choice.gpus[0].vendor.display)]
    notes += _of_out(groups, lambda group: _way_back(state, group))
    for code, indexes in (("gpus-external", external), ("gpus-missing", choice.missing)):
        if indexes:
            notes.append(messages.line(code, count=len(indexes), gpus=_listed(indexes)))
    if choice.lost:
        addresses = ", ".join(choice.lost)
        notes.append(messages.line("gpus-lost", count=len(choice.lost), addresses=addresses))
    notes += _of_verdict(state, {group.entry.reason for group in groups})
    return notes + _of_wait(state)


def _of_out(
    groups: list[_Group], step: collections.abc.Callable[[_Group], str]
) -> collections.abc.Iterator[Line]:
    """Yield a note about the cordoned GPUs and one about the quarantined, with a step for each."""
    for code, by_operator in (("gpus-cordoned", True), ("gpus-quarantined", False)):
        those = [one for one in groups if (one.entry.by == "operator") is by_operator]
        if those:
            count = sum(len(one.indexes) for one in those)
            shown = ", ".join(one.text(step(one)) for one in those)
            yield messages.line(code, count=count, gpus=shown)


def _of_wait(state: UnitState) -> list[Line]:
    """Return a note if tasks wait less long for a GPU than gpu-wait-timeout allows."""
    longest, timeout = concourse.longest_wait(state), concourse.web_timeout(state)
    if state.options.gpu_wait_timeout <= longest:
        return []
    why = f"web's request-timeout is {timeout} s" if timeout else "web names no request-timeout"
    return [messages.line("gpu-wait-capped", longest=longest, why=why)]


def _out_of_use(state: UnitState, choice: gpus.Choice) -> list[_Group]:
    """Return the GPUs that are cordoned or quarantined, grouped by what status shows of them."""
    entries = {entry.uuid: entry for entry in state.quarantined}
    alike: dict[tuple[str, str, str], _Group] = {}
    for index, gpu in zip(choice.indexes, choice.gpus, strict=True):
        if entry := entries.get(gpu.uuid):
            key = entry.reason.partition(":")[0], _first_step(entry.remedy), entry.by
            alike.setdefault(key, _Group([], entry)).indexes.append(index)
    return list(alike.values())


def _listed(indexes: collections.abc.Iterable[int]) -> str:
    return ", ".join(map(str, indexes))


def _way_back(state: UnitState, group: _Group) -> str:
    """Return the first step towards using a GPU again."""
    entry = group.entry
    if entry.level or entry.remedy:
        return _first_step(entry.remedy)
    return _uncordon(state, group.indexes)


def _uncordon(state: UnitState, indexes: list[int]) -> str:
    return f"juju run {state.unit} gpu-uncordon gpu=gpu-{indexes[0]}"


def _of_verdict(state: UnitState, shown: set[str]) -> list[Line]:
    """Return a note about the last self-test, unless the `shown` reasons include its failure."""
    verdict = state.verdict
    if verdict is None:
        return []
    if verdict.outcome == "failed" and shown and verdict.failure in {*shown, ""}:
        return []
    test = "self-test of one GPU" if verdict.partial else "self-test"
    step = _first_step(verdict.remedy)
    failure = verdict.failure + (f" ({step})" if step else "")
    return [messages.line(f"self-test-{verdict.outcome}", test=test, failure=failure)]


def _first_step(remedy: str) -> str:
    """Return the first step of a remedy; the report of the self-test has all of it."""
    step = re.split(r" \(|;|: |\. ", remedy)[0]
    return step[:1].lower() + step[1:] if step[1:2].islower() else step


def _all_out(state: UnitState, choice: gpus.Choice) -> Line:
    groups = _out_of_use(state, choice)
    steps = dict.fromkeys(filter(None, (_first_step(group.entry.remedy) for group in groups)))
    commands = {
        f"juju run {state.unit} gpu-selftest level={group.entry.level}"
        if group.entry.level
        else _uncordon(state, group.indexes)
        for group in groups
    }
    back = " and ".join(sorted(commands))
    remedy = f"{', '.join(steps)}, then {back}" if steps else back
    shown = ", ".join(note.text for note in _of_out(groups, lambda _: ""))
    return messages.line(Reason.ALL_UNAVAILABLE.value, gpus=shown, remedy=remedy)
