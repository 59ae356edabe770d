# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the wrapper's log tells of a lease: how long it waited, who ended it.

The wrapper writes it: gpu_runtime.decision_log.
"""

import json
import pathlib
import typing

from gpu_agent.reporting.receipts.receipt import UnsoundError, cut, is_number, is_text, table
from machine import log_tail as followed

PATH: typing.Final = pathlib.Path("/var/log/gpu-ci/oci.log")

UNUSED: typing.Final = "gpu-unused"
"""The kind of a line that says that a step was ended since it did not use its GPU."""

KILLS: typing.Final = ("gpu-release", UNUSED)
"""Kinds of lines by which this worker or its operator says that it ended a container."""

_BEFORE: typing.Final = 1 << 18  # bytes of what was there before, for the leases that are open
_MOST: typing.Final = 1024  # containers that are remembered


class Journal:
    """The log, read as it grows."""

    def __init__(self, path: pathlib.Path = PATH) -> None:
        self._log = followed.Followed(path, before=_BEFORE)
        self._waited: dict[str, float] = {}
        self._killed: dict[str, tuple[str, float, str]] = {}

    def follow(self) -> None:
        """Read what is new.

        Raises:
            OSError: it can't be read; a log that is not there yet is an empty one.
        """
        for line in self._log.lines():
            self._take(line)

    def waited(self, container: str) -> float | None:
        """Seconds that a container waited for the GPUs that it got; None if that is not told."""
        return self._waited.get(container)

    def killed(self, container: str, boot: str, since: float) -> str:
        """Why a container was ended by this worker or its operator; empty: it was not.

        Args:
            container: its id.
            boot: the kernel's name for the boot in which that counts.
            since: the time from which on it counts, in seconds since that boot.
        """
        where, when, why = self._killed.get(container, ("", 0.0, ""))
        return why if where == boot and when >= since else ""

    def _take(self, line: bytes) -> None:
        try:
            entry = table(json.loads(line))
        except (UnsoundError, ValueError, RecursionError):
            return  # the first may have lost its head
        container, kind, waited = (entry.get(key) for key in ("container", "kind", "waited_ms"))
        if not is_text(container) or not is_text(kind):
            return
        if kind in KILLS:
            why = f"{kind}: {cut(str(entry.get('reason', '')))}"
            at = entry.get("since_boot")
            when = float(str(at)) if is_number(at) else 0.0  # 0: by an older charm
            _remember(self._killed, str(container), (str(entry.get("boot", "")), when, why))
        elif kind in ("task", "privileged task") and entry.get("granted") and is_number(waited):
            _remember(self._waited, str(container), float(str(waited)) / 1000)


_Value = typing.TypeVar("_Value", tuple[str, float, str], float)


def _remember(found: dict[str, _Value], container: str, value: _Value) -> None:
    found.pop(container, None)
    found[container] = value
    if len(found) > _MOST:
        del found[next(iter(found))]
