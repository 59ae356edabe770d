# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Finds the unit that has left Concourse on a machine without a record of its owner.

Early revisions kept no such record.
"""

import pathlib
import re
import typing

from ci.concourse.web import web
from ci.concourse.worker import worker
from machine import files
from plan.unit_id import UnitId

_CHARM: typing.Final = "gpu-ci-worker"


def find(unit: UnitId, mode: str, *, new: bool) -> UnitId | None:
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
