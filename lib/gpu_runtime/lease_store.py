# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The store of leases: two kinds of files in one folder of /run, which a reboot empties.

`leases.json` is the table of holders and waiters (lease_table.Table); one flock on the folder
guards every decision. `containers/<id>.json` has what a process in that container gets, as long
as its bundle is there: {"bundle", "environment": {name: value}, "groups": [gid], "gpus": [id]},
and in "holder" its lease as granted, from which a lost table is restored. The front looks for that
file, so its name is part of the contract with it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from gpu_runtime import proc
from gpu_runtime.grant import Grant
from gpu_runtime.json_files import read_object, remove, replace
from gpu_runtime.json_shape import items, table, text
from gpu_runtime.lease_table import STEP, Holder, Table
from gpu_runtime.refusal import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_SUFFIX = ".json"
# How many records of containers a create looks at, to remove those whose bundle is gone: each adds
# one, so they don't pile up, and its cost does not grow with them.
_SWEPT = 4
# In seconds: for how long the lock is waited for, and how long a pause between two tries is at
# least and at most. A look takes milliseconds.
_PATIENCE = 60.0
_PAUSE, _LONGEST_PAUSE = 0.001, 0.016


class Record:
    """What a process in a container is told.

    Attributes:
        bundle: the folder of the container's OCI bundle.
        environment: its variables.
        groups: its additional groups.
        gpus: ids of the devices that the container was granted; empty: none.
        holder: its lease as it was granted; None where it has none.
    """

    __slots__ = ("bundle", "environment", "gpus", "groups", "holder")

    def __init__(self, container: str, found: dict[str, object]) -> None:
        """Take the record of a container apart.

        Raises:
            ValueError: it is none.
        """
        self.bundle = text(found.get("bundle"))
        self.environment = {
            name: text(value) for name, value in table(found.get("environment")).items()
        }
        self.groups = [gid for gid in items(found.get("groups")) if isinstance(gid, int)]
        self.gpus = [text(name) for name in items(found.get("gpus"))]
        if not self.environment:
            raise ValueError("it has no environment")
        holder = table(found.get("holder"))
        self.holder = Holder.parse(container, holder) if holder else self._of_old()

    def _of_old(self) -> Holder | None:
        """The lease that a release before this one granted: it wrote less into its records."""
        if not self.gpus:
            return None
        return Holder(self.bundle, self.gpus, [], exclusive=False, since=0)


class Store:
    """The store in a folder. `with store as table:` holds its lock and saves what was changed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._table_path = f"{folder}/leases{_SUFFIX}"
        self._containers = f"{folder}/containers"
        self._lock = -1
        self._saved: dict[str, object] = {}
        self._leases = Table({})

    def __enter__(self) -> Table:
        """Take the lock and read the table.

        Raises:
            OSError: the folder can't be made or locked; TimeoutError: another process has the lock
                for too long.
            Refused: the table is damaged.
        """
        self._make_folders()
        self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._wait()
            self._leases = self.read()
        except BaseException:
            self._unlock()
            raise
        return self._leases

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Save the table, also after a refusal: what was found gone stays gone."""
        try:
            if kind is None or issubclass(kind, Refused):
                after = self._leases.as_json()
                if after != self._saved:
                    replace(self._table_path, after)
        finally:
            self._unlock()

    def read(self) -> Table:
        """The table as it is now; without the lock it may change at once.

        Raises:
            OSError: it can't be read.
            Refused: it is damaged.
        """
        try:
            self._saved = read_object(self._table_path)
            return Table(self._saved)
        except FileNotFoundError:
            self._saved = {}
            return self._from_records()
        except ValueError as error:
            raise Refused(
                f"this worker can't tell who has which GPU: {self._table_path} is damaged "
                f"({error}). Its operator can remove that file: it is made anew from the "
                "containers that run"
            ) from error

    def put(self, container: str, bundle: str, grant: Grant, holder: Holder | None = None) -> None:
        """Record what processes in `container` are told, and the lease that it has.

        Raises:
            OSError: it can't be written.
        """
        self._make_folders()
        self._sweep()
        record: dict[str, object] = {
            "bundle": bundle,
            "environment": grant.environment,
            "groups": grant.groups,
            "gpus": grant.ids,
            "holder": holder and holder.as_json(),
        }
        replace(self._record_path(container), record)

    def record(self, container: str) -> Record:
        """What processes in `container` are told.

        Raises:
            OSError: its record can't be read.
            ValueError: its record is no record.
        """
        return Record(container, read_object(self._record_path(container)))

    def has(self, container: str) -> bool:
        """Whether there is a record of `container`.

        Raises:
            OSError: that can't be told.
        """
        return proc.exists(self._record_path(container))

    def forget(self, container: str) -> None:
        """Remove the record of `container`, if there is one.

        Raises:
            OSError: it can't be removed.
        """
        remove(self._record_path(container))

    def _record_path(self, container: str) -> str:
        return f"{self._containers}/{container}{_SUFFIX}"

    def _from_records(self) -> Table:
        """A table of all containers that were granted devices, where the table was lost.

        Those that use theirs no more lose them as soon as somebody wants them.

        Raises:
            OSError: a record can't be read.
            Refused: one is damaged, so that nobody knows which devices are held.
        """
        leases = Table({})
        for name in self._names():
            try:
                record = self.record(name)
            except FileNotFoundError:
                continue  # swept just now
            except ValueError as error:
                raise Refused(
                    f"this worker can't tell who has which GPU: {self._table_path} is gone, and "
                    f"{self._record_path(name)}, from which it is made anew, is damaged "
                    f"({error}). Its operator can end that container, then remove that record"
                ) from error
            if record.holder:
                leases.holders[name] = record.holder
        return leases

    def _names(self) -> list[str]:
        names = proc.names(self._containers)
        return [name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)]

    def _sweep(self) -> None:
        names = self._names()
        # Any few will do, but not always the same: the process id changes from call to call.
        first = os.getpid() % len(names) if names else 0
        for name in [*names[first:], *names[:first]][:_SWEPT]:
            try:
                if self._is_over(name, self.record(name)):
                    self.forget(name)
            except (OSError, ValueError):
                continue  # it stays; an exec into that container is refused with its name

    def _is_over(self, name: str, record: Record) -> bool:
        """Whether nobody comes to a container any more, as its bundle tells.

        A job has no bundle, and where an engine keeps its own is the engine's business: those go
        with their leases, which is told under the lock alone.
        """
        if record.holder and record.holder.kind != STEP:
            return self._lock >= 0 and name not in self._leases.holders
        return not proc.exists(record.bundle)

    def _wait(self) -> None:
        deadline, pause = time.monotonic() + _PATIENCE, _PAUSE
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    text = f"another process has had the lock for {_PATIENCE:g} s"
                    raise TimeoutError(errno.ETIMEDOUT, text, self.folder) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _unlock(self) -> None:
        os.close(self._lock)
        self._lock = -1

    def _make_folders(self) -> None:
        if proc.exists(self._containers):
            return
        # One by one: for the folders between, makedirs would use whatever umask containerd has.
        # Whoever may open the store may lock it, and no task would get a GPU any more.
        folders = (self.folder, 0o700), (self._containers, 0o700)
        for folder, mode in ((os.path.dirname(self.folder), 0o755), *folders):
            os.makedirs(folder, mode, exist_ok=True)
