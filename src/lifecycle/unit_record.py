# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What this unit must not forget between two hooks, in small files under /var/lib/gpu-ci."""

import collections.abc
import dataclasses
import json

from gpu_agent import paths
from machine import files, procfs
from plan.state import RememberedIds

_IDS = paths.STATE / "gpu-ids.json"
_GPUS = paths.STATE / "gpus"
_LEAVING = paths.STATE / "leaving"
_REBOOTED = paths.STATE / "rebooted-for"
_SERVED = paths.STATE / "served-workers.json"
_REMOVING = paths.STATE / "removing-ci-system"


def remembered_ids() -> RememberedIds:
    """Which card each chosen index meant when it was chosen; nothing if never written."""
    text = files.read_text(_IDS)
    if text is None:
        return RememberedIds()
    data = json.loads(text)
    return RememberedIds(
        chosen=tuple(data["chosen"]),
        uuids=tuple((item, uuid) for item, uuid in data["uuids"]),
        indexes=tuple(data["indexes"]),
    )


def remember_ids(ids: RememberedIds) -> bool:
    """Keep the meaning of the chosen ids. Return True if it was new."""
    if not ids.chosen:
        return files.ensure_absent(_IDS)
    files.ensure_directory(paths.STATE)
    return files.ensure_file(_IDS, json.dumps(dataclasses.asdict(ids)))


def rebooted_for() -> str:
    """The version of the driver for which this charm last rebooted the machine; or empty.

    A reboot that was asked for in this boot has not come yet, as where the hook was killed then.
    """
    version, _, boot = (files.read_text(_REBOOTED) or "").partition(" ")
    return "" if boot and boot == procfs.boot_id() else version


def set_rebooted_for(version: str) -> None:
    """Note that the machine is rebooted for this version of the driver; empty: forget it."""
    if not version:
        files.ensure_absent(_REBOOTED)
        return
    files.ensure_directory(paths.STATE)
    files.ensure_file(_REBOOTED, f"{version} {procfs.boot_id()}")


def note_gpus(text: str) -> bool:
    """Keep the line of the log that names the GPUs. Return True if it is another one."""
    files.ensure_directory(paths.STATE)
    return files.ensure_file(_GPUS, text)


def served() -> frozenset[str]:
    """The workers of Juju's units that web here has served and may still list, by their names."""
    return frozenset(json.loads(files.read_text(_SERVED) or "[]"))


def note_served(names: collections.abc.Collection[str]) -> None:
    """Note which workers of Juju's units web here serves, and which that are gone it may list."""
    if not names:
        files.ensure_absent(_SERVED)
        return
    files.ensure_directory(paths.STATE)
    files.ensure_file(_SERVED, json.dumps(sorted(names)))


def is_leaving() -> bool:
    """Whether this unit's removal has begun, after which nothing is started any more."""
    return _LEAVING.exists()


def is_removing(system: str) -> bool:
    """Whether the removal of this CI system has begun, as by a hook that was killed."""
    return files.read_text(_REMOVING) == system


def set_removing(system: str) -> None:
    """Note that the removal of this CI system has begun."""
    files.ensure_directory(paths.STATE)
    files.ensure_file(_REMOVING, system)


def set_removed() -> None:
    """Note that the CI system whose removal has begun is gone."""
    files.ensure_absent(_REMOVING)


def forget() -> None:
    """Forget what a unit before this one remembered; it may have had the same name."""
    for path in (_IDS, _GPUS, _LEAVING, _REBOOTED, _SERVED, _REMOVING):
        files.ensure_absent(path)


def set_leaving() -> None:
    """Note that this unit's removal has begun; a reboot keeps the note."""
    files.ensure_directory(paths.STATE)
    files.ensure_file(_LEAVING, "")
