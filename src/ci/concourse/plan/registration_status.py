# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the operator reads where web sees a worker otherwise than it should, and of keys. Pure."""

import dataclasses
import typing

from plan.state import UnitState
from relations.worker_view import ABSENT, RUNNING

# In seconds: Juju asks each side to look again every 5 minutes.
_PATIENCE: typing.Final = 600
# The same of new tags: web is told of them as they are set, and answers in the hooks that follow.
_HOOKS: typing.Final = 60

_RESTART: typing.Final = "juju exec --unit {unit} -- systemctl restart concourse-worker"
_OTHER_TAGS: typing.Final = "other tags"
_WORDS: typing.Final = {
    ABSENT: "does not list this worker, {name}, although it let it in: {restart}",
    "stalled": (
        "lists this worker, {name}, as stalled, since it hears nothing of it: see journalctl -u "
        "concourse-worker, then {restart}"
    ),
    "landing": "lists this worker, {name}, as landing, by fly land-worker: {restart} ends that",
    "landed": "lists this worker, {name}, as landed, by fly land-worker: {restart} ends that",
    "retiring": "lists this worker, {name}, as retiring: {restart} ends that",
    _OTHER_TAGS: (
        "lists {name} with other tags than this unit's: see in fly workers whether another worker "
        "has the same name, else {restart}"
    ),
}


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A sentence of status.

    Attributes:
        passes: it may be over by itself.
    """

    text: str
    passes: bool


def wrong(state: UnitState) -> Wrong | None:
    """What a web that lets this unit's worker in sees that should not be; None without it."""
    seen = state.seen
    if (sight := seen.wrong) is None or (sight.state == RUNNING and seen.since < _HOOKS):
        return None
    restart = _RESTART.format(unit=state.unit)
    words = _WORDS.get(sight.state, _WORDS[_OTHER_TAGS])
    text = words.format(name=state.worker_name, restart=restart)
    if seen.since < _PATIENCE:
        # Without the remedy, which is not to be taken yet.
        return Wrong(
            f"Waiting for web to see this worker as it is: it {text.split(':')[0]}", passes=True
        )
    return Wrong(f"Web {text}", passes=False)


def rotation_notes(state: UnitState) -> list[str]:
    """What keys wait for, for the line of a unit that is ready."""
    notes = ["its new key waits for web to take it"] if state.rotation.own else []
    if awaited := state.rotation.awaited:
        notes.append(
            f"the new TSA key waits for {', '.join(awaited)} to know it: or juju run "
            f"{state.application}/leader rotate-tsa-key force=true"
        )
    return notes
