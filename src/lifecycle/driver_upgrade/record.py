# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the action upgrade-driver has begun: a file, from before its first step to its end."""

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
    """Where it stands: the step that is to be made, or to be made again."""

    WAIT = "waiting for jobs"
    INSTALL = "installing"
    LOAD = "loading"
    TEST = "testing"
    ENDED = "ended"


@dataclasses.dataclass(frozen=True)
class Record:
    """One upgrade.

    Attributes:
        before: the driver that was there.
        after: the one that is to take its place.
        step: where it stands.
        back: the new one failed, so that the steps lead back to the old one.
        failed: the GPUs that had failed before it, which proves nothing against the new one.
        why: what the new one failed of; empty if it did not.
        stuck: why the old one can't be had back; empty if it can.
        seen: id of the last self-test that may have begun before the driver was loaded that is to
            be tested; empty if there was none, None until all such have ended.
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
        """The driver that the steps lead to."""
        return self.before if self.back else self.after

    @property
    def other(self) -> Choice:
        """The one that goes."""
        return self.after if self.back else self.before


def path() -> pathlib.Path:
    """Where it is kept."""
    return paths.STATE / _NAME


def read() -> Record | None:
    """The last upgrade that was begun and has not ended well; None if there is none."""
    text = files.read_text(path())
    if text is None:
        return None
    found: dict[str, typing.Any] = json.loads(text)
    found.pop("since", None)  # A charm before this one noted a time of day.
    for name in ("before", "after"):
        found[name] = Choice(**found[name])
    found["step"] = Step(found["step"])
    found["failed"] = frozenset(found["failed"])
    return Record(**found)


def is_open() -> bool:
    """Whether an upgrade has begun and not ended."""
    record = read()
    return record is not None and record.step is not Step.ENDED


def write(record: Record) -> None:
    """Keep it; it must be on the disk before the step that it names begins."""
    plain = dataclasses.asdict(record)
    plain["step"], plain["failed"] = record.step.value, sorted(record.failed)
    files.ensure_directory(paths.STATE)
    files.ensure_file(path(), json.dumps(plain, indent=1) + "\n")


def remove() -> bool:
    """Forget it. Return True if there was one."""
    return files.ensure_absent(path())
