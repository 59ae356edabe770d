# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Signals: what a child expects of them, and killing a process that is surely the one meant."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    # `signal` adds enums to it, and to import these takes as long as to import all of our modules.
    import _signal as signal


def as_a_child_expects() -> None:
    """Undo what Python ignores: across exec that would stay so, into the container."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


class Process:
    """A process that can be killed without hitting another one that got its number since."""

    def __init__(self, pid: int) -> None:
        """Take hold of the process with the number `pid`.

        Raises:
            ProcessLookupError: there is none.
            OSError: it can't be taken hold of.
        """
        try:
            self._descriptor = os.pidfd_open(pid)
        except OSError as error:
            # By now it is the number of a thread, whose process has another (pidfd_open(2)).
            if error.errno == errno.EINVAL:
                raise ProcessLookupError(errno.ESRCH, "no process", str(pid)) from error
            raise

    def kill(self) -> None:
        """Send SIGKILL; nothing happens if it is gone."""
        try:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)
