# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What this unit must not forget between two hooks, in small files."""

import collections.abc
import dataclasses
import json
import pathlib
import typing

from lifecycle.clock import Clock
from machine import files
from plan.state import RememberedIds

_IDS: typing.Final = "gpu-ids.json"
_GPUS: typing.Final = "gpus"
_LEAVING: typing.Final = "leaving"
_REBOOTED: typing.Final = "rebooted-for"
_SERVED: typing.Final = "served-workers.json"
_REMOVING: typing.Final = "removing-ci-system"


@dataclasses.dataclass(frozen=True)
class UnitRecord:
    """What a unit must not forget between two hooks.

    Attributes:
        folder: the folder of the files.
        clock: tells the boot.
    """

    folder: pathlib.Path
    clock: Clock

    def remembered_ids(self) -> RememberedIds:
        """Which card each chosen index meant when it was chosen; nothing if never written."""
        text = files.read_text(self.folder / _IDS)
        if text is None:
            return RememberedIds()
        data = json.loads(text)
        return RememberedIds(
            chosen=tuple(data["chosen"]),
            uuids=tuple((item, uuid) for item, uuid in data["uuids"]),
            indexes=tuple(data["indexes"]),
        )

    def remember_ids(self, ids: RememberedIds) -> bool:
        """Keep the meaning of the chosen ids. Return True if it was new."""
        if not ids.chosen:
            return files.ensure_absent(self.folder / _IDS)
        files.ensure_directory(self.folder)
        return files.ensure_file(self.folder / _IDS, json.dumps(dataclasses.asdict(ids)))

    def rebooted_for(self) -> str:
        """The version of the driver for which this charm last rebooted the machine; or empty.

        A reboot that was asked for in this boot has not come yet, as where the hook was killed
        then.
        """
        version, _, boot = (files.read_text(self.folder / _REBOOTED) or "").partition(" ")
        return "" if boot and boot == self.clock.boot() else version

    def set_rebooted_for(self, version: str) -> None:
        """Note that the machine is rebooted for this version of the driver; empty: forget it."""
        if not version:
            files.ensure_absent(self.folder / _REBOOTED)
            return
        files.ensure_directory(self.folder)
        files.ensure_file(self.folder / _REBOOTED, f"{version} {self.clock.boot()}")

    def note_gpus(self, text: str) -> bool:
        """Keep the line of the log that names the GPUs. Return True if it is another one."""
        files.ensure_directory(self.folder)
        return files.ensure_file(self.folder / _GPUS, text)

    def served(self) -> frozenset[str]:
        """The names of the workers of Juju's units that web here served and may still list."""
        return frozenset(json.loads(files.read_text(self.folder / _SERVED) or "[]"))

    def note_served(self, names: collections.abc.Collection[str]) -> None:
        """Note the workers of Juju's units that web here serves, and the gone ones it may list."""
        if not names:
            files.ensure_absent(self.folder / _SERVED)
            return
        files.ensure_directory(self.folder)
        files.ensure_file(self.folder / _SERVED, json.dumps(sorted(names)))

    def is_leaving(self) -> bool:
        """Whether this unit's removal has begun, after which nothing is started any more."""
        return (self.folder / _LEAVING).exists()

    def is_removing(self, system: str) -> bool:
        """Whether the removal of this CI system has begun, as by a hook that was killed."""
        return files.read_text(self.folder / _REMOVING) == system

    def set_removing(self, system: str) -> None:
        """Note that the removal of this CI system has begun."""
        files.ensure_directory(self.folder)
        files.ensure_file(self.folder / _REMOVING, system)

    def set_removed(self) -> None:
        """Note that the CI system whose removal has begun is gone."""
        files.ensure_absent(self.folder / _REMOVING)

    def forget(self) -> None:
        """Forget what a unit before this one remembered; it may have had the same name."""
        for name in (_IDS, _GPUS, _LEAVING, _REBOOTED, _SERVED, _REMOVING):
            files.ensure_absent(self.folder / name)

    def set_leaving(self) -> None:
        """Note that this unit's removal has begun; a reboot keeps the note."""
        files.ensure_directory(self.folder)
        files.ensure_file(self.folder / _LEAVING, "")
