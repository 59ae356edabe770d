# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A job with a GPU, its log, and a clock, for the tests of gpu_agent.reporting.joblog.job_log."""

from gpu_agent.reporting.joblog.job_log import JobLog
from gpu_agent.reporting.joblog.step_stderr import Outcome
from tests.unit.health_moments import Days, job


class Pen:
    """Writes at once; `said` is what came out where."""

    def __init__(self):
        self.said, self.outcome, self.room = [], Outcome.SAID, 10000
        self.busy, self.came = set(), {}

    def hand(self, holding, text):
        assert self.is_free(holding.container)
        outcome, left = self.outcome, text
        if outcome is Outcome.SAID:
            left = text[self.room :]
            self.said.append((holding.container, text[: self.room].decode()))
            outcome = Outcome.FULL if left else outcome
        self.came[holding.container] = outcome, left

    def is_free(self, container):
        return container not in self.busy and container not in self.came

    def take(self):
        found, self.came = self.came, {}
        return found


class Processes:
    """The machine's; it is told whose steps to end."""

    def __init__(self):
        self.ended, self.damaged = [], False

    def end_steps(self, container, bundle):
        assert bundle == f"/b/{container}"
        if self.damaged:
            raise ValueError("holds 'x' and no process id")
        self.ended.append(container)


class Watch:
    """A worker with a job that has GPU 0."""

    def __init__(self, folder):
        self.folder, self.days = folder, Days()
        self.pen, self.processes = Pen(), Processes()
        self.days.holdings = (job(),)
        self.of("enabled", "warn")

    def of(self, mode="enabled", unused="warn", *, sees_all=True):
        """A daemon that has begun just now."""
        self.pen.came.clear()
        self.part = JobLog(
            mode, unused, notes=self.folder / "run" / "joblog.json", pen=self.pen,
            host=self.processes, sees_all=sees_all,
        )  # fmt: skip
        self.part.operators_log = self.folder / "oci.log"

    def turn(self, *decisions, seconds=2.0, look=False):
        """What is said meanwhile, and by the next turn."""
        self.days.now += seconds
        before = len(self.pen.said)
        self.part.turn(self.days.moment(look=look), decisions)
        return [text for _, text in self.pen.said[before:]]

    def go_on(self, minutes):
        said = []
        for _ in range(int(minutes * 4)):
            said += self.turn(seconds=15, look=True)
        return said
