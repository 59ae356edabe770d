# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Return leases of containers that no longer exist before the next request for their GPUs.

Otherwise the next create does that, and waits until it is known which processes have the GPU open.
A container that exists after its step has ended keeps its lease, so that people can look into it.
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

# Seconds between two tries. The pause is longer if a GPU can't be handed on, since that rarely
# changes soon, and the search for open devices costs 0.1 s of a processor or, with a million
# descriptors, seconds.
_APART: typing.Final = 15.0
_APART_REFUSED: typing.Final = 300.0

_log = logging.getLogger(__name__)


class Returned:
    """Ends leases whose containers are gone; a part of the GPU health service.

    The search for processes that have a GPU open may take long, so it has its own thread.
    """

    def __init__(self, store: str, log: str = str(wrapper.LOG)) -> None:
        """Start without a thread.

        Args:
            store: the folder of leases.
            log: the decision log of the GPU runtime.
        """
        self._store, self._log = Store(store), log
        self._thread: threading.Thread | None = None
        self._tried, self._apart = float("-inf"), _APART

    def turn(self, moment: Moment, _decisions: collections.abc.Sequence[Decision]) -> None:
        """Start to end such leases, unless that is running or was tried recently."""
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or moment.now < self._tried + self._apart:
            return
        if any(not (one.in_use or one.handing_over) for one in moment.holdings or ()):
            self._tried = moment.now
            # A hanging thread must not keep the service from ending.
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
            _log.debug("cannot return leases: %s", error)
        # If a GPU can't be handed on, the next request for it reports why.
        self._apart = apart
