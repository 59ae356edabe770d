# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A clock for those who wait: it stands still while the machine itself has no time for anybody.

A job can keep processor, memory and disk from the self-test, for as long as it likes. Then no
answer of a driver or a GPU comes either, and nobody can say whose fault that is.
"""

import collections.abc
import threading
import time
import typing

from gpu_agent import paths as wrapper
from gpu_selftest import results
from machine import files, process

# In seconds. What _SERVICE takes above the second is some hundredths of one on an idle machine,
# and a tenth where the disk turns.
_EVERY: typing.Final = 1.0
_PROMPT: typing.Final = 0.5
# Which part of a wait has to be on this clock, so that who gave no answer is to blame.
_SURE: typing.Final = 0.75

# A program that needs what the self-test needs: a start, some memory, the disk.
_SERVICE: typing.Final = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
os.write(file, bytes(4096))
os.fsync(file)
os.unlink(sys.argv[1])
"""


class StarvedError(Exception):
    """The machine had no time, memory or room for a piece of work: that says nothing of its GPUs.

    Any job can bring that about, and it is tried again. The text is what was not done.
    """


def _nothing() -> None:
    """Stands for what is waited for where that is always the same."""


class Pulse:
    """Such a clock, since its start or since something else is waited for.

    Each second it has the machine serve a small program. If that takes long, the second does not
    count. A program that fails at once was served.
    """

    def __init__(self, awaited: collections.abc.Callable[[], object] = _nothing) -> None:
        """Do nothing yet.

        Args:
            awaited: tells what is waited for now; the clock begins anew when that is another
                object.
        """
        self._awaited = awaited
        self._clock: tuple[object, float] = (None, 0.0)
        self._over = threading.Event()

    def start(self, limit: float = 20 * _EVERY) -> None:
        """Begin; the shorter the wait in seconds may be, the faster it beats."""
        files.ensure_directory(results.HOME)
        every = min(_EVERY, limit / 20)
        threading.Thread(target=self._beat, args=(every,), daemon=True).start()

    def stop(self) -> None:
        """Beat no more."""
        self._over.set()

    def seconds(self, awaited: object = None) -> float:
        """For how long the machine has served others while this was waited for, in seconds."""
        last, seconds = self._clock
        return seconds if last is awaited else 0.0

    def is_sure(self, limit: float, awaited: object = None) -> bool:
        """Whether no answer in so many seconds is the fault of who was to give it."""
        return self.seconds(awaited) >= _SURE * limit

    def _beat(self, every: float) -> None:
        while True:
            began, before = time.monotonic(), self._awaited()
            if self._over.wait(every):
                return
            served = _is_served()
            passed, now = time.monotonic() - began, self._awaited()
            last, seconds = self._clock
            if now is not before or now is not last:
                self._clock = (now, 0.0)
            elif served and passed <= every + _PROMPT:
                self._clock = (now, seconds + passed)


def _is_served() -> bool:
    """Have the machine serve somebody, however long it takes; False if it refuses."""
    argv = [wrapper.PYTHON, "-I", "-S", "-c", _SERVICE, str(results.HOME / "pulse")]
    try:
        process.run(argv, timeout=20 * _PROMPT)
    except process.CommandError as error:
        # A full disk answers too; it keeps no driver from doing so.
        return error.returncode == 1
    return True
