# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the operator reads in juju status; messages.py has the texts. Pure.

Status shows facts, and no value that changes by the minute except the progress of a drain. Blocked
names the operator's next step. Waiting passes by itself, or when another unit or application has
acted.
"""

import dataclasses
import typing

from gpu_agent.diagnosis import states as host_states
from gpu_agent.runtime.settings import GpuPlan
from plan import diagnosis, draining, gpu_status, messages
from plan.ci_plan import CiStatus
from plan.messages import Level, Line
from plan.model import Plan
from plan.state import UnitState

# A hostile application may have many units: only so many refusals are shown.
_REFUSED: typing.Final = 3


@dataclasses.dataclass(frozen=True)
class Running:
    """The state of the agent's services and of a drain, as of now.

    Attributes:
        watch: the GPU health service runs.
        suspect: the cause for which too many GPUs failed at once; or empty.
        rest: the unit is drained or paused; None: neither.
        metrics_taken: the port of the GPU metrics if another program has it; else 0.
    """

    watch: bool = True
    suspect: str = ""
    rest: draining.Rest | None = None
    metrics_taken: int = 0


def lines(state: UnitState, plan: Plan, running: Running, ci: CiStatus) -> list[Line]:
    """Return all lines of this unit's status, the worst first.

    Args:
        state: what was found, and what failed.
        plan: what this unit should be.
        running: the state of its services.
        ci: what the CI system adds.
    """
    rest = None if state.leaving else running.rest
    found = [failed(failure.text, passes=failure.passes) for failure in state.failures]
    if running.suspect and plan.choice.gpus:
        found.append(gpu_status.failed_together(state, plan.choice, running.suspect))
    found += [*plan.problems, *plan.ci.problems, *ci.lines]
    found += [draining.line(rest)] if rest else []
    if not found and state.leaving:
        found.append(messages.line("removing"))
    found.sort(key=lambda line: line.level is not Level.BLOCKED)
    if found and found[0].level is Level.WAITING and ci.hint:
        found[0] = _with(found[0], ci.hint)
    if rest and not draining.waits(rest) and found[0].level is Level.BLOCKED:
        # Juju shows only the worst line, which must not hide that this unit takes no jobs.
        found[0] = _with(found[0], draining.line(rest).text)
    return found or [_ready(state, plan, running, ci)]


def failed(why: object, *, passes: bool) -> Line:
    """Return the line of a step that failed, and that is retried by itself if it `passes`."""
    return messages.line("step-retried" if passes else "step-failed", text=why)


def relation_idle(state: UnitState, endpoint: str, other: str, why: str) -> Line:
    """Return the line of a relation that does nothing, with the command that removes it."""
    about = {"endpoint": endpoint, "other": other, "why": why}
    return messages.line("relation-idle", **about, **state.names)


def _with(line: Line, text: str) -> Line:
    return dataclasses.replace(line, text=f"{line.text}; {text}")


def _ready(state: UnitState, plan: Plan, running: Running, ci: CiStatus) -> Line:
    ready = messages.line("ready", ready=ci.ready)
    given: list[Line] = []
    if isinstance(plan.gpu, GpuPlan):
        given = gpu_status.notes(state, plan.choice, plan.longest_wait)
    notes = [*_of_gpus(state, plan), *_of_health(state, running), *_of_rest(state, ci)]
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
        notes += gpu_status.shared(state, plan.choice, plan.offer)
    if state.idle_gpus:
        found = f"{state.idle_gpus} GPU{'s' * (state.idle_gpus > 1)}"
        notes.append(messages.line("gpus-not-enabled", found=found, application=state.application))
    return notes


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


def _of_rest(state: UnitState, ci: CiStatus) -> list[Line]:
    """Return the notes about everything but GPUs."""
    notes: list[Line] = []
    if state.upgrade:
        notes.append(messages.line("driver-upgrade", text=state.upgrade))
    notes += ci.notes
    refused = *ci.refused, *state.elsewhere.refused
    notes += [messages.line("data-refused", text=text) for text in refused[:_REFUSED]]
    if more := len(refused[_REFUSED:]):
        notes.append(messages.line("data-refused", text=f"{more} more"))
    return notes
