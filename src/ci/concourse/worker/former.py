# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What was set up here before a worker: another team's worker, or one with other volumes."""

import collections.abc
import dataclasses
import pathlib
import typing

from ci.concourse import release, service
from ci.concourse.worker import leftovers, volumes
from machine import files

# In seconds: how long the builds may take of a worker that goes over to another team.
_BUILDS: typing.Final = 300.0

Say = collections.abc.Callable[[str], None]


def driver(environment: pathlib.Path) -> str:
    """How the worker with these settings keeps its volumes; empty without settings.

    One of before the charm decided that has what Concourse takes by itself.
    """
    found = service.setting(environment, "CONCOURSE_BAGGAGECLAIM_DRIVER")
    return found or (volumes.OVERLAY if environment.exists() else "")


@dataclasses.dataclass(frozen=True)
class Former:
    """The worker that was set up here before, if any.

    Attributes:
        environment: its settings.
        work_dir: where it has its volumes.
        farewell: how many seconds builds may take whose volumes can no longer be mounted.
        retire: lets it finish its builds for so many seconds and leave web.
        choose: returns the driver that volumes can have, given the one that they have.
        end: ends all of its containers and its network, given the release's folder and its own.
    """

    environment: pathlib.Path
    work_dir: pathlib.Path
    farewell: float
    retire: collections.abc.Callable[[float, Say], object]
    choose: collections.abc.Callable[[str, pathlib.Path], str] = volumes.choose
    end: collections.abc.Callable[[pathlib.Path, pathlib.Path], object] = leftovers.remove

    def make_way(self, team: str, progress: Say) -> str:
        """Have web forget what the next worker can't go on with, and take away the volumes.

        Web takes no worker whose name it knows as another team's, or everybody's (95872ce1a
        atc/db/worker_factory.go). Another driver would find the volumes empty, and steps an image
        without a file. Web forgets them with the worker.

        Args:
            team: the next worker's; empty: it is everybody's.
            progress: told what takes long.

        Returns:
            The driver of volumes that the next worker has.
        """
        known = service.setting(self.environment, "CONCOURSE_NAME")
        if known and (service.setting(self.environment, "CONCOURSE_TEAM") or "") != team:
            progress("Setting up the worker again for another team")
            self.retire(_BUILDS, progress)
        had = driver(self.environment)
        if not had:
            # In a storage of Juju's: of a unit that had it before. Web knows nothing of that.
            self.remove_work()
        chosen = self.choose(had, self.work_dir)
        if had and chosen != had:
            progress("Setting up the worker again: its volumes can no longer be mounted")
            self.retire(self.farewell, progress)
            self.remove_work()
        return chosen

    def remove_work(self) -> bool:
        """Remove all that runs in the work folder, and the folder. Return True if it had any."""
        # The folder goes last: as long as something is in it, there are leftovers.
        if not files.entries(self.work_dir):
            return False
        self.end(release.ROOT, self.work_dir)
        return files.ensure_absent(self.work_dir)
