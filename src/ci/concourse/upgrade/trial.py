# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether a new release is any good here: web and worker answer on it, or it is left again.

A release is on trial from the switch to it until all that is set up here has answered on it. Who
was killed in between looks at the same things again: nothing is remembered but the verdict.
"""

import collections.abc
import enum
import time
import typing

from ci.concourse import release
from ci.concourse.plan.model import WebPlan, WorkerPlan, planned
from ci.concourse.release import Release
from ci.concourse.web import health as web_health
from ci.concourse.web import schema, web
from ci.concourse.worker import worker
from machine import polling as waiting
from machine import systemd as services
from plan.model import Plan

# In seconds: how long one may take to answer. Web changes its tables first, which takes minutes
# where there are many builds.
_WEB: typing.Final = 300.0
_WORKER: typing.Final = 60.0
_SAID: typing.Final = 15.0  # how often progress is reported
# One that has answered may end the moment after.
_STEADY: typing.Final = 5.0
# Restarts by systemd that are allowed: web ends by a SIGHUP that comes too early.
_RESTARTS: typing.Final = 2


class Verdict(enum.Enum):
    """What is to be said of one service on the new release."""

    WELL = "well"
    FAILED = "failed"
    OPEN = "open"  # not started on the release yet, or a service that it needs is away


def note_if_well() -> None:
    """Take the release that runs here for a good one, where an earlier charm did not note it."""
    now = release.installed()
    if now is None or release.is_proven(now.path):
        return
    found = list[Verdict]()
    if web.is_set_up():
        found.append(_look(web.SERVICE, web_health.healthy) or Verdict.OPEN)
    if worker.name():
        found.append(_look(worker.SERVICE, worker.healthy) or Verdict.OPEN)
    if found and set(found) == {Verdict.WELL}:
        release.prove(now.path)


def judge(plan: Plan, progress: collections.abc.Callable[[str], None]) -> str:
    """Wait for what was started on a new release.

    Returns:
        The failure, such as `concourse-web gave no answer`; empty if nothing failed, or if no
        previous release exists.
    """
    now = release.installed()
    if now is None or release.is_proven(now.path):
        return ""
    first = release.before() is None
    found = dict[str, Verdict]()
    if isinstance(planned(plan).web, WebPlan):
        found["web"] = _await(web.SERVICE, web_health.healthy, 0.0 if first else _WEB, progress)
        if found["web"] is Verdict.FAILED and web_health.unreachable_database():
            found["web"] = Verdict.OPEN  # without its database no release would answer
    if isinstance(planned(plan).worker, WorkerPlan):
        patience = 0.0 if first else _WORKER
        found["worker"] = _await(worker.SERVICE, worker.healthy, patience, progress)
    if found and set(found.values()) == {Verdict.WELL}:
        release.prove(now.path)
    if first:
        return ""
    failed = [name for name, verdict in found.items() if verdict is Verdict.FAILED]
    return " and ".join(f"its {name} does not run or gives no answer" for name in failed)


def go_back(now: Release, back: Release, why: str, *, alone: bool) -> None:
    """Have `release.ensure` go back from a release to the one before.

    Args:
        now: the one that is left.
        back: the one that is to run again.
        why: what status says of that.
        alone: whether no other web uses the database, which is then taken back too.
    """
    if alone and web.is_set_up():
        # It would go forward again with each start.
        services.ensure_stopped(web.SERVICE)
        try:
            # The new release may not even report it.
            if schema.current(back.path) > (known := schema.known(back.path)):
                schema.change(now.path, known)
        except schema.SchemaError as error:
            why += f". Its database was not taken back: {error}"
    release.give_up(now.path, back, why)


def _await(
    name: str,
    healthy: collections.abc.Callable[[], bool],
    patience: float,
    progress: collections.abc.Callable[[str], None],
) -> Verdict:
    end = time.monotonic() + patience
    while (left := end - time.monotonic()) > 0:
        who = name.removesuffix(".service")
        progress(f"Waiting for {who} on the new release: it has {left:.0f} s left")
        if waiting.until(lambda: _look(name, healthy) is not None, min(left, _SAID)):
            break
    found = _look(name, healthy)
    if found is Verdict.WELL and patience:
        time.sleep(_STEADY)
        found = _look(name, healthy)
    return found or Verdict.FAILED


def _look(name: str, healthy: collections.abc.Callable[[], bool]) -> Verdict | None:
    """Return the state of a service on the `current` release; None if it is not known yet."""
    shown = services.show(
        name, "MainPID", "ActiveState", "NRestarts", "ExecMainStartTimestampMonotonic"
    )
    if shown["ActiveState"] == "inactive":
        return Verdict.OPEN
    if shown["ActiveState"] == "failed" or int(shown["NRestarts"] or 0) > _RESTARTS:
        return Verdict.FAILED
    if not int(shown["MainPID"] or 0):
        return None
    if release.is_older_than_switch(int(shown["ExecMainStartTimestampMonotonic"]) / 1e6):
        return Verdict.OPEN
    return Verdict.WELL if healthy() else None
