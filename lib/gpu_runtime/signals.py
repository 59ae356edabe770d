# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Signals: reset them for a child, and kill a process without hitting another one."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    # `signal` adds enums, whose import takes as long as that of all modules of this package.
    import _signal as signal


def as_a_child_expects() -> None:
    """Reset the signals that Python ignores: exec would pass that on into the container."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


class Process:
    """A process that can be killed without hitting a later process with the same number."""

    def __init__(self, pid: int) -> None:
        """Take hold of the process with the number `pid`.

        Raises:
            ProcessLookupError: it does not exist.
            OSError: pidfd_open failed.
        """
        try:
            self._descriptor = os.pidfd_open(pid)
        except OSError as error:
            # The number is now a thread's, whose process has another number (pidfd_open(2)).
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
        """Close the descriptor."""
        os.close(self._descriptor)
