# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""It during one hook."""

import os
import pathlib

from ci.stub.options import OPTIONS, chosen
from ci.system import Place, Remains
from gpu_agent.model.keep import Keep
from lifecycle import part_runner
from options.part import Part
from plan.agent_view import AgentView
from plan.ci_plan import CiPlan, CiStatus, WaitLimit
from plan.messages import Level, Line


def folder():
    """Return the folder of its files."""
    return pathlib.Path(os.environ["STUB_CI"])


class Jobs:
    """Its jobs: a file for each, which has the name that people know."""

    job = "build"

    def name(self):
        return "stub" if (folder() / "service").exists() else ""

    def running(self):
        return tuple(sorted(path.name for path in folder().glob("jobs/*")))

    def builds(self, ids):
        return {one: (folder() / "jobs" / one).read_text() for one in ids}

    def pid(self):
        return 0 if (folder() / "landed").exists() else 4711

    def is_connected(self):
        return True

    def land(self):
        (folder() / "landed").touch()
        return 4711

    def halt(self):
        return False

    def resume(self, say):
        (folder() / "landed").unlink(missing_ok=True)


class Stub:
    """It during one hook."""

    name = OPTIONS.name
    changing = frozenset({"stub-hold"})

    def __init__(self, charm, say):
        self._model, self._say = charm.model, say
        self.actions = {"stub-hold": self._hold}
        self.worker = Jobs()
        self.steps = {Place.SERVICES: (self._serve,), Place.PUBLISH: (self._publish,)}
        self.removals = {
            Remains.SERVICES: (lambda: self._remove("service", "published", "held", "landed"),),
            Remains.DATA: (lambda: self._remove("data"),),
            Remains.PROGRAMS: (lambda: self._remove("program"),),
        }

    def revoke(self):
        pass

    def observe(self, options):
        """Return whether an operator holds it."""
        return (folder() / "held").exists()

    def agent(self, options):
        return AgentView(programs=(str(folder() / "program"),))

    def longest_wait(self, state):
        return WaitLimit()

    def plan(self, state, choice, gpu, unusable):
        frozen = Part.WORKER in state.frozen
        own = Keep.AS_IS if frozen else chosen(state.options.ci).queue
        held = Line(Level.BLOCKED, "stub-held", "The stub is held: run stub-hold hold=false")
        return CiPlan(own, takes_jobs=True, problems=(held,) * state.ci)

    def status(self, state, wanted, *, rests):
        note = Line(Level.ACTIVE, "stub-queue", f"queue {chosen(state.options.ci).queue}")
        return CiStatus(ready="Stub ready", notes=(note,))

    def metrics_port(self):
        return 0

    def departed(self, endpoint):
        return False

    def left_behind(self, state):
        return ()

    def is_here(self):
        return (folder() / "service").exists()

    def former(self, unit, mode, *, new):
        return None

    def retire(self, seconds, say):
        if self.is_here():
            say(f"The stub's jobs have {seconds:.0f} s to end")

    def set_data_aside(self, owner):
        pass

    def _hold(self, call):
        if call.params["hold"]:
            (folder() / "held").touch()
        else:
            (folder() / "held").unlink(missing_ok=True)
        return {"state": "held" if call.params["hold"] else "runs"}

    def _serve(self, state, wanted):
        def serve(queue):
            for name in ("service", "data", "program"):
                (folder() / name).write_text(queue)

        if isinstance(wanted.ci.own, str):
            _, state = part_runner.make(state, Part.WORKER, serve, wanted.ci.own)
        return state

    def _publish(self, state, wanted):
        (folder() / "published").write_text(self._model.unit.name)
        return state

    def _remove(self, *names):
        for name in names:
            (folder() / name).unlink(missing_ok=True)
