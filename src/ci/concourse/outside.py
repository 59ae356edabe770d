# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What of Concourse is outside of a unit: its programs, services and keys on the machine."""

import dataclasses

from ci.concourse.backup.backup import Backups
from ci.concourse.effects import Effects
from ci.concourse.looks import Looks
from ci.concourse.upgrade.upgrade import Releases
from ci.concourse.web import local_postgresql
from ci.concourse.web.local_postgresql import LocalDatabase
from ci.concourse.web.tls import Signing
from ci.concourse.worker.drainable import Worker
from ci.concourse.worker.keys import WorkerKeys
from lifecycle.drain import Drainable


@dataclasses.dataclass(frozen=True)
class Outside:
    """What of Concourse is outside of a unit; the defaults are what is there on a machine.

    Attributes:
        looks: the calls that look at web and worker.
        effects: the calls that change web and worker.
        releases: the releases of Concourse.
        keys: the worker's keys.
        database: web's database on this machine.
        signing: web's certificate where another application signs it.
        backups: backs up web and restores it.
        worker: the worker, as a drain sees it.
    """

    looks: Looks = dataclasses.field(default_factory=Looks)
    effects: Effects = dataclasses.field(default_factory=Effects)
    releases: Releases = dataclasses.field(default_factory=Releases)
    keys: WorkerKeys = dataclasses.field(default_factory=WorkerKeys)
    database: LocalDatabase = local_postgresql.HERE
    signing: Signing = Signing()
    backups: Backups = Backups()
    worker: Drainable = dataclasses.field(default_factory=Worker)
