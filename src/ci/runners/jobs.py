# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The runners of this machine as what takes jobs, for drain and pause; and whose jobs they have.

`python3 -m ci.runners.jobs <slice>...` writes whose jobs the runners with these slices have
(gpu_agent.reporting.joblog.build_names.as_json).
"""

import collections.abc
import sys

from ci.runners import daemon_unit, services
from ci.runners.units import Units, name_of
from gpu_agent.reporting.joblog import build_names
from gpu_agent.reporting.receipts.receipt import Names
from machine import process
from machine import systemd as machine_services


class Jobs:
    """The runners of this machine, as what takes jobs."""

    job = "job"

    def __init__(self, units: Units | None = None) -> None:
        """Begin with nothing.

        Args:
            units: the units of runners; the machine's unless they are given.
        """
        self._units = units or Units()

    def name(self) -> str:
        """Return its name for people; empty: no runner can be here."""
        return "runners" if daemon_unit.is_here() else ""

    def running(self) -> tuple[str, ...]:
        """Return the units of the runners that have a job.

        The runners' own logs tell, with or without the daemon.

        Raises:
            OSError: they cannot be read.
        """
        found = daemon_unit.current()
        try:
            service = services.make(found) if found else None
            units = [self._units.unit(name) for name in self._units.names()]
            return tuple(one.unit for one in units if not service or service.has_job(one.log()))
        except (process.CommandError, ValueError) as error:
            raise OSError(f"the runners cannot be read: {error}") from error

    def builds(self, ids: collections.abc.Sequence[str]) -> collections.abc.Mapping[str, str]:
        """Return what people call these jobs."""
        known = dict(daemon_unit.report().jobs)
        return {unit: _shown(unit, known.get(unit)) for unit in ids}

    def pid(self) -> int:
        """Return the daemon's process; 0: none runs, or it begins no runner."""
        if not self.is_connected():
            return 0
        return machine_services.main_pid(daemon_unit.SERVICE)

    def is_connected(self) -> bool:
        """Whether a runner can get a job, now or soon."""
        found = daemon_unit.current()
        return found is None or not found.rests

    def land(self) -> int:
        """Let no runner begin, and idle ones end. Return 0: no process ends with the jobs."""
        daemon_unit.rest(rests=True)
        return 0

    def halt(self) -> bool:
        """End the daemon; running jobs go on. Return True if it ran."""
        return daemon_unit.stop()

    def resume(self, say: collections.abc.Callable[[str], None]) -> None:  # noqa: ARG002
        """Let runners begin again."""
        daemon_unit.rest(rests=False)


def _shown(unit: str, job: tuple[str, str, str, str] | None) -> str:
    if job is None:
        return unit
    owner, repository, name, run = job
    return f"{owner}/{repository} {name} #{run}"


def main(wanted: collections.abc.Sequence[str]) -> int:
    """Write whose jobs the runners with these slices have. Return the exit status."""
    known = {name_of(unit): names for unit, names in daemon_unit.report().jobs}
    found = {one: Names(*known[name]) for one in wanted if (name := name_of(one)) in known}
    sys.stdout.write(build_names.as_json(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
