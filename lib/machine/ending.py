# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether a service of ours should end: systemd asks for it, or the charm is gone."""

import logging
import os
import pathlib
import signal
import time
import types
import typing

# Seconds without the charm's files before the service ends; a refresh removes them for a moment.
_PATIENCE: typing.Final = 60.0
_SIGNALS: typing.Final = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger(__name__)


class Ending:
    """Whether the service should end; use as a context manager.

    Attributes:
        descriptor: readable after a signal.
    """

    def __init__(self, dispatch: str) -> None:
        self._dispatch = pathlib.Path(dispatch)
        self._is_asked, self._missed = False, float("inf")
        self.descriptor, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> "Ending":
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for one in _SIGNALS:
            signal.signal(one, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        # A second signal ends the process at once.
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.close(self.descriptor)
        os.close(self._writer)

    def is_due(self) -> bool:
        """Whether systemd sent a signal, or the charm is gone."""
        now = time.monotonic()
        self._missed = float("inf") if self._dispatch.exists() else min(self._missed, now)
        if now - self._missed > _PATIENCE:
            _log.info("%s is gone, ending", self._dispatch)
            return True
        return self._is_asked

    def _ask(self, _number: int, _frame: types.FrameType | None) -> None:
        self._is_asked = True
