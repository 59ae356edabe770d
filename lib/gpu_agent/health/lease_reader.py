# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read the leases and the records of unavailable GPUs that the GPU runtime goes by."""

import collections.abc
import contextlib
import logging
import pathlib
import types

from gpu_agent.model.card import Card
from gpu_agent.model.observations import Holding
from gpu_runtime import lease_scheduler as leases
from gpu_runtime import policy, unavailable
from gpu_runtime import queue_messages as line
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import STEP, gives_way
from gpu_runtime.refusal import Refused
from gpu_runtime.unavailable import Unavailable
from machine import inotify

_log = logging.getLogger(__name__)


def holdings(store: str) -> tuple[Holding, ...] | None:
    """The holders of leases in the store in this folder; None if it can't be read."""
    host = Host()
    try:
        holders = Store(store).read().holders.items()
        return tuple(
            Holding(
                container=name,
                bundle=holder.bundle,
                devices=tuple(holder.gpus),
                since=holder.since,
                in_use=host.in_use(name, holder),
                ours=name.startswith(policy.SELF_TEST_CONTAINER),
                waited=holder.waited,
                kind=holder.kind,
                who="" if holder.kind == STEP else line.who(name, holder),
                handing_over=leases.is_handed_over(holder, host),
                is_idle=gives_way(holder),
            )
            for name, holder in holders
        )
    except (OSError, ValueError, Refused) as error:
        _log.debug("cannot read who holds a GPU: %s", error)
        return None


class UnavailableGpus:
    """The GPUs that tasks do not get now, as the GPU runtime reads their records.

    Attributes:
        causes: their UUIDs, each with the cause; as before if the records can't be read.
    """

    def __init__(self, folders: tuple[str, ...]) -> None:
        """Start with no GPU.

        Args:
            folders: the folders with the records; if a GPU has several records, that of the last
                folder counts.
        """
        self._folders = folders
        self.causes: collections.abc.Mapping[str, Unavailable] = {}

    def look(self, cards: tuple[Card, ...]) -> None:
        """Read the records again."""
        try:
            found = [unavailable.read_folder(folder) for folder in self._folders]
        except OSError as error:
            _log.warning("cannot read which GPUs are unavailable: %s", error)
            return
        causes: dict[str, Unavailable] = {}
        for records in found:
            causes |= records
        # A MIG device may have a record of its own, but only whole GPUs are reported.
        ours = {card.uuid for card in cards}
        self.causes = {uuid: cause for uuid, cause in causes.items() if uuid in ours}


class Changes:
    """Notices changes of the leases; use as a context manager.

    Without inotify, changes are seen at the next turn only.
    """

    def __init__(self, store: str) -> None:
        self._store, self._stack = pathlib.Path(store), contextlib.ExitStack()
        self._watch: inotify.Watch | None = None
        self._is_logged = False

    def __enter__(self) -> "Changes":
        try:
            self._watch = self._stack.enter_context(inotify.Watch())
        except OSError as error:
            _log.warning("cannot watch the leases for changes: %s", error)
        self.settle()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def descriptor(self) -> int | None:
        """A descriptor that is readable after a change; None without inotify."""
        return self._watch.descriptor if self._watch else None

    def settle(self) -> None:
        """Drop the changes seen so far, and watch the store if it exists by now."""
        if self._watch is None:
            return
        self._watch.names(0)
        try:
            # Each time again: a store that was removed and created again is another folder.
            self._watch.add(self._store)
        except FileNotFoundError:
            # The first task creates the store; until then its parent folder is watched.
            with contextlib.suppress(OSError):
                self._watch.add(self._store.parent)
        except OSError as error:
            if not self._is_logged:
                _log.warning("cannot watch %s for changes: %s", self._store, error)
            self._is_logged = True
