# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Signals by the C half of the standard library's signal alone.

`import signal` makes enumerations of all its numbers at each start: 4 ms (see jsontext).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal


def as_a_child_expects() -> None:
    """Undo what Python ignores: across exec that would stay so, into the container."""
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)


class Process:
    """A process that can be killed without hitting another one that got its number since."""

    def __init__(self, pid: int) -> None:
        """Take hold of the process with the number `pid`.

        Raises:
            ProcessLookupError: there is none.
        """
        self._descriptor = os.pidfd_open(pid)

    def kill(self) -> None:
        """Send SIGKILL; nothing happens if it is gone."""
        try:
            _signal.pidfd_send_signal(self._descriptor, _signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)
