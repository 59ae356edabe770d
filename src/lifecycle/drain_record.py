# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Stores a drain and a pause of the worker, a file each, which survive reboots."""

import dataclasses
import json
import logging
import time
import typing

from gpu_agent import paths
from machine import files, procfs
from plan.draining import Drain, Pause, Purpose

_DRAIN: typing.Final = "drain.json"
_PAUSE: typing.Final = "pause.json"

_log = logging.getLogger(__name__)


def boot() -> str:
    """The id of this boot."""
    return procfs.boot_id()


def now() -> float:
    """Seconds since boot, time asleep included: no change of the clock makes a drain longer."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def drain() -> Drain | None:
    """Return the drain that has begun; None if none has. A damaged file is removed.

    A drain for a reboot ends with the boot. The time of any other drain begins again at a boot.

    Raises:
        OSError: the record cannot be read or written.
    """
    text = files.read_text(paths.STATE / _DRAIN)
    if text is None:
        return None
    try:
        plain = json.loads(text)
        plain |= {"purpose": Purpose(plain["purpose"]), "skipped": tuple(plain["skipped"])}
        found = Drain(**plain)
    except (ValueError, KeyError, TypeError):
        _log.warning("%s is damaged: the drain begins again", paths.STATE / _DRAIN)
        remove()
        return None
    if found.purpose is Purpose.REBOOT and found.boot != boot():
        remove()
        return None
    here, latest = boot(), now()
    if found.boot != here or max(found.asked, found.since, found.turn_since) > latest:
        # 0 means not begun. Earlier charms wrote seconds since the epoch.
        found = dataclasses.replace(
            found,
            boot=here,
            asked=latest,
            since=latest if found.since else 0.0,
            turn_since=latest if found.turn_since else 0.0,
        )
        write(found)
    return found


def write(found: Drain) -> None:
    """Save a drain.

    Raises:
        OSError: it cannot be written.
    """
    plain = dataclasses.asdict(found) | {"purpose": found.purpose.value}
    files.ensure_directory(paths.STATE)
    files.ensure_file(paths.STATE / _DRAIN, json.dumps(plain) + "\n")


def remove() -> bool:
    """Forget the drain. Return True if there was one."""
    return files.ensure_absent(paths.STATE / _DRAIN)


def pause() -> Pause | None:
    """Return the operator's pause; None without one. A damaged file counts as a pause.

    Raises:
        OSError: the record cannot be read.
    """
    text = files.read_text(paths.STATE / _PAUSE)
    if text is None:
        return None
    try:
        return Pause(str(json.loads(text)["reason"]))
    except (ValueError, KeyError, TypeError):
        return Pause("the reason cannot be read")


def write_pause(found: Pause) -> None:
    """Save a pause.

    Raises:
        OSError: it cannot be written.
    """
    files.ensure_directory(paths.STATE)
    files.ensure_file(paths.STATE / _PAUSE, json.dumps(dataclasses.asdict(found)) + "\n")


def remove_pause() -> bool:
    """Forget the pause. Return True if there was one."""
    return files.ensure_absent(paths.STATE / _PAUSE)
