# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Records the charm's own resets and reboots for quarantined GPUs, before each step is made.

So a killed hook does not repeat a step, and after a boot the charm knows the reason of the reboot.
"""

import dataclasses
import json
import logging
import pathlib
import typing

from lifecycle.clock import Clock
from machine import files
from plan.gpu_remediation import Made, Step

_NAME: typing.Final = "gpu-recovery.json"
_KEPT: typing.Final = 50

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Record:
    """What was done, and what is to follow.

    Attributes:
        made: the steps, the oldest first.
        boot: the id of the boot in which the last reboot was asked for; empty: none is to be
            followed up.
        outcome: the result of the last reset as a text; empty: unknown.
    """

    made: tuple[Made, ...] = ()
    boot: str = ""
    outcome: str = ""


@dataclasses.dataclass(frozen=True)
class RemediationRecord:
    """The record of the charm's own resets and reboots for quarantined GPUs.

    Attributes:
        folder: the folder of the file.
        clock: tells the times of the steps.
    """

    folder: pathlib.Path
    clock: Clock

    @property
    def path(self) -> pathlib.Path:
        """The file of the record."""
        return self.folder / _NAME

    def read(self) -> Record:
        """Return the record. A damaged file counts as a reboot just now, which it may have held.

        Raises:
            OSError: it cannot be read, or a damaged one cannot be replaced.
        """
        try:
            text = files.read_text(self.path)
            if text is None:
                return Record()
            found = json.loads(text)
            made = tuple(
                Made(
                    Step(one["step"]),
                    tuple(map(str, one["uuids"])),
                    float(one["at"]),
                    str(one.get("boot", "")),  # a charm before this one noted neither
                    float(one.get("since_boot", 0)),
                )
                for one in found["made"]
            )
            return Record(made, str(found["boot"]), str(found["outcome"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            _log.warning(
                "%s is damaged: the charm does not reboot the machine for a day", self.path
            )
            record = Record((self._now(Step.REBOOT, ()),))
            self._write(record)
            return record

    def begin(self, step: Step, uuids: tuple[str, ...]) -> None:
        """Note a step before it is made.

        Raises:
            OSError: it cannot be noted, so the step must not be made.
        """
        before = self.read()
        made = (*before.made, self._now(step, uuids))[-_KEPT:]
        boot = self.clock.boot() if step is Step.REBOOT else before.boot
        self._write(Record(made, boot, ""))

    def _now(self, step: Step, uuids: tuple[str, ...]) -> Made:
        boot = self.clock.boot()
        return Made(step, uuids, self.clock.now(), boot, self.clock.since_boot())

    def conclude(self, outcome: str) -> None:
        """Note the result of a reset.

        Raises:
            OSError: it cannot be written.
        """
        self._write(dataclasses.replace(self.read(), outcome=outcome))

    def returned(self) -> tuple[str, ...]:
        """Return, once after the boot, the GPUs that this machine was rebooted for.

        Raises:
            OSError: the record cannot be read or written.
        """
        record = self.read()
        if not record.boot or record.boot == self.clock.boot():
            return ()
        self._write(dataclasses.replace(record, boot=""))
        reboots = [made for made in record.made if made.step is Step.REBOOT]
        return reboots[-1].uuids if reboots else ()

    def forget(self) -> bool:
        """Remove the record. Return True if there was one."""
        return files.ensure_absent(self.path)

    def _write(self, record: Record) -> None:
        plain = dataclasses.asdict(record)
        for made in plain["made"]:
            made["step"] = made["step"].value
        files.ensure_directory(self.folder)
        files.ensure_file(self.path, json.dumps(plain) + "\n")
