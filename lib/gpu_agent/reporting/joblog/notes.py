# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Notes on the lines written for each lease and on its use; they outlast this program."""

import collections.abc
import json
import pathlib
import typing

from gpu_agent.model.observations import Holding, Moment
from gpu_agent.reporting.joblog.idle_jobs import Idle
from gpu_agent.reporting.receipts import receipt as form
from gpu_agent.reporting.receipts.account import Account
from gpu_runtime.json_shape import items, table, text
from machine import files

# An account needs a time for its usage record; no usage record is written from these.
_NO_TIME: typing.Final = "1970-01-01T00:00:00Z"


class Note:
    """The note of one lease.

    Attributes:
        told: keys of the lines written so far, from gpu_agent.reporting.joblog.job_log.
        summed: the minute of the last line about its use.
        condemned: when the line said that its step is killed, in seconds since boot; 0: never.
        ended: whether its step was killed for not using a GPU.
        account: the use of its GPUs.
        idle: for each of its GPUs, by UUID, how long it was unused.
    """

    def __init__(self, account: Account) -> None:
        self.told: list[str] = []
        self.summed = 0
        self.condemned = 0.0
        self.ended = False
        self.account = account
        self.idle = {uuid: Idle() for uuid in account.gpus}

    def is_news(self, what: str) -> bool:
        """Whether no line with this key was written yet; from now on it counts as written."""
        if what in self.told:
            return False
        self.told.append(what)
        return True

    def as_json(self) -> dict[str, object]:
        """The note as JSON."""
        return {
            "since": self.account.since,
            "told": self.told,
            "summed": self.summed,
            "condemned": self.condemned,
            "ended": self.ended,
            "used": [uuid for uuid, one in self.idle.items() if one.used],
            "account": self.account.receipt(_NO_TIME, over=False).as_line(),
        }


class Notes:
    """All notes, kept in a file.

    Args:
        path: the file.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._notes: dict[str, Note] = {}
        self._earlier = _read(path)

    def of(self, job: Holding, moment: Moment) -> Note:
        """The note of a lease, continued from an earlier process if there is one."""
        note = self._notes.get(job.container)
        if note is None or note.account.since != job.since:
            note = self._resumed(job, moment) or Note(
                Account.opened(job, moment.cards_of(job), job.since, _NO_TIME)
            )
            self._notes[job.container] = note
        return note

    def save(self, leases: collections.abc.Collection[tuple[str, float]]) -> None:
        """Write the notes of these leases to the file and drop all others.

        Raises:
            OSError: the file can't be written.
        """
        self._notes = {
            name: note
            for name, note in self._notes.items()
            if (name, note.account.since) in leases
        }
        found = {name: note.as_json() for name, note in self._notes.items()}
        if found or self._path.exists():
            files.ensure_directory(self._path.parent, mode=0o700)
            files.ensure_file(self._path, json.dumps(found) + "\n", mode=0o600)

    def _resumed(self, job: Holding, moment: Moment) -> Note | None:
        found = table(self._earlier.pop(job.container, None))
        try:
            if found.get("since") != job.since:
                return None
            earlier = form.parse(text(found.get("account")))
        except ValueError:  # damaged: start with an empty note
            return None
        note = Note(Account.resumed(job.since, job.since, moment.now, earlier))
        note.told = [what for what in items(found.get("told")) if isinstance(what, str)]
        summed, condemned = found.get("summed"), found.get("condemned")
        note.summed = summed if isinstance(summed, int) else 0
        note.condemned = float(condemned) if isinstance(condemned, int | float) else 0.0
        note.ended = found.get("ended") is True
        for uuid in items(found.get("used")):
            if isinstance(uuid, str) and uuid in note.idle:
                note.idle[uuid].used = True
        return note


def _read(path: pathlib.Path) -> dict[str, object]:
    try:
        return table(json.loads(files.read_text(path) or "{}"))
    except (OSError, ValueError):
        return {}
