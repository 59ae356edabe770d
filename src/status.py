# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the operator reads in juju status. Pure: facts only, nothing that changes by the minute."""

import dataclasses
import enum

from plan import Keep, Plan, Severity


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
    """Which of this unit's services answered just now."""

    web: bool = False
    worker: bool = False


def lines(plan: Plan, running: Running, refused: tuple[str, ...] = ()) -> list[Line]:
    """All that is to be said of this unit, the worst first.

    Args:
        plan: what this unit should be.
        running: what of it answers.
        refused: relation data that was not taken, one sentence each.
    """
    said = [
        Line(Kind.BLOCKED if problem.severity is Severity.BLOCKED else Kind.WAITING, problem.text)
        for problem in plan.problems
    ]
    if plan.web and not isinstance(plan.web, Keep) and not running.web:
        said.append(Line(Kind.WAITING, "Waiting for web to answer: journalctl -u concourse-web"))
    if plan.worker and not isinstance(plan.worker, Keep) and not running.worker:
        text = "Waiting for the worker to answer: journalctl -u concourse-worker"
        said.append(Line(Kind.WAITING, text))
    if not said and not plan.web and not plan.worker:
        said.append(Line(Kind.MAINTENANCE, "Leaving: this unit is being removed"))
    said.sort(key=lambda line: line.kind is not Kind.BLOCKED)
    return said or [Line(Kind.ACTIVE, _ready(plan, refused))]


def _ready(plan: Plan, refused: tuple[str, ...]) -> str:
    if plan.web and plan.worker:
        role = "Web and worker ready"
    else:
        role = "Web ready" if plan.web else "Worker ready"
    notes = [f"GPU: {plan.gpu_note}"] if plan.gpu_note else []
    notes += [f"refused {text}" for text in refused]
    return f"{role} ({'; '.join(notes)})" if notes else role
