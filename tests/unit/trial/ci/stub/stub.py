# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""It during one hook: a service that ends once it has landed and its last job has ended."""

import pathlib

from ci.stub.options import OPTIONS, PORT, chosen
from ci.system import Place, Remains
from gpu_agent.model.keep import Keep
from lifecycle import part_runner
from lifecycle.drain import Drainer
from machine import files, polling
from machine import systemd as services
from options.part import Part
from plan.agent_view import AgentView
from plan.ci_plan import CiPlan, CiStatus, WaitLimit
from plan.messages import Level, Line

SERVICE = "stub-ci.service"
UNIT = pathlib.Path("/etc/systemd/system") / SERVICE
PROGRAM = pathlib.Path("/usr/local/bin/stub-ci")
# Its jobs: a file for each, which has the name that people know.
DATA = pathlib.Path("/var/lib/stub-ci")
JOBS = DATA / "jobs"
HELD, LANDED, PUBLISHED = DATA / "held", DATA / "landed", DATA / "published"

_UNIT = """\
[Service]
Environment=QUEUE={queue}
ExecStart={program}

[Install]
WantedBy=multi-user.target
"""
_PROGRAM = f"""\
#!/bin/sh
until [ -e {LANDED} ] && [ -z "$(ls {JOBS})" ]; do sleep 0.1; done
"""


class Jobs:
    """What takes its jobs."""

    job = "build"

    def name(self):
        return "stub" if UNIT.exists() else ""

    def running(self):
        return tuple(path.name for path in files.entries(JOBS))

    def builds(self, ids):
        return {one: (JOBS / one).read_text() for one in ids}

    def pid(self):
        return services.main_pid(SERVICE)

    def is_connected(self):
        return bool(self.pid()) and not LANDED.exists()

    def land(self):
        files.ensure_file(LANDED, "")
        return self.pid()

    def halt(self):
        return services.ensure_stopped(SERVICE)

    def resume(self, say):
        files.ensure_absent(LANDED)
        services.ensure_running(SERVICE, restart=False)


class Stub:
    """It during one hook."""

    name = OPTIONS.name
    changing = frozenset({"stub-hold"})

    def __init__(self, charm, say, records):
        self._model, self._say = charm.model, say
        self.actions = {"stub-hold": self._hold}
        self._worker = Jobs()
        self.drainer = Drainer(self._worker, records)
        self.steps = {
            Place.RELEASE: (self._fetch,),
            Place.SERVICES: (self._serve,),
            Place.PUBLISH: (self._publish,),
        }
        self.removals = {
            Remains.SERVICES: (self._end,),
            Remains.DATA: (lambda: files.ensure_absent(DATA),),
            Remains.PROGRAMS: (lambda: files.ensure_absent(PROGRAM),),
        }

    def revoke(self):
        pass

    def observe(self, options):
        """Return whether an operator holds it."""
        return HELD.exists()

    def agent(self, options):
        return AgentView(service=SERVICE, programs=(str(PROGRAM),), disks=(str(DATA),))

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
        return UNIT.exists()

    def former(self, unit, mode, *, new):
        return None

    def retire(self, seconds, say):
        if self.is_here():
            say(f"The stub's jobs have {seconds:.0f} s to end")
            self._worker.land()
            polling.until(lambda: not self._worker.pid(), seconds)

    def set_data_aside(self, owner):
        pass

    def _hold(self, call):
        if call.params["hold"]:
            files.ensure_file(HELD, "")
        else:
            files.ensure_absent(HELD)
        return {"state": "held" if call.params["hold"] else "runs"}

    def _fetch(self, state, wanted):
        if isinstance(wanted.ci.own, str):
            files.ensure_directory(JOBS)
            files.ensure_file(PROGRAM, _PROGRAM, mode=0o755)
        return state

    def _serve(self, state, wanted):
        if isinstance(wanted.ci.own, str):
            _, state = part_runner.make(state, Part.WORKER, self._begin, state, wanted.ci.own)
        return state

    def _begin(self, state, queue):
        changed = services.ensure_unit(SERVICE, _UNIT.format(queue=queue, program=PROGRAM))
        if not state.rests:
            files.ensure_absent(LANDED)
            services.ensure_running(SERVICE, restart=changed)
        self._model.unit.set_ports(PORT)

    def _publish(self, state, wanted):
        if self.is_here():
            files.ensure_file(PUBLISHED, self._model.unit.name)
        return state

    def _end(self):
        services.remove_unit(SERVICE)
        for path in (HELD, LANDED, PUBLISHED):
            files.ensure_absent(path)
        self._model.unit.set_ports()
