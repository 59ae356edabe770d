# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keep runners: begin, follow and end them, and clean up after them.

The keeper alone registers and removes runners. It keeps nothing that it cannot find again: units,
leases and the service's list tell all. So runners and their jobs go on without it.
"""

import collections.abc
import dataclasses
import hashlib
import json
import logging
import secrets
import time
import typing

from ci.runners import decide, labels
from ci.runners.daemon.leases import Lease, Leases, Look
from ci.runners.decide import Decision, Mine, Situation, State, Want
from ci.runners.labels import Common, Facts
from ci.runners.service import Fault, Job, Place, Remote, Service, ServiceError, Talk
from ci.runners.settings import Settings
from ci.runners.units import DOOR_VARIABLES, Allowed, Unit, Units
from gpu_agent.engines import front
from gpu_agent.model import ci_figures
from gpu_agent.model.ci_figures import CiFigures
from gpu_runtime.lease_table import idle_runner
from gpu_runtime.refusal import Refused
from machine import process

# Seconds between two questions: for the jobs that wait, and for the runners that are known.
_JOBS: typing.Final = 3.0
_RUNNERS: typing.Final = 15.0
# After a fault, in seconds: the first pause, which doubles, and the longest.
_PAUSE: typing.Final = 2.0
_LONGEST: typing.Final = 60.0
# How long a conversation may take, in seconds; the second, if another holder waits for its end.
_TALK: typing.Final = 10.0
_SHORT: typing.Final = 2.0
# A runner that was withdrawn may just have been given a job. After so many seconds its log tells.
_SETTLE: typing.Final = 1.5
# How long a runner's program without a job may take to end, in seconds.
_END: typing.Final = 10.0
# How long the service's list may lack a runner, in seconds. A list can be older than a runner, and
# the program of a runner needs some time to end after its job.
_UNKNOWN: typing.Final = 10.0
_GIVEN_UP: typing.Final = 30.0
# How often the disk that jobs take is counted, in seconds.
_COUNT: typing.Final = 10.0
# How often a runner whose GPU cannot be used is tried again, in seconds.
_AGAIN: typing.Final = 60.0

_log = logging.getLogger(__name__)
_FAILURES: typing.Final = (OSError, ValueError, Refused, process.CommandError)
_Learned = typing.TypeVar("_Learned")


class Ask(typing.Protocol):
    """Has a conversation with the service; see ci.runners.http.talk."""

    def __call__(self, url: str, conversation: Talk[_Learned], seconds: float, /) -> _Learned:
        """Return the result of the conversation."""
        ...


@dataclasses.dataclass
class Runner:
    """A runner of this machine.

    Attributes:
        unit: its systemd unit.
        gpus: the ids of its GPUs.
        state: its state.
        since: when it got into this state, in seconds since boot.
        remote: what the service calls it; None: not known.
        job: the job that it has; None: none, or not known.
        asked: whether its program was asked to end.
        missing_since: when the service's list first lacked it, in seconds since boot; None: the
            last list has it.
    """

    unit: Unit
    gpus: tuple[str, ...]
    state: State
    since: float
    remote: Remote | None = None
    job: Job | None = None
    asked: bool = False
    missing_since: float | None = None


@dataclasses.dataclass(frozen=True)
class Outside:
    """What the keeper needs of the world.

    Attributes:
        service: the CI service.
        ask: has conversations with it.
        units: the units of runners.
        leases: their leases.
        now: returns the seconds since boot.
        machine: the machine, as uname(2) calls it.
    """

    service: Service
    ask: Ask
    units: Units
    leases: Leases
    now: collections.abc.Callable[[], float]
    machine: str


class Keeper:
    """Keeps the runners of this machine.

    Attributes:
        runners: by name.
        trouble: why the service cannot be asked; None: it can.
        refused: why the last runner could not begin; or empty.
    """

    def __init__(self, settings: Settings, outside: Outside) -> None:
        """Begin with what is on the machine.

        Args:
            settings: what the runners are.
            outside: the world.
        """
        self.runners: dict[str, Runner] = {}
        self.trouble: ServiceError | None = None
        self.refused = ""
        self._settings = settings
        self._service, self._ask = outside.service, outside.ask
        self._units, self._leases, self._now = outside.units, outside.leases, outside.now
        self._common = Common(outside.machine, settings.cuda, settings.driver, settings.labels)
        self._jobs: tuple[Job, ...] = ()
        self._asked = dict.fromkeys(("jobs", "runners"), float("-inf"))
        # Runners that have ended, and that the service may still list.
        self._ghosts: dict[str, Remote] = {}
        self._pause, self._silent_until = 0.0, 0.0
        # GPUs with which no runner could begin: until when none is tried again, and why.
        self._unfit: dict[str, tuple[float, str]] = {}
        # Runners that could not be cleared: when that is tried again, and why.
        self._unclear: dict[str, tuple[float, str]] = {}
        # Why the service did not register the last runner; it may list them all the same.
        self._refusal: ServiceError | None = None
        self._counted = float("-inf")
        # Also while a GPU is out of use: its runner has its place when it comes back.
        each = settings.per_runner
        self._beyond = max(0, settings.most - (len(settings.gpus) // each if each else 0))
        # Runners that failed to begin or ended without a job, one after another; and when the next
        # one may begin.
        self._failures, self._begin_after = 0, 0.0
        # Begins the name of a runner with these settings.
        self._mark = _mark(settings)

    def turn(self) -> None:
        """Look once, decide, and do what is decided.

        Raises:
            OSError, ValueError, Refused, machine.process.CommandError: the machine cannot be read.
        """
        look, there = self._leases.look(), self._units.names()
        self._follow(look, there)
        self._clean(look, there)
        self._ask_service()
        decision = decide.decide(self._situation(look))
        for name in decision.end:
            self._withdraw(self.runners[name])
        self._limit_disk()
        self._settle()
        self._begin_all(decision)

    def trouble_text(self) -> str:
        """Return why the service cannot be asked, or why a runner cannot begin; or empty."""
        if trouble := self.trouble or self._refusal:
            return str(trouble)
        return next((why for _, why in self._unfit.values()), self.refused)

    def forget(self) -> tuple[str, ...]:
        """Remove runners that are gone from the service's list; return the names of the others.

        A runner whose job has ended is off the service's list by itself.
        """
        for name, remote in [*self._ghosts.items()]:
            self._talk(self._service.remove(remote), _TALK)
            if not self.trouble:
                _log.info("the service has forgotten %s", remote.name)
                del self._ghosts[name]
        return tuple(remote.name for remote in self._ghosts.values())

    def report(self) -> str:
        """Return the report for the charm and for people, as JSON."""
        trouble = self.trouble or self._refusal
        return json.dumps(
            {
                "fault": trouble.fault.value if trouble else "",
                "text": self.trouble_text(),
                "waiting": sum(not job.runner for job in self._jobs),
                "runners": [
                    {
                        "unit": one.unit.unit,
                        "gpus": one.gpus,
                        "state": one.state.value,
                        "since": one.since,
                        "job": one.job
                        and {
                            "repository": one.job.repository,
                            "name": one.job.name,
                            "run": one.job.run,
                        },
                    }
                    for one in self.runners.values()
                ],
            },
            indent=1,
        )

    def figures(self) -> str:
        """Return the figures for metrics."""
        counts = dict.fromkeys((state.value for state in State), 0)
        for runner in self.runners.values():
            counts[runner.state.value] += 1
        is_known = self._service.sees_jobs and not self.trouble
        waiting = sum(not job.runner for job in self._jobs) if is_known else None
        is_faulty = bool(self.trouble_text())
        return ci_figures.as_text(
            CiFigures(self._now(), counts, waiting, is_faulty, self._service.requests)
        )

    def _follow(self, look: Look, there: tuple[str, ...]) -> None:
        """Learn which runners there are, and which of them have a job."""
        for name in [name for name in self.runners if name not in there]:
            self._ended(self.runners.pop(name))
        for name in there:
            if name not in self.runners:
                unit = self._units.unit(name)
                state = State.BUSY if self._service.has_job(unit.log()) else State.IDLE
                gpus = look.held.get(name, ())
                self.runners[name] = Runner(unit, gpus, state, self._now())
        for runner in self.runners.values():
            # A look at a log takes much longer.
            busy = runner.unit.processes() > self._service.idle_processes
            if runner.state is State.IDLE and busy:
                self._look_for_job(runner)
            if runner.state is State.IDLE and self._now() - runner.since > _AGAIN:
                # It stays, so what ended the others is over.
                self._failures, self.refused = 0, ""

    def _ended(self, runner: Runner) -> None:
        """Clean up after a runner whose unit is gone: nothing of its job is left then."""
        _log.info("%s has ended", runner.unit.unit)
        had_job = runner.state is State.BUSY or runner.asked or self._look_for_job(runner)
        self._failures = 0 if had_job else self._failures
        if not had_job:
            self.refused = "a runner's program ended without a job"
            _log.warning("%s: see journalctl -u %s", self.refused, runner.unit.unit)
            self._hold_back()
        self._clear(runner.unit)
        if runner.remote:
            self._ghosts[runner.unit.name] = runner.remote
        # Unless its job has ended, the service still lists it.
        self._ask_soon()

    def _clean(self, look: Look, there: tuple[str, ...]) -> None:
        """Clean up after runners that have ended without this process."""
        known = {*there, *self.runners}
        for name in sorted({*look.held, *self._units.left()} - known):
            self._clear(self._units.unit(name))

    def _clear(self, unit: Unit) -> None:
        """Remove lease and files of a runner that is gone; a later turn tries again."""
        try:
            # First: it ends the containers of its job.
            if not self._leases.end(unit):
                _log.warning("%s: its GPUs are not free yet", unit.unit)
        except _FAILURES as error:
            _log.warning("%s: its GPUs cannot be given back: %s", unit.unit, error)
        again, told = self._unclear.pop(unit.name, (0.0, ""))
        try:
            if self._now() >= again:
                unit.clear()
                return
        except _FAILURES as error:
            if str(error) != told:
                _log.warning("%s cannot be cleared: %s", unit.unit, error)
            again, told = self._now() + _PAUSE, str(error)
        self._unclear[unit.name] = again, told

    def _ask_service(self) -> None:
        """Learn from the service which runners and jobs it knows, if that is due."""
        now = self._now()
        if now < self._silent_until:
            return
        if now - self._asked["runners"] >= _RUNNERS:
            listed = self._talk(self._service.runners(), _TALK)
            if listed is not None:
                self._asked["runners"] = now
                self._reconcile(listed)
        if now >= self._silent_until and now - self._asked["jobs"] >= _JOBS:
            jobs = self._talk(self._service.jobs(), _TALK)
            if jobs is not None:
                self._asked["jobs"] = now
                self._jobs = jobs
                self._name_jobs()

    def _reconcile(self, listed: tuple[Remote, ...]) -> None:
        """Compare the service's list with the runners of this machine, both ways."""
        begin = f"{self._settings.prefix}-"
        mine = {one.name.removeprefix(begin): one for one in listed if one.name.startswith(begin)}
        self._ghosts = {name: mine[name] for name in mine.keys() - self.runners.keys()}
        self.forget()
        for name, runner in self.runners.items():
            runner.remote = mine.get(name, runner.remote)
            if name in mine:
                runner.missing_since = None
                continue
            runner.missing_since = runner.missing_since or self._now()
            missing = self._now() - runner.missing_since
            if runner.state is State.IDLE and missing >= _UNKNOWN:
                _log.info("the service does not know %s: ending it", runner.unit.unit)
                self._move(runner, State.ENDING)
            # Gitea forgets the runner of a job that is cancelled, and never tells the runner. One
            # that began with other settings may be known to another server or scope.
            elif missing >= _GIVEN_UP and name.startswith(self._mark):
                _log.info("the service has given up the job of %s: ending it", runner.unit.unit)
                self._try_to_kill(runner)

    def _name_jobs(self) -> None:
        """Note whose job each runner has."""
        begin = f"{self._settings.prefix}-"
        for job in self._jobs:
            runner = self.runners.get(job.runner.removeprefix(begin)) if job.runner else None
            if runner is None or not job.runner.startswith(begin) or runner.job == job:
                continue
            runner.job = job
            self._move(runner, State.BUSY)
            self._call(runner, f'job "{job.name}" of {job.repository}, run {job.run}')

    def _situation(self, look: Look) -> Situation:
        now = self._now()
        self._unfit = {gpu: found for gpu, found in self._unfit.items() if found[0] > now}
        given = self._settings.gpus
        facts = {gpu: given.get(gpu, Facts("")) for gpu in look.usable}
        return Situation(
            mine=tuple(
                Mine(
                    name,
                    one.gpus,
                    self._labels(one.gpus),
                    one.state,
                    stale=not name.startswith(self._mark),
                )
                for name, one in self.runners.items()
            ),
            usable=facts,
            free=tuple(gpu for gpu in look.free if gpu not in self._unfit),
            others=look.others,
            jobs=tuple(job for job in self._jobs if not job.runner),
            common=self._common,
            most=self._settings.most,
            per_runner=self._settings.per_runner,
            beyond=self._beyond,
            rests=self._settings.rests,
        )

    def _withdraw(self, runner: Runner) -> None:
        """Let a runner get no job, so that it can end."""
        # If the service cannot be reached, the runner gets no job from it either.
        away = self.trouble is not None and self.trouble.fault is Fault.UNREACHABLE
        withdrawn: bool | None = None
        if runner.remote and not away:
            withdrawn = self._talk(self._service.withdraw(runner.remote), _SHORT)
        if withdrawn is False:
            self._move(runner, State.BUSY)
            return
        _log.info("%s gives way", runner.unit.unit)
        self._move(runner, State.ENDING)

    def _limit_disk(self) -> None:
        """End jobs that take more of the disk than they may."""
        most, now = self._settings.limits.disk, self._now()
        if not most or now - self._counted < _COUNT:
            return
        for runner in self.runners.values():
            try:
                used = runner.unit.disk() if runner.state is State.BUSY else None
                if used is not None and used > most:
                    _log.warning(
                        "%s: its job takes %d MiB of the disk, and may take %d: ending the job",
                        *(runner.unit.unit, used, most),
                    )
                    runner.unit.end_job()
            except _FAILURES as error:
                _log.warning("%s cannot be counted: %s", runner.unit.unit, error)
        # After it, since it may take long.
        self._counted = self._now()

    def _settle(self) -> None:
        """End the runners that were withdrawn and have got no job."""
        now = self._now()
        for runner in self.runners.values():
            if runner.state is not State.ENDING or now - runner.since < _SETTLE:
                continue
            if self._look_for_job(runner):
                continue
            if not runner.asked:
                runner.unit.ask_to_end()
                runner.asked = True
            elif now - runner.since > _END:
                self._try_to_kill(runner)

    def _try_to_kill(self, runner: Runner) -> None:
        """End all processes of a runner; the next turn sees whether it is gone."""
        try:
            runner.unit.kill()
        except process.CommandError as error:
            _log.warning("%s cannot be ended: %s", runner.unit.unit, error)

    def _begin_all(self, decision: Decision) -> None:
        """Begin the runners that are decided on; stop at the first that fails."""
        # Without the service no runner can be registered: then no request waits for one.
        silent = self._now() < max(self._silent_until, self._begin_after)
        wanted = [] if silent else [*decision.begin, *([decision.want] if decision.want else [])]
        if not decision.want or silent:
            self._leases.leave()
        for one in wanted:
            if not self._begin(one):
                return

    def _begin(self, wanted: tuple[str, ...] | Want) -> bool:
        """Begin a runner; whether it runs."""
        unit = self._units.unit(self._mark + secrets.token_hex(4))
        name = f"{self._settings.prefix}-{unit.name}"
        try:
            lease = self._leases.reserve(unit, wanted, idle_runner(name))
        except _FAILURES as error:
            self.refused = str(error)
            self._hold_back()
            return False
        if lease is None:
            return False
        try:
            remote = self._start(unit, name, lease)
        except _FAILURES as error:
            _log.warning("%s cannot begin: %s", unit.unit, error)
            self._pass_over(lease, f"a runner cannot begin: {error}")
            remote = None
        if remote is None:
            unit.kill()
            self._clear(unit)
            self.forget()
            return False
        _log.info("%s begins with %s", unit.unit, ", ".join(lease.gpus) or "no GPU")
        if not self._failures:
            self.refused = ""
        self.runners[unit.name] = Runner(unit, lease.gpus, State.IDLE, self._now(), remote)
        return True

    def _start(self, unit: Unit, name: str, lease: Lease) -> Remote | None:
        """Check the GPUs of a lease, register a runner and start it; None if that was refused.

        Raises:
            OSError, ValueError, Refused, machine.process.CommandError: it cannot be started.
        """
        if self._is_unfit(unit, lease):
            return None
        own = self._settings
        door = DOOR_VARIABLES if own.engine else {}
        variables = {**lease.environment, **own.proxies, **door}
        offered = self._labels(lease.gpus)
        place = Place(name, offered, str(unit.files), str(unit.home), variables)
        made = self._talk(self._service.register(place), _TALK)
        if made is None:
            self._refusal = self.trouble
            self._hold_back()
            return None
        self._refusal = None
        # A ghost until it runs.
        self._ghosts[unit.name] = Remote(made.id, name)
        command = self._service.command(own.program, place)
        runtime = front.PATH.name if own.gpus else ""
        allowed = Allowed(lease.nodes, own.limits, own.engine, runtime)
        unit.begin(command, made.files, variables, allowed)
        self._leases.begun(unit)
        return self._ghosts.pop(unit.name)

    def _is_unfit(self, unit: Unit, lease: Lease) -> bool:
        """Whether the GPUs of a lease cannot be used by a runner, or others can be, too."""
        vendors = {self._settings.gpus.get(gpu, Facts("")).vendor for gpu in lease.gpus}
        vendor, engine = "".join(sorted(vendors)), self._settings.engine
        answer = unit.check(lease.gpus, vendor, lease.nodes, engine)
        if answer.fault:
            why = f"a runner cannot use its GPUs: {answer.fault}"
        elif answer.open:
            nodes = ", ".join(answer.open)
            why = f"this machine cannot keep its other GPUs from a runner: it may open {nodes}"
        else:
            return False
        _log.warning("%s", why)
        self._pass_over(lease, why)
        return True

    def _hold_back(self) -> None:
        """Begin no runner for a while, which is longer after each failure."""
        self._failures += 1
        self._begin_after = self._now() + min(_PAUSE * 2**self._failures, _LONGEST)

    def _pass_over(self, lease: Lease, why: str) -> None:
        """Try no runner with these GPUs for a while; without GPUs, none at all."""
        self.refused = why
        if not lease.gpus:
            self._hold_back()
        self._unfit |= dict.fromkeys(lease.gpus, (self._now() + _AGAIN, why))

    def _labels(self, gpus: tuple[str, ...]) -> labels.Labels:
        return labels.of(self._common, [self._settings.gpus.get(g, Facts("")) for g in gpus])

    def _look_for_job(self, runner: Runner) -> bool:
        """Whether a runner's own log tells that it has a job; note it."""
        if self._service.has_job(runner.unit.log()):
            self._move(runner, State.BUSY)
        return runner.state is State.BUSY

    def _talk(self, conversation: Talk[_Learned], seconds: float) -> _Learned | None:
        """Have a conversation; None if it failed. Then the service is left alone for a while."""
        try:
            found = self._ask(self._service.url, conversation, seconds)
        except ServiceError as error:
            if not self.trouble or str(self.trouble) != str(error):
                _log.warning("%s", error)
            self.trouble = error
            self._pause = min(max(2 * self._pause, _PAUSE), _LONGEST)
            wait = error.retry_after or self._pause
            self._silent_until = self._now() + wait
            return None
        self.trouble, self._pause = None, 0.0
        return found

    def _move(self, runner: Runner, state: State) -> None:
        if runner.state is not state:
            runner.state, runner.since = state, self._now()
            if state is State.BUSY:
                self._call(runner, f"runner {self._settings.prefix}-{runner.unit.name}")
            # A job that waited may have a runner now.
            self._asked["jobs"] = float("-inf")

    def _call(self, runner: Runner, who: str) -> None:
        """Note in the lease of a runner whose job it has, as far as that is known."""
        try:
            self._leases.call(runner.unit, who)
        except _FAILURES as error:
            _log.warning("%s cannot be named: %s", runner.unit.unit, error)

    def _ask_soon(self) -> None:
        self._asked = dict.fromkeys(self._asked, float("-inf"))


def _mark(settings: Settings) -> str:
    """Return the beginning of the names of runners with these settings: 4 hex digits."""
    said = [
        settings.service, settings.url, settings.scope, settings.group, settings.program,
        settings.labels, settings.cuda, settings.driver, settings.proxies, settings.engine,
        dataclasses.asdict(settings.limits),
        {gpu: dataclasses.asdict(facts) for gpu, facts in sorted(settings.gpus.items())},
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:4]


def boottime() -> float:
    """Return the seconds since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
