# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The record of a driver upgrade: a file that exists from before the first step to the end."""

import dataclasses
import enum
import json
import pathlib
import typing

from gpu_agent import paths
from host.nvidia_driver_change import Choice
from machine import files

_NAME: typing.Final = "driver-upgrade.json"


class Step(enum.Enum):
    """The step that is due, or that must be repeated after an interruption."""

    WAIT = "waiting for jobs"
    INSTALL = "installing"
    LOAD = "loading"
    TEST = "testing"
    ENDED = "ended"


@dataclasses.dataclass(frozen=True)
class Record:
    """One upgrade.

    Attributes:
        before: the old driver.
        after: the new driver.
        step: the step that is due.
        back: whether the new driver failed, so the steps lead back to the old one.
        failed: the GPUs that failed before the upgrade; they do not count against the new driver.
        why: why the new driver failed; empty if it did not.
        stuck: why the rollback failed; empty if it did not.
        seen: the id of the last self-test that may have begun before the driver under test was
            loaded; empty if there was none, None until all such tests have ended.
    """

    before: Choice
    after: Choice
    step: Step = Step.WAIT
    back: bool = False
    failed: frozenset[str] = frozenset()
    why: str = ""
    stuck: str = ""
    seen: str | None = None

    @property
    def target(self) -> Choice:
        """The driver that the steps install."""
        return self.before if self.back else self.after

    @property
    def other(self) -> Choice:
        """The driver that the steps remove."""
        return self.after if self.back else self.before


def path() -> pathlib.Path:
    """Return the path of the record."""
    return paths.STATE / _NAME


def read() -> Record | None:
    """Return the last upgrade that began and did not succeed; None if there is none."""
    text = files.read_text(path())
    if text is None:
        return None
    found: dict[str, typing.Any] = json.loads(text)
    found.pop("since", None)  # Older charms wrote a time of day.
    for name in ("before", "after"):
        found[name] = Choice(**found[name])
    found["step"] = Step(found["step"])
    found["failed"] = frozenset(found["failed"])
    return Record(**found)


def is_open() -> bool:
    """Return whether an upgrade has begun and not ended."""
    record = read()
    return record is not None and record.step is not Step.ENDED


def write(record: Record) -> None:
    """Write the record; it must be on disk before the step that it names begins."""
    plain = dataclasses.asdict(record)
    plain["step"], plain["failed"] = record.step.value, sorted(record.failed)
    files.ensure_directory(paths.STATE)
    files.ensure_file(path(), json.dumps(plain, indent=1) + "\n")


def remove() -> bool:
    """Remove the record. Return True if there was one."""
    return files.ensure_absent(path())
