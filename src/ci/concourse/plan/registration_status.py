# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Status lines for a worker that web lists otherwise than planned, and for key rotation. Pure."""

import typing

from ci.concourse.plan import messages
from ci.concourse.plan.model import found
from plan.messages import Level, Line
from plan.state import UnitState
from relations.worker_view import ABSENT, RUNNING

# Seconds before the operator is asked to act: each side looks again every 5 minutes.
_PATIENCE: typing.Final = 600
# Seconds that new tags may take to reach web and come back, within the hooks that follow.
_HOOKS: typing.Final = 60

_RESTART: typing.Final = "juju exec --unit {unit} -- systemctl restart concourse-worker"
_OTHER_TAGS: typing.Final = "worker-other-tags"
_CODES: typing.Final = {
    ABSENT: "worker-not-listed",
    "stalled": "worker-stalled",
    "landing": "worker-landing",
    "landed": "worker-landed",
    "retiring": "worker-retiring",
}


def wrong(state: UnitState) -> Line | None:
    """Return what is wrong with web's record of this unit's worker; None if nothing is.

    For ten minutes the line is Waiting and has no remedy, since the record may become right by
    itself.
    """
    seen = found(state).seen
    if (sight := seen.wrong) is None or (sight.state == RUNNING and seen.since < _HOOKS):
        return None
    kind = messages.KINDS.by_code[_CODES.get(sight.state, _OTHER_TAGS)]
    restart = _RESTART.format(unit=state.unit)
    if seen.since < _PATIENCE:
        what = kind.what.format(name=found(state).worker_name)
        return Line(Level.WAITING, kind.code, f"Waiting: {what[:1].lower()}{what[1:]}")
    return Line(kind.level, kind.code, kind.text(name=found(state).worker_name, restart=restart))


def rotation_notes(state: UnitState) -> list[Line]:
    """Return what the rotation of keys waits for, as notes of a unit that is ready."""
    notes = [messages.line("key-rotation-worker")] if found(state).rotation.own else []
    if awaited := found(state).rotation.awaited:
        units = ", ".join(awaited)
        application = state.application
        notes.append(messages.line("key-rotation-tsa", units=units, application=application))
    return notes
