# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""This unit and the machine: taken at its first hook, cleared after a unit that is gone, given up.

On a machine that is another unit's nothing is changed.
"""

import collections.abc
import pathlib
import re
import typing

from ci.concourse import release
from ci.concourse.options import worker as worker_options
from ci.concourse.web import local_postgresql, web
from ci.concourse.worker import container_network as network
from ci.concourse.worker import worker
from gpu_agent.engines import registry as registration
from gpu_agent.gpu_run import service as gpu_run
from gpu_agent.health import service as watch
from gpu_agent.reporting.receipts import log as receipts
from gpu_agent.runtime import install as wrapper
from host import software
from lifecycle import drain
from lifecycle import machine_claim as owner
from lifecycle import remediation_record as recovery_record
from lifecycle import unit_record as memory
from machine import files
from options.values import OptionError
from parts import selftest as automatic
from plan.unit_id import UnitId

_CHARM: typing.Final = "gpu-ci-worker"


def take(
    unit: UnitId, mode: str, *, new: bool, progress: collections.abc.Callable[[str], None]
) -> None:
    """Have the machine for this unit; what a unit that is gone has left is cleared away first.

    Args:
        unit: this one.
        mode: its deployment-mode, known or not.
        new: whether it has not been set up before.
        progress: told what takes long.

    Raises:
        lifecycle.machine_claim.TakenError: if another unit has it.
    """
    found = None if owner.read() else _found(unit, mode, new=new)
    former = owner.claim(unit, found)
    if former:
        progress(f"Clearing away what {former.name} has left on this machine")
        worker.retire(worker.FAREWELL_SECONDS, progress)
        local_postgresql.set_aside(str(former))
        rooms = (worker, web, watch, gpu_run, automatic, registration, wrapper, receipts)
        for room in rooms:
            room.remove()
    if former or new:
        memory.forget()
        drain.forget()
        recovery_record.forget()
    if former:
        owner.settle(unit)


def leave(
    unit: UnitId,
    options: collections.abc.Mapping[str, object],
    progress: collections.abc.Callable[[str], None],
) -> None:
    """Note that this unit's removal has begun, and retire its worker.

    Juju puts off no removal, and other units on the machine wait for this hook, so builds have
    five minutes at most: who wants to give them longer pauses the worker before.

    Raises:
        OSError: the note can't be written, or an older one can't be removed. The worker has been
            retired all the same, if this unit has the machine.
        machine.process.CommandError: systemd refuses something.
    """
    if not owner.has(unit):
        return
    try:
        memory.set_leaving()
    finally:
        try:
            patience = worker_options.drain_timeout(options)
        except OptionError:
            patience = worker.RETIRE_SECONDS
        worker.retire(min(patience, worker.RETIRE_SECONDS), progress)
        drain.forget()


def give_up(unit: UnitId) -> None:
    """Remove all that this unit has set up, its database too, and let others have the machine."""
    if not owner.has(unit):
        return
    before = (
        worker,
        web,
        local_postgresql,
        watch,
        gpu_run,
        registration,
    )  # what runs from the rest
    for room in (*before, automatic, wrapper, receipts, release, network):
        room.remove()
    software.remove()
    owner.give_up()


def _found(unit: UnitId, mode: str, *, new: bool) -> UnitId | None:
    """Whose things are here where there is no record, which earlier revisions did not keep."""
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
