# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Why a GPU is unavailable to tasks: a small type, its record in a file, and its text for people.

A folder of records has a file `<GPU's id>.json` for each unavailable GPU. The charm, the GPU
health service and the self-test write these files; the GPU runtime reads them at each decision.
"""

from __future__ import annotations

import os

from gpu_runtime.json_files import read_object
from gpu_runtime.json_shape import text

CORDONED = "cordoned"
QUARANTINED = "quarantined"
EXTERNAL = "external"
UNUSABLE = "unusable"
UNFIT = "unfit"

OPERATOR = "operator"
DAMAGED_RECORD = "damaged-record"
EXTERNAL_PROCESS = "external-process"
RESIDUAL_MEMORY = "residual-memory"

_TEXTS = {
    CORDONED: "cordoned by the operator",
    QUARANTINED: "quarantined",
    EXTERNAL: "in use outside CI",
    UNUSABLE: "unusable",
}
# Names in a record's field `by` that come from a test or the GPU health service, whose GPUs the
# self-test may have: it finds out whether they work again.
_TESTABLE = ("self-test", "watch")
# How the reasons began, before records had the fields `kind` and `code`.
_IN_USE, _DIRTY = "in use outside CI: ", "dirty: "


class Unavailable:
    """Why tasks do not get a GPU now. Frozen.

    Attributes:
        kind: CORDONED: an operator took the GPU out. QUARANTINED: a fault did. EXTERNAL: the GPU
            is in use outside CI, by a process that no lease covers, or its memory is still taken.
            UNUSABLE: tasks cannot use the GPU in its present state, for example if it is missing.
            UNFIT: the GPU does not meet the requirements of this container's image.
        code: the cause for programs, in kebab-case: OPERATOR, the id of a check, the name of a
            fault, EXTERNAL_PROCESS, RESIDUAL_MEMORY and so on.
        reason: the cause for people, one line.
    """

    __slots__ = ("code", "kind", "reason")

    code: str
    kind: str
    reason: str

    def __init__(self, kind: str, code: str, reason: str) -> None:
        for name, value in (("kind", kind), ("code", code), ("reason", reason)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} of an Unavailable cannot be changed")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unavailable) and self._all == other._all

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        return f"Unavailable{self._all}"

    @property
    def _all(self) -> tuple[str, str, str]:
        return self.kind, self.code, self.reason

    @property
    def is_taken_out(self) -> bool:
        """Whether the GPU stays out until an operator or a self-test returns it."""
        return self.kind in (CORDONED, QUARANTINED)

    def describe(self) -> str:
        """What the GPU is, for people, such as `quarantined: Xid 79`; fits after `GPU 0 is`."""
        title = _TEXTS.get(self.kind, "")
        return ": ".join(part for part in (title, self.reason) if part)

    def as_record(self) -> dict[str, str]:
        """The content of the GPU's file; `read_folder` reads it."""
        found = {"kind": self.kind, "code": self.code, "reason": self.reason}
        # Runtimes of an earlier revision give a GPU to the self-test by this field.
        return {**found, "by": "self-test"} if self.kind == UNUSABLE else found


def read_folder(folder: str, *, testing: bool = False) -> dict[str, Unavailable]:
    """The ids of the GPUs that a folder of records makes unavailable, each with the cause.

    Args:
        folder: path of the folder; empty if it does not exist.
        testing: for the self-test, which may have the GPUs that itself or the GPU health service
            took out.

    Raises:
        OSError: the folder can't be read.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    records = {
        name[: -len(".json")]: _record(f"{folder}/{name}")
        for name in names
        if name.endswith(".json")
    }
    return {
        name: _of_record(record)
        for name, record in records.items()
        if record is not None and not (testing and record.get("by") in _TESTABLE)
    }


def _record(path: str) -> dict[str, object] | None:
    """A file's content: None if it was removed just now, empty if it is damaged."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}  # the GPU stays unavailable: the record was written for that


def _of_record(found: dict[str, object]) -> Unavailable:
    reason, by = text(found.get("reason")), text(found.get("by"))
    if not reason:
        return Unavailable(QUARANTINED, DAMAGED_RECORD, "its record is damaged")
    code = text(found.get("code")) or text(found.get("check"))
    kind = text(found.get("kind"))
    if kind:
        return Unavailable(kind, code, reason)
    if by == OPERATOR:
        return Unavailable(CORDONED, OPERATOR, reason)
    if by:
        return Unavailable(QUARANTINED, code, reason)
    # Written by an earlier revision of the charm, and rewritten at the next event.
    if reason.startswith(_DIRTY):
        return Unavailable(EXTERNAL, RESIDUAL_MEMORY, reason[len(_DIRTY) :])
    in_use = reason[len(_IN_USE) :] if reason.startswith(_IN_USE) else reason
    return Unavailable(EXTERNAL, EXTERNAL_PROCESS, in_use)
