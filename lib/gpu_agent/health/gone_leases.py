# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Leases of containers that are gone are given back before anybody wants their GPUs.

Otherwise the next create does that, and waits for the look at who has the GPU open. A container
that has ended its step and is still there keeps its lease: people look into it.
"""

import collections.abc
import logging
import threading
import typing

from gpu_agent import paths as wrapper
from gpu_agent.model.decisions import Decision
from gpu_agent.model.observations import Moment
from gpu_runtime import decision_log as journal
from gpu_runtime import lease_manager as broker
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.refusal import Refused

# Between two tries, in seconds; the longer one where a GPU can't go on, since that rarely changes
# soon: a look costs 0.1 s of a processor, and seconds of one with a million descriptors.
_APART: typing.Final = 15.0
_APART_REFUSED: typing.Final = 300.0

_log = logging.getLogger(__name__)


class Returned:
    """The end of leases whose containers are gone, as a part of the watch.

    The look at who has a GPU open may take long, so it has a thread of its own.
    """

    def __init__(self, store: str, log: str = str(wrapper.LOG)) -> None:
        """Begin with nothing given back.

        Args:
            store: the folder of leases.
            log: the operators' log of the runtime.
        """
        self._store, self._log = Store(store), log
        self._thread: threading.Thread | None = None
        self._tried, self._apart = float("-inf"), _APART

    def turn(self, moment: Moment, _decisions: collections.abc.Sequence[Decision]) -> None:
        """Begin to end such leases, unless that goes on or was tried a short while ago."""
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or moment.now < self._tried + self._apart:
            return
        if any(not (one.in_use or one.handing_over) for one in moment.holdings or ()):
            self._tried = moment.now
            # One that hangs is no reason for the watch to stay when it is to end.
            self._thread = threading.Thread(target=self._give_back, daemon=True)
            self._thread.start()

    def _give_back(self) -> None:
        apart = _APART
        try:
            for name, holder in self._store.read().holders.items():
                host = Host()
                if not host.is_gone(name, holder):
                    continue
                if not broker.give_back(self._store, host, name):
                    apart = _APART_REFUSED
                journal.intruders(self._log, host.intruders, holder.gpus)
        except (OSError, ValueError, Refused) as error:
            apart = _APART_REFUSED
            _log.debug("leases can't be given back: %s", error)
        # If a GPU can't go on, the next request for it says why.
        self._apart = apart
