# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Too many GPUs out at once for one cause: then it is the driver or the host. Pure.

More than the allowed share must be out, and two GPUs at least: one alone has nothing in common
with others. What is out stays out, and whatever returns does so; no further GPU goes out for that
cause until it is gone.
"""

import collections.abc
import typing

from gpu_agent.fault_policy.state import MOST_RECENT, Gpu, Memory, Occurrence

WINDOW: typing.Final = 300.0
"""In seconds."""

_SEVERAL: typing.Final = 2


def held(memory: Memory, cause: str, uuid: str) -> str:
    """The suspected cause that keeps a GPU from going out; empty: none does.

    One trouble of the host has many signs: a GPU that met a suspected cause lately goes out for
    no other either.
    """
    if not cause:
        return ""
    met = [one.cause for one in memory.recent if one.uuid == uuid]
    met += memory.gpus[uuid].held.values()
    return next((one for one in (cause, *met) if one in memory.suspects), "")


def note(memory: Memory, now: float, cause: str, uuid: str) -> None:
    """Remember that a GPU went out, or would have."""
    if cause:
        kept = [
            one
            for one in memory.recent
            if now - one.at < WINDOW and (one.cause, one.uuid) != (cause, uuid)
        ]
        memory.recent = (*kept, Occurrence(now, cause, uuid))[-MOST_RECENT:]


def trip(memory: Memory, now: float, uuids: collections.abc.Collection[str], percent: int) -> None:
    """Suspect the cause that too many of these GPUs went out for, if there is one."""
    causes = {one.cause: None for one in memory.recent if now - one.at < WINDOW}
    for cause in causes:
        hit = {
            one.uuid
            for one in memory.recent
            if one.cause == cause and now - one.at < WINDOW and one.uuid in uuids
        }
        if _exceeds(len(hit), len(uuids), percent) and cause not in memory.suspects:
            memory.suspects = (*memory.suspects, cause)


def end(memory: Memory, now: float, uuids: collections.abc.Collection[str], percent: int) -> None:
    """Stop suspecting what is gone; to be asked after a look at all GPUs.

    It is gone where no GPU has met it for five minutes, and those that still show it are no more
    than may be out: they go out then.
    """
    left: list[str] = []
    for cause in memory.suspects:
        lately = any(one.cause == cause and now - one.at < WINDOW for one in memory.recent)
        known = [memory.gpus[uuid] for uuid in uuids if uuid in memory.gpus]
        showing = [gpu for gpu in known if _shows(gpu, cause)]
        if lately or _exceeds(len(showing), len(uuids), percent):
            left.append(cause)
    memory.suspects = tuple(left)


def _shows(gpu: Gpu, cause: str) -> bool:
    out_for_it = gpu.out is not None and gpu.out.cause == cause
    standing = {*gpu.standing.values(), *gpu.held.values()}
    return cause in standing or (out_for_it and bool(gpu.standing))


def _exceeds(count: int, total: int, percent: int) -> bool:
    return count >= _SEVERAL and count * 100 > total * percent
