# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Who holds which GPU, and which get no task: what the wrapper goes by, read and never changed."""

import collections.abc
import contextlib
import logging
import pathlib
import types

from gpu_agent.model.card import Card
from gpu_agent.model.observations import Holding
from gpu_runtime import lease_scheduler as leases
from gpu_runtime import policy
from gpu_runtime import queue_messages as line
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import STEP
from gpu_runtime.refusal import Refused
from machine import inotify

_log = logging.getLogger(__name__)


def holdings(store: str) -> tuple[Holding, ...] | None:
    """Each container that has a lease by the store in this folder; None where it can't be told."""
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
            )
            for name, holder in holders
        )
    except (OSError, ValueError, Refused) as error:
        _log.debug("who holds a GPU can't be told: %s", error)
        return None


class Out:
    """The GPUs that get no task now, as the wrapper reads it.

    Attributes:
        reasons: their UUIDs, each with the reason; where that can't be told, as it was.
        cordoned: those of them that come back by themselves.
    """

    def __init__(self, folders: tuple[str, ...], quarantine: str) -> None:
        """Begin with none.

        Args:
            folders: all of them, of which a later one counts more, as in gpu_runtime.policy.
            quarantine: the one of them whose GPUs do not come back by themselves.
        """
        self._folders, self._quarantine = folders, quarantine
        self.reasons: collections.abc.Mapping[str, str] = {}
        self.cordoned: frozenset[str] = frozenset()

    def look(self, cards: tuple[Card, ...]) -> None:
        """Read it again."""
        try:
            found = {folder: policy.cordons(folder) for folder in self._folders}
        except OSError as error:
            _log.warning("which GPUs are out of use can't be told now: %s", error)
            return
        reasons: dict[str, str] = {}
        for entries in found.values():
            reasons |= entries
        # Of a GPU that is in parts each part may be out, but the whole alone is told.
        ours = {card.uuid for card in cards}
        self.reasons = {uuid: reason for uuid, reason in reasons.items() if uuid in ours}
        self.cordoned = frozenset(self.reasons) - found.get(self._quarantine, {}).keys()


class Changes:
    """Tells that the leases have changed; use as a context manager.

    Where the kernel does not tell of names, nothing does, and the watch's own pace has to do.
    """

    def __init__(self, store: str) -> None:
        self._store, self._stack = pathlib.Path(store), contextlib.ExitStack()
        self._watch: inotify.Watch | None = None
        self._is_told = False

    def __enter__(self) -> "Changes":
        try:
            self._watch = self._stack.enter_context(inotify.Watch())
        except OSError as error:
            _log.warning("the watch is told of no change of the leases: %s", error)
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
        """What has something to read when they have changed."""
        return self._watch.descriptor if self._watch else None

    def settle(self) -> None:
        """Take note of what has changed so far, and follow the store if it has come."""
        if self._watch is None:
            return
        self._watch.names(0)
        try:
            # Again each time: a store that was removed and made anew is another folder.
            self._watch.add(self._store)
        except FileNotFoundError:
            # The first task makes it; until then its folder tells.
            with contextlib.suppress(OSError):
                self._watch.add(self._store.parent)
        except OSError as error:
            if not self._is_told:
                _log.warning("the watch is not told of changes of %s: %s", self._store, error)
            self._is_told = True
