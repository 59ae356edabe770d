# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The store of leases: two kinds of files in one folder of /run, which a reboot empties.

`leases.json` is the table of holders and waiting requests (lease_table.Table). One flock on the
folder guards every decision. `containers/<id>.json` is the record of a container, as long as its
bundle exists. It has the grant for processes in the container: {"bundle", "environment": {name:
value}, "groups": [gid], "gpus": [id]}. In "holder" it has the lease as granted, from which a lost
table is rebuilt, or in "lender" the runner whose devices it uses. The shell scripts `runc` and
`gpu-ci` test for that file, so they know its name.
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
# How many records a create checks, to remove those whose bundle is gone. Each create adds one
# record, so records do not pile up, and the cost of a create does not grow.
_SWEPT = 4
# In seconds: the longest wait for the lock, and the shortest and longest pause between two tries.
# A decision takes milliseconds.
_PATIENCE = 60.0
_PAUSE, _LONGEST_PAUSE = 0.001, 0.016


class Record:
    """The record of a container, for processes that start in it.

    Attributes:
        bundle: the folder of the container's OCI bundle.
        environment: the variables of the grant.
        groups: the additional groups.
        gpus: the ids of the devices that the container was granted; empty: none.
        holder: the lease as it was granted; None: it has none.
        lender: the name of the holder whose devices it uses; empty: its devices are its own.
    """

    __slots__ = ("bundle", "environment", "gpus", "groups", "holder", "lender")

    def __init__(self, container: str, found: dict[str, object]) -> None:
        """Read the record of a container.

        Raises:
            ValueError: it is malformed.
        """
        self.bundle = text(found.get("bundle"))
        self.environment = {
            name: text(value) for name, value in table(found.get("environment")).items()
        }
        self.groups = [gid for gid in items(found.get("groups")) if isinstance(gid, int)]
        self.gpus = [text(name) for name in items(found.get("gpus"))]
        if not self.environment:
            raise ValueError("it has no environment")
        self.lender = text(found.get("lender"))
        holder = table(found.get("holder"))
        self.holder = Holder.parse(container, holder) if holder else self._of_old()

    def _of_old(self) -> Holder | None:
        """Return the lease that an earlier version granted, which wrote less into its records."""
        if not self.gpus or self.lender:
            return None
        return Holder(self.bundle, self.gpus, [], exclusive=False, since=0)


class Store:
    """The store in a folder. `with store as table:` holds its lock and saves changes.

    Args:
        folder: the folder.
        files: tells which records and bundles there are.
    """

    def __init__(self, folder: str, files: proc.Files = proc) -> None:
        self.folder, self._files = folder, files
        self._table_path = f"{folder}/leases{_SUFFIX}"
        self._containers = f"{folder}/containers"
        self._lock = -1
        self._saved: dict[str, object] = {}
        self._leases = Table({})

    def __enter__(self) -> Table:
        """Take the lock and read the table.

        Raises:
            OSError: the folder cannot be created or locked; TimeoutError: another process holds
                the lock for too long.
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
        """Save the table, also after a refusal: removed entries stay removed."""
        try:
            if kind is None or issubclass(kind, Refused):
                after = self._leases.as_json()
                if after != self._saved:
                    replace(self._table_path, after)
        finally:
            self._unlock()

    def read(self) -> Table:
        """Return the current table; without the lock it may change at any time.

        Raises:
            OSError: it cannot be read.
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
                "lease-table-damaged",
                f"the table of leases {self._table_path} is damaged ({error}). The worker's "
                "operator can remove that file; it is rebuilt from the containers that run",
            ) from error

    def put(
        self,
        container: str,
        bundle: str,
        grant: Grant,
        holder: Holder | None = None,
        lender: str = "",
    ) -> None:
        """Write the record of `container`: the grant for its processes, and its lease or lender.

        Raises:
            OSError: it cannot be written.
        """
        self._make_folders()
        self._sweep()
        record: dict[str, object] = {
            "bundle": bundle,
            "environment": grant.environment,
            "groups": grant.groups,
            "gpus": grant.ids,
            "holder": holder and holder.as_json(),
            "lender": lender,
        }
        replace(self._record_path(container), record)

    def record(self, container: str) -> Record:
        """Return the record of `container`.

        Raises:
            OSError: it cannot be read.
            ValueError: it is malformed.
        """
        return Record(container, read_object(self._record_path(container)))

    def has(self, container: str) -> bool:
        """Whether there is a record of `container`.

        Raises:
            OSError: the folder cannot be read.
        """
        return self._files.exists(self._record_path(container))

    def forget(self, container: str) -> None:
        """Remove the record of `container`, if there is one.

        Raises:
            OSError: it cannot be removed.
        """
        remove(self._record_path(container))

    def _record_path(self, container: str) -> str:
        return f"{self._containers}/{container}{_SUFFIX}"

    def _from_records(self) -> Table:
        """Rebuild a lost table from the records of all containers that were granted devices.

        A container that no longer uses its devices loses them at the next request.

        Raises:
            OSError: a record cannot be read.
            Refused: one is damaged, so it is unknown which devices are held.
        """
        leases = Table({})
        for name in self._names():
            try:
                record = self.record(name)
            except FileNotFoundError:
                continue  # swept just now
            except ValueError as error:
                raise Refused(
                    "lease-table-damaged",
                    f"the table of leases {self._table_path} is missing, and "
                    f"{self._record_path(name)}, from which it is rebuilt, is damaged ({error}). "
                    "The worker's operator can end that container and then remove that record",
                ) from error
            if record.holder:
                leases.holders[name] = record.holder
        return leases

    def _names(self) -> list[str]:
        names = self._files.names(self._containers)
        return [name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)]

    def _sweep(self) -> None:
        names = self._names()
        # A few are enough, but not always the same ones: the process id changes with each call.
        first = os.getpid() % len(names) if names else 0
        for name in [*names[first:], *names[:first]][:_SWEPT]:
            try:
                if self._is_over(name, self.record(name)):
                    self.forget(name)
            except (OSError, ValueError):
                continue  # it stays; an exec into that container is refused and names the file

    def _is_over(self, name: str, record: Record) -> bool:
        """Whether no process can start in a container any more, because its bundle is gone.

        A gpu-run command has no bundle, and an engine keeps bundles where it likes. Their records
        end with their leases, which can be checked only under the lock.
        """
        if record.lender:
            return self._lock >= 0 and record.lender not in self._leases.holders
        if record.holder and record.holder.kind != STEP:
            return self._lock >= 0 and name not in self._leases.holders
        return not self._files.exists(record.bundle)

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
        if self._files.exists(self._containers):
            return
        # One by one: makedirs would create parent folders with containerd's umask. A user who may
        # open the store may lock it, and then no task would get a GPU.
        folders = (self.folder, 0o700), (self._containers, 0o700)
        for folder, mode in ((os.path.dirname(self.folder), 0o755), *folders):
            os.makedirs(folder, mode, exist_ok=True)
