# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the operator reads in juju status about Concourse; messages.py has the texts. Pure."""

import dataclasses
import re

from ci.concourse.options.table import chosen
from ci.concourse.plan import messages, registration_status, release
from ci.concourse.plan import plan as concourse
from ci.concourse.plan.model import WorkerPlan, found, planned
from gpu_agent.model.keep import Keep
from plan import status
from plan.ci_plan import CiStatus
from plan.messages import Line
from plan.model import Plan
from plan.state import UnitState


@dataclasses.dataclass(frozen=True)
class Running:
    """The state of Concourse's services on this unit, as of now.

    Attributes:
        web: web answers.
        lost_database: the address of a database that web cannot reach, and why; or empty.
        certificate: the last day of web's certificate if that is near, and whether it has passed.
        worker: the worker answers.
        connected: the worker is registered with web.
        copies: the worker copies its volumes, as it cannot mount overlays.
        aside: databases on this machine that a restored backup has replaced.
        folder: the folder of task-mounts that is unusable, and why; or empty.
        failing: `web` or `worker` if its process keeps ending, and how often it was started
            in the last ten minutes.
        taken: `web` or `worker` if another program has one of its ports, and the port.
    """

    web: bool = False
    lost_database: str = ""
    certificate: tuple[str, bool] = ("", False)
    worker: bool = False
    connected: bool = False
    copies: bool = False
    aside: tuple[str, ...] = ()
    folder: str = ""
    failing: tuple[tuple[str, int], ...] = ()
    taken: tuple[tuple[str, int], ...] = ()


def make(state: UnitState, plan: Plan, running: Running, *, rests: bool) -> CiStatus:
    """Return what Concourse adds to the status of its unit.

    Args:
        state: what was found, and what failed.
        plan: what this unit should be.
        running: the state of Concourse's services.
        rests: whether the worker is drained or paused, so that its state says nothing.
    """
    own = planned(plan)
    role = "Web and worker" if own.web and own.worker else "Web" if own.web else "Worker"
    idle = _idle_relations(state)
    return CiStatus(
        ready=f"{role} ready",
        lines=(*_of_web(state, plan, running), *_of_worker(state, plan, running, rests=rests)),
        notes=(*_notes(state, plan, running), *idle),
        refused=(*found(state).web.refused, *found(state).tsa.refused),
        # The operator may have meant such a relation for what is waited for.
        hint=idle[0].text if idle else "",
    )


def _of_web(state: UnitState, plan: Plan, running: Running) -> list[Line]:
    web, lines = planned(plan).web, list[Line]()
    if not web:
        return lines
    day, over = running.certificate
    if over:
        lines.append(_certificate_ended(state, day))
    if running.lost_database:
        lines.append(messages.line("web-database-lost", database=running.lost_database))
    elif port := dict(running.taken).get("web"):
        lines.append(messages.line("web-port-taken", port=port))
    elif starts := dict(running.failing).get("web"):
        lines.append(messages.line("web-keeps-failing", starts=starts))
    elif not isinstance(web, Keep) and not running.web:
        lines.append(messages.line("web-not-answering"))
    return lines


def _of_worker(state: UnitState, plan: Plan, running: Running, *, rests: bool) -> list[Line]:
    """Return what keeps a worker from its steps."""
    worker, lines = planned(plan).worker, list[Line]()
    if not worker:
        return lines
    if rests:
        pass
    elif port := dict(running.taken).get("worker"):
        lines.append(messages.line("worker-port-taken", port=port))
    elif starts := dict(running.failing).get("worker"):
        lines.append(messages.line("worker-keeps-failing", starts=starts))
    elif isinstance(worker, WorkerPlan) and not running.worker:
        lines.append(messages.line("worker-not-answering"))
    elif isinstance(worker, WorkerPlan) and not running.connected:
        hosts = ", ".join(worker.tsa_hosts)
        lines.append(messages.line("worker-not-connected", hosts=hosts))
    elif wrong := registration_status.wrong(state):
        lines.append(wrong)
    if running.folder:
        lines.append(messages.line("task-mount-unusable", folder=running.folder))
    return lines


def _notes(state: UnitState, plan: Plan, running: Running) -> list[Line]:
    own, notes = planned(plan), list[Line]()
    if waits := found(state).waits:
        notes.append(waits)
    if own.worker and (about := release.not_followed(state)):
        notes.append(messages.line("web-release-unknown", **about))
    if own.web and running.certificate[0]:
        notes.append(messages.line("web-certificate-ends", day=running.certificate[0]))
    notes += _of_signer(state, plan)
    if own.worker and running.copies:
        notes.append(messages.line("volumes-copied"))
    kept = found(state).local_database
    if kept and not concourse.may_use_local(own.web):
        notes.append(database_kept(state, kept))
    notes += [database_kept(state, name) for name in running.aside]
    return [*notes, *registration_status.rotation_notes(state)]


def database_kept(state: UnitState, name: str) -> Line:
    """Return the note about a database on this machine that no web uses."""
    # The name is followed by its former owner, and by the day since which it is unused.
    confirm = re.split("[ ,]", name)[0]
    return messages.line("database-kept", name=name, unit=state.unit, confirm=confirm)


def _idle_relations(state: UnitState) -> list[Line]:
    """Return a line for each relation that does nothing, with the command that removes it."""
    alone = f"in deployment-mode {state.options.deployment_mode}"
    return [
        status.relation_idle(
            state,
            one.endpoint,
            one.application,
            f"beside {one.beside}" if one.beside else alone,
        )
        for one in found(state).idle_relations
    ]


def _of_signer(state: UnitState, plan: Plan) -> list[Line]:
    """Return why no new certificate replaces the one that web presents."""
    web = found(state).web
    if not planned(plan).web or chosen(state.options).web.tls:
        return []
    if web.certificate_refused:
        return [messages.line("web-certificate-refused", why=web.certificate_refused)]
    return [messages.line("web-certificate-revoked")] * web.certificate_revoked


def _certificate_ended(state: UnitState, day: str) -> Line:
    remedy = "check the application that is integrated with certificates"
    if chosen(state.options).web.tls:
        remedy = "juju update-secret <that of web-tls-secret> with a new one"
    return messages.line("web-certificate-ended", day=day, remedy=remedy)
