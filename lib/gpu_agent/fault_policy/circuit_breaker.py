# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The circuit breaker: if too many GPUs fail for one cause, suspect driver or host. Pure.

It trips if more than the allowed share of the GPUs, and at least two, failed for the same cause.
Quarantined GPUs stay quarantined and return as usual. No further GPU is quarantined for the cause
until it is gone.
"""

import collections.abc
import typing

from gpu_agent.fault_policy.state import MOST_RECENT, Gpu, Memory, Occurrence

WINDOW: typing.Final = 300.0
"""In seconds."""

_SEVERAL: typing.Final = 2


def held(memory: Memory, cause: str, uuid: str) -> str:
    """The suspected cause that keeps a GPU from being quarantined; empty: none.

    One fault of the host has many signs. So a GPU that had a suspected cause recently is not
    quarantined for another cause either.
    """
    if not cause:
        return ""
    met = [one.cause for one in memory.recent if one.uuid == uuid]
    met += memory.gpus[uuid].held.values()
    return next((one for one in (cause, *met) if one in memory.suspects), "")


def note(memory: Memory, now: float, cause: str, uuid: str) -> None:
    """Remember that a GPU was quarantined, or would have been."""
    if cause:
        kept = [
            one
            for one in memory.recent
            if now - one.at < WINDOW and (one.cause, one.uuid) != (cause, uuid)
        ]
        memory.recent = (*kept, Occurrence(now, cause, uuid))[-MOST_RECENT:]


def trip(memory: Memory, now: float, uuids: collections.abc.Collection[str], percent: int) -> None:
    """Suspect the causes for which too many of these GPUs failed."""
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
    """Stop suspecting causes that are gone. Call after a poll of all GPUs.

    A cause is gone if no GPU had it for five minutes and the GPUs that still show it are within
    the limit; these are quarantined then.
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
