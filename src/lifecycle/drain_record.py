# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Stores a drain and a pause of the worker, a file each, which survive reboots."""

import dataclasses
import json
import logging
import pathlib
import typing

from lifecycle.clock import Clock
from machine import files
from plan.draining import Drain, Pause, Purpose

_DRAIN: typing.Final = "drain.json"
_PAUSE: typing.Final = "pause.json"

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class DrainRecord:
    """The drain and the pause of a unit.

    Attributes:
        folder: the folder of the files.
        clock: tells the boot, and the seconds since. So a drain is no longer if the machine's time
            is set.
    """

    folder: pathlib.Path
    clock: Clock

    def rests(self) -> bool:
        """Whether the unit takes no jobs now: it is paused, or a drain has begun.

        Raises:
            OSError: the records cannot be read.
        """
        found = self.drain()
        return self.pause() is not None or (found is not None and found.since > 0)

    def drain(self) -> Drain | None:
        """Return the drain that has begun; None if none has. A damaged file is removed.

        A drain for a reboot ends with the boot. The time of any other drain begins again at a
        boot.

        Raises:
            OSError: the record cannot be read or written.
        """
        text = files.read_text(self.folder / _DRAIN)
        if text is None:
            return None
        try:
            plain = json.loads(text)
            plain |= {"purpose": Purpose(plain["purpose"]), "skipped": tuple(plain["skipped"])}
            found = Drain(**plain)
        except (ValueError, KeyError, TypeError):
            _log.warning("%s is damaged: the drain begins again", self.folder / _DRAIN)
            self.remove()
            return None
        if found.purpose is Purpose.REBOOT and found.boot != self.clock.boot():
            self.remove()
            return None
        here, latest = self.clock.boot(), self.clock.since_boot()
        if found.boot != here or max(found.asked, found.since, found.turn_since) > latest:
            # 0 means not begun. Earlier charms wrote seconds since the epoch.
            found = dataclasses.replace(
                found,
                boot=here,
                asked=latest,
                since=latest if found.since else 0.0,
                turn_since=latest if found.turn_since else 0.0,
            )
            self.write(found)
        return found

    def write(self, found: Drain) -> None:
        """Save a drain.

        Raises:
            OSError: it cannot be written.
        """
        plain = dataclasses.asdict(found) | {"purpose": found.purpose.value}
        files.ensure_directory(self.folder)
        files.ensure_file(self.folder / _DRAIN, json.dumps(plain) + "\n")

    def remove(self) -> bool:
        """Forget the drain. Return True if there was one."""
        return files.ensure_absent(self.folder / _DRAIN)

    def pause(self) -> Pause | None:
        """Return the operator's pause; None without one. A damaged file counts as a pause.

        Raises:
            OSError: the record cannot be read.
        """
        text = files.read_text(self.folder / _PAUSE)
        if text is None:
            return None
        try:
            return Pause(str(json.loads(text)["reason"]))
        except (ValueError, KeyError, TypeError):
            return Pause("the reason cannot be read")

    def write_pause(self, found: Pause) -> None:
        """Save a pause.

        Raises:
            OSError: it cannot be written.
        """
        files.ensure_directory(self.folder)
        files.ensure_file(self.folder / _PAUSE, json.dumps(dataclasses.asdict(found)) + "\n")

    def remove_pause(self) -> bool:
        """Forget the pause. Return True if there was one."""
        return files.ensure_absent(self.folder / _PAUSE)
