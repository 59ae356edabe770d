# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The store of grants: one record a container, as `<container id>.json` in one folder of /run.

A record is {"container": id, "bundle": folder, "environment": {variable: value}, "gpus": [UUID],
"pid": of the call that made it, which is runc's too, "started": start of that process in clock
ticks since boot}. A record lives as long as its bundle; a reboot takes them all.
"""

from __future__ import annotations

import fcntl
import os

from gpuci.files import read_object, replace
from gpuci.grant import Grant
from gpuci.shapes import table, text

_SUFFIX = ".json"


def put(store: str, container: str, bundle: str, grant: Grant) -> None:
    """Record that `container` with its `bundle` got `grant`, in place of what it got before.

    Raises:
        OSError: the record can't be written.
    """
    _make_folders(store)
    record: dict[str, object] = {
        "container": container,
        "bundle": bundle,
        "environment": grant.environment,
        "gpus": [device.uuid for device in grant.devices],
        "pid": os.getpid(),
        "started": _start_time(),
    }
    lock = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _sweep(store)
        replace(os.path.join(store, container + _SUFFIX), record)
    finally:
        os.close(lock)


def remove(store: str, container: str) -> None:
    """Forget what `container` was granted, if anything."""
    try:
        os.unlink(os.path.join(store, container + _SUFFIX))
    except FileNotFoundError:
        pass


def environment(store: str, container: str) -> dict[str, str]:
    """The variables that `container` was granted.

    Raises:
        OSError: its record can't be read.
        ValueError: its record is no record.
    """
    found = table(read_object(os.path.join(store, container + _SUFFIX)).get("environment"))
    if not found:
        raise ValueError("it has no environment")
    return {name: text(value) for name, value in found.items()}


def _sweep(store: str) -> None:
    """Remove records of containers that are gone, and what killed calls left. Under the lock."""
    for name in os.listdir(store):
        path = os.path.join(store, name)
        if not name.endswith(_SUFFIX):
            os.unlink(path)
            continue
        try:
            bundle = text(read_object(path).get("bundle"))
        except ValueError:
            continue  # an exec into that container is refused with this file's name
        if not os.path.isdir(bundle):
            os.unlink(path)


def _make_folders(store: str) -> None:
    leases = os.path.dirname(store)
    # One by one: for the folders between, makedirs would use whatever umask containerd has.
    for folder, mode in ((os.path.dirname(leases), 0o755), (leases, 0o755), (store, 0o700)):
        os.makedirs(folder, mode, exist_ok=True)


def _start_time() -> int:
    """Field 22 of /proc/self/stat (proc(5)); the name in field 2 ends with the last `)`."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[19])
