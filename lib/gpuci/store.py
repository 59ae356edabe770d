# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The store of leases: two kinds of files in one folder of /run, which a reboot empties.

`leases.json` is the table of holders and waiters (leases.Table); one flock on the folder guards
every decision. `containers/<id>.json` is what a process in that container is told, as long as its
bundle is there: {"bundle", "environment": {name: value}, "groups": [gid], "gpus": [id]}. The front
looks for that file, so its name is part of the contract with it.
"""

from __future__ import annotations

import fcntl
import os

from gpuci.files import read_object, remove, replace
from gpuci.grant import Grant
from gpuci.leases import Holder, Table
from gpuci.refuse import Refused
from gpuci.shapes import items, table, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_SUFFIX = ".json"
# How many records of containers a create looks at, to remove those whose bundle is gone: each adds
# one, so they don't pile up, and its cost does not grow with them.
_SWEPT = 4


class Record:
    """What a process in a container is told.

    Attributes:
        bundle: the folder of the container's OCI bundle.
        environment: its variables.
        groups: its additional groups.
        gpus: ids of the devices that the container was granted; empty: none.
    """

    __slots__ = ("bundle", "environment", "gpus", "groups")

    def __init__(self, found: dict[str, object]) -> None:
        """Take a record apart.

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
            OSError: the folder can't be made or locked.
            Refused: the table is damaged.
        """
        self._make_folders()
        self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._leases = self.read()
        except BaseException:
            os.close(self._lock)
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
                after = self._leases.plain()
                if after != self._saved:
                    replace(self._table_path, after)
        finally:
            os.close(self._lock)

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
                f"this worker's leases {self._table_path} are damaged ({error}); "
                "remove that file: it is made anew from the containers that run"
            ) from error

    def put(self, container: str, bundle: str, grant: Grant) -> None:
        """Record what processes in `container` are told.

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
        }
        replace(self._record_path(container), record)

    def record(self, container: str) -> Record:
        """What processes in `container` are told.

        Raises:
            OSError: its record can't be read.
            ValueError: its record is no record.
        """
        return Record(read_object(self._record_path(container)))

    def has(self, container: str) -> bool:
        """Whether there is a record of `container`."""
        return os.path.exists(self._record_path(container))

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
        """
        leases = Table({})
        for name in self._names():
            try:
                record = self.record(name)
            except (OSError, ValueError):
                continue
            if record.gpus:
                leases.holders[name] = Holder(record.bundle, record.gpus, [], alone=False, since=0)
        return leases

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self._containers)
        except FileNotFoundError:
            return []
        return [name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)]

    def _sweep(self) -> None:
        names = self._names()
        # Any few will do, but not always the same: the process id changes from call to call.
        first = os.getpid() % len(names) if names else 0
        for name in [*names[first:], *names[:first]][:_SWEPT]:
            try:
                bundle = self.record(name).bundle
            except (OSError, ValueError):
                continue  # an exec into that container is refused with this file's name
            if not os.path.isdir(bundle):
                self.forget(name)

    def _make_folders(self) -> None:
        if os.path.isdir(self._containers):
            return
        # One by one: for the folders between, makedirs would use whatever umask containerd has.
        # Whoever may open the store may lock it, and no task would get a GPU any more.
        folders = (self.folder, 0o700), (self._containers, 0o700)
        for folder, mode in ((os.path.dirname(self.folder), 0o755), *folders):
            os.makedirs(folder, mode, exist_ok=True)
