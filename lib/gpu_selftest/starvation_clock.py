# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Measure a wait with a clock that stops while the machine itself is starved.

A job can keep processor, memory and disk from the self-test for as long as it wants. Then drivers
and GPUs don't answer either, and the missing answer says nothing about them.
"""

import collections.abc
import pathlib
import threading
import time
import typing

from gpu_agent import paths as wrapper
from gpu_selftest import results
from machine import files, process

# In seconds. SERVICE takes some hundredths of a second on an idle machine, and a tenth with a
# rotating disk.
_EVERY: typing.Final = 1.0
_PROMPT: typing.Final = 0.5
# The share of a wait that must be on this clock before the silent party is blamed.
_SURE: typing.Final = 0.75

# A program that needs what the self-test needs: a process start, some memory, the disk.
SERVICE: typing.Final = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
os.write(file, bytes(4096))
os.fsync(file)
os.unlink(sys.argv[1])
"""


class StarvedError(Exception):
    """The machine had no time, memory or room for some work; that says nothing about its GPUs.

    Any job can cause this, so the work is tried again. The text says which work was not done.
    """


def _nothing() -> None:
    """Stand for the awaited object if it never changes."""


class Pulse:
    """A clock that runs since its start, or since the awaited object last changed.

    Each second it lets the machine run a small program. If that takes long, the second does not
    count. A program that fails at once does count.
    """

    def __init__(
        self,
        awaited: collections.abc.Callable[[], object] = _nothing,
        *,
        home: pathlib.Path = results.HOME,
        service: str = SERVICE,
    ) -> None:
        """Do nothing yet.

        Args:
            awaited: returns what is awaited now; if that becomes another object, the clock starts
                again at 0.
            home: the folder of the file that the small program writes.
            service: the code of that program. Exit status 1 counts as an answer.
        """
        self._awaited = awaited
        self._file = home / "pulse"
        self._service = service
        self._clock: tuple[object, float] = (None, 0.0)
        self._over = threading.Event()

    def start(self, limit: float = 20 * _EVERY) -> None:
        """Start the clock; the shorter the limit in seconds, the more often it looks."""
        files.ensure_directory(self._file.parent)
        every = min(_EVERY, limit / 20)
        threading.Thread(target=self._beat, args=(every,), daemon=True).start()

    def stop(self) -> None:
        """Stop the clock."""
        self._over.set()

    def seconds(self, awaited: object = None) -> float:
        """Return for how many seconds the machine served others while `awaited` was awaited."""
        last, seconds = self._clock
        return seconds if last is awaited else 0.0

    def is_sure(self, limit: float, awaited: object = None) -> bool:
        """Return whether a missing answer within `limit` seconds is not the machine's fault."""
        return self.seconds(awaited) >= _SURE * limit

    def _beat(self, every: float) -> None:
        while True:
            began, before = time.monotonic(), self._awaited()
            if self._over.wait(every):
                return
            served = self._is_served()
            passed, now = time.monotonic() - began, self._awaited()
            last, seconds = self._clock
            if now is not before or now is not last:
                self._clock = (now, 0.0)
            elif served and passed <= every + _PROMPT:
                self._clock = (now, seconds + passed)

    def _is_served(self) -> bool:
        """Run the small program, however long it takes; return False if the machine refuses it."""
        argv = [wrapper.PYTHON, "-I", "-S", "-c", self._service, str(self._file)]
        try:
            process.run(argv, timeout=20 * _PROMPT)
        except process.CommandError as error:
            # A full disk gives an answer too; drivers can answer then as well.
            return error.returncode == 1
        return True
