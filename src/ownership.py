# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""This unit and the machine: taken at its first hook, cleared after a unit that is gone, given up.

On a machine that is another unit's nothing is changed.
"""

import collections.abc
import pathlib
import re
import typing

from ci.concourse.options import worker as worker_options
from ci.concourse.web import web
from ci.concourse.worker import worker
from effects import Effects, Say
from lifecycle import drain, machine_claim, remediation_record, unit_record
from machine import files
from options.values import OptionError
from plan.unit_id import UnitId

_CHARM: typing.Final = "gpu-ci-worker"
# In this order: a part goes before the parts that its programs run from.
_CLEARED: typing.Final = (
    *("worker", "web", "health watch", "gpu-run", "self-test", "engines", "runtime", "receipts"),
)
_GIVEN_UP: typing.Final = (
    *("worker", "web", "database", "health watch", "gpu-run", "engines", "self-test", "runtime"),
    *("receipts", "release", "network", "host software"),
)


def take(unit: UnitId, mode: str, effects: Effects, say: Say, *, new: bool) -> None:
    """Have the machine for this unit; what a unit that is gone has left is cleared away first.

    Args:
        unit: this one.
        mode: its deployment-mode, known or not.
        effects: the calls that change the machine.
        say: reports a step that takes long.
        new: whether it has not been set up before.

    Raises:
        lifecycle.machine_claim.TakenError: if another unit has it.
    """
    found = None if machine_claim.read() else _found(unit, mode, new=new)
    former = machine_claim.claim(unit, found)
    if former:
        say(f"Clearing away what {former.name} has left on this machine")
        effects.retire_worker(worker.FAREWELL_SECONDS, say)
        effects.set_database_aside(str(former))
        for part in _CLEARED:
            effects.remove[part]()
    if former or new:
        unit_record.forget()
        drain.forget()
        remediation_record.forget()
    if former:
        machine_claim.settle(unit)


def leave(
    unit: UnitId, options: collections.abc.Mapping[str, object], effects: Effects, say: Say
) -> None:
    """Note that this unit's removal has begun, and retire its worker.

    Juju puts off no removal, and other units on the machine wait for this hook, so builds have
    five minutes at most: who wants to give them longer pauses the worker before.

    Raises:
        OSError: the note can't be written, or an older one can't be removed. The worker has been
            retired all the same, if this unit has the machine.
        machine.process.CommandError: systemd refuses something.
    """
    if not machine_claim.has(unit):
        return
    try:
        unit_record.set_leaving()
    finally:
        try:
            patience = worker_options.drain_timeout(options)
        except OptionError:
            patience = worker.RETIRE_SECONDS
        effects.retire_worker(min(patience, worker.RETIRE_SECONDS), say)
        drain.forget()


def give_up(unit: UnitId, effects: Effects) -> None:
    """Remove all that this unit has set up, its database too, and let others have the machine."""
    if not machine_claim.has(unit):
        return
    for part in _GIVEN_UP:
        effects.remove[part]()
    machine_claim.give_up()


def _found(unit: UnitId, mode: str, *, new: bool) -> UnitId | None:
    """Return the unit whose files are here without a record, which earlier revisions lacked."""
    agents = pathlib.Path(unit.agent).parent
    if named := worker.name():
        # Such a revision named the worker so.
        return _on_same_machine(unit, "/".join(named.rsplit("-", 1)), agents / f"unit-{named}")
    if not web.is_set_up():
        return None
    others = [agent for agent in sorted(agents.glob("unit-*")) if _is_another(agent, unit)]
    if others and (new or mode == "worker"):
        name = others[0].name.removeprefix("unit-")
        return _on_same_machine(unit, "/".join(name.rsplit("-", 1)), others[0])
    return UnitId("a unit that is gone", "", "", "") if new else unit


def _on_same_machine(unit: UnitId, name: str, agent: pathlib.Path) -> UnitId:
    # Juju has units of one model on a machine.
    return UnitId(name, unit.model, unit.model_uuid, str(agent))


def _is_another(agent: pathlib.Path, unit: UnitId) -> bool:
    """Whether this is the agent of another unit of this charm."""
    metadata = files.read_text(agent / "charm/metadata.yaml") or ""
    ours = re.search(rf"^name: {_CHARM}$", metadata, re.MULTILINE)
    return ours is not None and str(agent) != unit.agent
