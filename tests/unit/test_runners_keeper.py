# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The keeper of runners, with a machine and a service that are values of the test."""

import dataclasses
import json

import pytest

from ci.runners.daemon.keeper import Keeper, Outside
from ci.runners.daemon.leases import Lease, Look
from ci.runners.decide import Claim, State, Want
from ci.runners.gpu_check import Checked
from ci.runners.labels import Facts
from ci.runners.service import Fault, Job, Registered, Remote, ServiceError
from ci.runners.settings import Limits, Settings
from gpu_agent.model import ci_figures
from gpu_agent.model.ci_figures import CiFigures, Requests
from gpu_runtime.refusal import Refused
from machine.process import CommandError

FACTS = {"a": Facts("nvidia", "a100", 80), "b": Facts("nvidia", "a100", 80)}
SETTINGS = Settings(
    service="gitea", url="https://gitea.example.com", scope="", credential={"api-token": "t0k3n"},
    prefix="worker-0-ab12cd", program="/opt/runner", most=2, per_runner=1, gpus=FACTS,
)  # fmt: skip
TOOK = "task 7 repo is owner/one"


class World:
    """A machine and a service: what is there, and what was done to it."""

    def __init__(self):
        self.time = 1000.0
        self.units, self.left, self.cleared, self.unclear = {}, set(), [], ""
        self.free, self.others, self.reserved, self.waits = ["a", "b"], (), {}, None
        self.remotes, self.jobs, self.fault, self.disabled = {}, [], None, []
        self.sick, self.open, self.broken, self.busy = {}, (), "", set()
        self.calls, self.lost = [], ""

    # The service.

    def runners(self):
        return ("runners", lambda: tuple(self.remotes.values()))

    def list_jobs(self):
        return ("jobs", lambda: tuple(self.jobs))

    def register(self, place):
        def do():
            made = Remote(str(len(self.calls)), place.name)
            self.remotes[place.name] = made
            return Registered(made.id, {"runner": "s3cret"})

        return ("register", do)

    def withdraw(self, remote):
        def do():
            self.disabled.append(remote.name)
            return remote.name not in self.busy

        return ("withdraw", do)

    def remove(self, remote):
        return ("remove", lambda: self.remotes.pop(remote.name, None) and None)

    def talk(self, _url, conversation, seconds):
        kind, do = conversation
        self.calls.append(kind)
        assert 0 < seconds <= 10
        if self.fault:
            raise self.fault
        return do()


class Service:
    """The service's conversations, which the world answers."""

    def __init__(self, world):
        self.url, self.idle_processes = SETTINGS.url, 1
        self.requests, self.sees_jobs = None, True
        self.runners, self.jobs = world.runners, world.list_jobs
        self.register, self.withdraw, self.remove = world.register, world.withdraw, world.remove

    def command(self, program, _place):
        return (program, "daemon")

    def has_job(self, log):
        return TOOK in log


class Unit:
    """A unit on the machine."""

    def __init__(self, world, name):
        self.world, self.name, self.unit = world, name, f"gpu-ci-runner-{name}.service"
        self.slice = f"gpucirunner-{name}.slice"
        self.group, self.home, self.files = "", f"/var/lib/{name}", f"/run/{name}"
        self.written, self.count, self.used, self.asked, self.ended = "", 1, 0, 0, 0

    def check(self, gpus, _vendor, _nodes, _engine):
        if self.world.broken:
            raise CommandError(["/bin/check"], 1, self.world.broken)
        fault = next((self.world.sick[gpu] for gpu in gpus if gpu in self.world.sick), "")
        return Checked(fault, self.world.open)

    def begin(self, command, secret, environment, allowed):
        self.began = (command, dict(secret), dict(environment), allowed)
        self.world.units[self.name] = self

    def log(self):
        return self.written

    def processes(self):
        return self.count

    def disk(self):
        return self.used

    def end_job(self):
        self.ended += 1

    def ask_to_end(self):
        self.asked += 1
        if TOOK not in self.written:
            self.world.units.pop(self.name, None)

    def kill(self):
        self.world.units.pop(self.name, None)

    def clear(self):
        self.world.cleared.append(self.name)
        if self.world.unclear:
            raise OSError(self.world.unclear)
        self.world.left.discard(self.name)

    def take_job(self):
        self.written, self.count = TOOK, 3


class Units:
    """The units of the machine."""

    def __init__(self, world):
        self.world = world

    def unit(self, name):
        return self.world.units.get(name) or Unit(self.world, name)

    def names(self):
        return tuple(self.world.units)

    def left(self):
        return tuple(self.world.left)


class Leases:
    """The leases of the machine."""

    def __init__(self, world):
        self.world = world

    def look(self):
        world = self.world
        held = {name: gpus for name, gpus in world.reserved.items() if gpus}
        return Look(("a", "b"), tuple(world.free), held, world.others)

    def reserve(self, unit, wanted, who):
        world = self.world
        assert who == f"idle runner {SETTINGS.prefix}-{unit.name}"
        if isinstance(wanted, Want):
            world.waits = wanted
            if len(world.free) < wanted.count:
                return None
            wanted = tuple(world.free[: wanted.count])
        if not {*wanted} <= {*world.free}:
            raise Refused("wait-timeout", "not free")
        world.waits = None
        world.free = [gpu for gpu in world.free if gpu not in wanted]
        world.reserved[unit.name] = wanted
        return Lease(wanted, [f"/dev/{gpu}" for gpu in wanted], {"GPU_COUNT": str(len(wanted))})

    def leave(self):
        self.world.waits = None

    def begun(self, unit):
        assert unit.name in self.world.units
        if self.world.lost:
            raise OSError(self.world.lost)

    def call(self, unit, who):
        self.world.called = (unit.name, who)

    def end(self, unit):
        gone = self.world.reserved.pop(unit.name, ())
        self.world.free = sorted({*self.world.free, *gone})
        return True


@pytest.fixture
def world():
    return World()


def keeper(world, **settings):
    outside = Outside(
        Service(world), world.talk, Units(world), Leases(world), lambda: world.time, "x86_64"
    )
    return Keeper(dataclasses.replace(SETTINGS, **settings), outside)


def turn(world, one, seconds=0.0):
    world.time += seconds
    one.turn()


def by_gpu(one, gpu):
    return next(runner for runner in one.runners.values() if gpu in runner.gpus)


def told(one):
    return json.loads(one.report())


def test_each_free_gpu_gets_a_runner_that_is_registered_for_it(world):
    one = keeper(world)
    turn(world, one)
    assert sorted(runner.gpus for runner in one.runners.values()) == [("a",), ("b",)]
    assert {*world.remotes} == {f"{SETTINGS.prefix}-{name}" for name in world.units}
    unit = by_gpu(one, "a").unit
    command, secret, environment, allowed = unit.began
    assert (command, secret, allowed.nodes) == (
        ("/opt/runner", "daemon"), {"runner": "s3cret"}, ["/dev/a"],
    )  # fmt: skip
    assert environment == {"GPU_COUNT": "1"}
    turn(world, one, 5)
    assert world.calls.count("register") == 2


def test_a_job_with_containers_finds_its_engine_and_the_runtime_is_not_its_choice(world):
    one = keeper(world, engine="docker")
    turn(world, one)
    _, _, environment, allowed = by_gpu(one, "a").unit.began
    assert environment["DOCKER_HOST"] == "unix:///run/gpu-ci-engine/docker.sock"
    assert (allowed.engine, allowed.runtime) == ("docker", "gpu-ci")


def test_a_gpu_that_its_user_cannot_use_gets_no_runner_and_is_tried_again(world):
    world.sick["a"] = "a does not answer"
    one = keeper(world)
    turn(world, one)
    turn(world, one, 3)
    assert [runner.gpus for runner in one.runners.values()] == [("b",)]
    assert "a" in world.free
    assert world.calls.count("register") == 1
    assert told(one)["text"] == "a runner cannot use its GPUs: a does not answer"
    world.sick.clear()
    turn(world, one, 61)
    assert by_gpu(one, "a")
    assert told(one)["text"] == ""


@pytest.mark.parametrize("how", ["open", "broken"])
def test_a_machine_that_cannot_confine_or_check_registers_no_runner(world, how):
    setattr(world, how, ("/dev/nvidia7",) if how == "open" else "no such unit")
    one = keeper(world)
    for _ in range(5):
        turn(world, one, 3)
    assert not one.runners
    assert "register" not in world.calls
    assert world.free == ["a", "b"]
    assert ("/dev/nvidia7" if how == "open" else "no such unit") in told(one)["text"]


def test_a_runner_that_is_not_registered_gives_its_gpu_back(world):
    one = keeper(world, most=1)
    turn(world, one, 3)
    world.units.clear()
    world.fault = ServiceError(Fault.BUSY, "503", retry_after=30)
    turn(world, one, 3)
    assert (world.free, world.reserved, world.units) == (["a", "b"], {}, {})


def test_a_runner_whose_lease_is_lost_as_it_begins_does_not_run(world):
    world.lost = "no space left"
    one = keeper(world, most=1)
    turn(world, one)
    assert (world.units, world.remotes, one.runners) == ({}, {}, {})
    assert "no space left" in told(one)["text"]


def test_what_has_ended_leaves_nothing_and_another_one_begins(world):
    one = keeper(world, most=1)
    turn(world, one)
    (name,) = world.units
    by_gpu(one, "a").unit.take_job()
    turn(world, one, 1)
    assert by_gpu(one, "a").state is State.BUSY
    world.units.clear()
    world.remotes.clear()
    turn(world, one, 1)
    assert world.cleared[-1] == name or name in world.cleared
    (other,) = world.units
    assert other != name


def test_a_program_that_keeps_ending_without_a_job_is_started_less_and_less(world):
    one = keeper(world, most=1)
    for _ in range(300):
        turn(world, one, 1)
        world.units.clear()
    assert world.calls.count("register") < 12
    assert told(one)["text"] == "a runner's program ended without a job"
    turn(world, one, 61)
    by_gpu(one, "a").unit.take_job()
    turn(world, one, 1)
    world.units.clear()
    turn(world, one, 1)
    turn(world, one, 1)
    assert told(one)["text"] == ""


def test_a_service_that_lists_and_does_not_register_is_asked_less_and_less(world):
    one = keeper(world, most=1)
    begin = world.register

    def register(place):
        begin(place)

        def refuse():
            raise ServiceError(Fault.FORBIDDEN, "403\x1b[2J")

        return ("register", refuse)

    one._service.register = register
    for _ in range(600):
        turn(world, one, 1)
    assert world.calls.count("register") < 20
    assert not world.reserved
    assert told(one)["text"].startswith("403?")
    assert told(one)["fault"] == "forbidden"
    one._service.register = begin
    turn(world, one, 61)
    assert by_gpu(one, "a")
    assert told(one)["fault"] == ""


def test_a_program_that_was_killed_once_is_no_trouble_a_minute_later(world):
    one = keeper(world, most=1)
    turn(world, one)
    world.units.clear()
    turn(world, one, 1)
    assert "without a job" in told(one)["text"]
    turn(world, one, 5)
    turn(world, one, 61)
    assert told(one)["text"] == ""


def test_a_runner_without_gpus_that_cannot_be_confined_is_tried_less_and_less(world):
    world.open, world.free = ("/dev/nvidia0",), []
    one, tries = keeper(world, most=3), 0

    def check(*_):
        nonlocal tries
        tries += 1
        return Checked("", world.open)

    Unit.check, before = check, Unit.check
    try:
        for _ in range(300):
            turn(world, one, 1)
    finally:
        Unit.check = before
    assert 0 < tries < 12
    assert not one.runners


def test_a_job_that_took_less_than_a_look_is_no_crash(world):
    one = keeper(world, most=1)
    turn(world, one)
    by_gpu(one, "a").unit.take_job()
    world.units.clear()
    turn(world, one, 1)
    assert len(world.units) == 1
    assert told(one)["text"] == ""


def test_a_killed_runner_is_taken_off_the_services_list(world):
    one = keeper(world, most=1)
    turn(world, one)
    (remote,) = world.remotes
    world.units.clear()
    turn(world, one, 1)
    assert remote not in world.remotes
    turn(world, one, 5)
    assert len(world.remotes) == 1


def test_an_idle_runner_gives_way_within_five_seconds_and_a_busy_one_does_not(world):
    one = keeper(world)
    turn(world, one)
    by_gpu(one, "b").unit.take_job()
    world.others = (Claim(2),)
    begun = world.time
    while "a" not in world.free:
        turn(world, one, 1)
        assert world.time - begun < 5
    assert [runner.gpus for runner in one.runners.values()] == [("b",)]
    assert len(world.disabled) == 1
    turn(world, one, 20)
    assert "b" not in world.free


def test_a_job_that_came_at_the_last_moment_runs(world):
    one = keeper(world, most=1)
    turn(world, one)
    runner = by_gpu(one, "a")
    world.others = (Claim(2),)
    turn(world, one, 1)
    runner.unit.take_job()
    turn(world, one, 2)
    turn(world, one, 20)
    assert (runner.state, runner.unit.asked, runner.unit.name in world.units) == (
        State.BUSY, 0, True,
    )  # fmt: skip


def test_a_runner_that_the_service_calls_busy_is_left_alone(world):
    one = keeper(world, most=1)
    turn(world, one)
    world.busy = {*world.remotes}
    world.others = (Claim(2),)
    turn(world, one, 1)
    turn(world, one, 20)
    assert by_gpu(one, "a").unit.asked == 0


def test_an_idle_program_that_does_not_end_is_killed(world):
    one = keeper(world, most=1)
    turn(world, one)
    unit = by_gpu(one, "a").unit
    unit.ask_to_end = lambda: None
    world.others = (Claim(2),)
    for _ in range(14):
        turn(world, one, 1)
    assert not world.units


def test_idle_runners_give_way_without_the_service_too(world):
    one = keeper(world, most=1)
    turn(world, one)
    world.fault = ServiceError(Fault.UNREACHABLE, "no answer")
    world.others = (Claim(2),)
    for _ in range(4):
        turn(world, one, 1)
    assert world.free == ["a", "b"]
    (ghost,) = world.remotes
    world.fault, world.others = None, ()
    turn(world, one, 61)
    assert ghost not in world.remotes
    assert told(one)["fault"] == ""


def test_a_keeper_that_begins_finds_what_runs(world):
    first = keeper(world)
    turn(world, first)
    by_gpu(first, "b").unit.take_job()
    again = keeper(world)
    turn(world, again, 1)
    assert by_gpu(again, "a").state is State.IDLE
    assert by_gpu(again, "b").state is State.BUSY
    turn(world, again, 30)
    assert world.calls.count("register") == 2
    assert len(world.units) == 2


def test_runners_with_other_settings_are_replaced_and_jobs_are_not(world):
    first = keeper(world)
    turn(world, first)
    by_gpu(first, "b").unit.take_job()
    old = {*world.units}
    again = keeper(world, limits=Limits(memory=4096))
    for _ in range(6):
        turn(world, again, 1)
    assert by_gpu(again, "a").unit.name not in old
    assert by_gpu(again, "a").unit.began[-1].limits == Limits(memory=4096)
    assert by_gpu(again, "b").unit.name in old


def test_what_cannot_be_cleared_keeps_no_gpu_and_is_tried_again_with_one_message(world, caplog):
    """As where the container engine does not answer."""
    one = keeper(world)
    turn(world, one)
    runner = by_gpu(one, "a").unit
    world.unclear = "engine away"
    runner.kill()
    for _ in range(8):
        turn(world, one, 1)
    assert by_gpu(one, "a").unit is not runner, "its GPU has another runner"
    world.left = {runner.name}
    for _ in range(8):
        turn(world, one, 1)
    assert 2 <= world.cleared.count(runner.name) <= 9
    assert caplog.text.count(f"{runner.unit} cannot be cleared: engine away") == 1
    world.unclear = ""
    turn(world, one, 3)
    assert runner.name not in world.left


def test_what_is_left_of_runners_that_are_gone_is_cleared(world):
    world.left, world.reserved, world.free = {"0ld"}, {"dead": ("a",)}, ["b"]
    one = keeper(world)
    turn(world, one)
    assert {"0ld", "dead"} <= {*world.cleared}
    turn(world, one, 1)
    assert len(one.runners) == 2


def test_ghosts_of_this_machine_are_removed_and_others_are_not(world):
    ghost, other = f"{SETTINGS.prefix}-feed", "worker-1-ab12cd-feed"
    world.remotes = {name: Remote(name, name) for name in (ghost, other)}
    one = keeper(world)
    turn(world, one)
    assert ghost not in world.remotes
    assert other in world.remotes


def test_a_runner_that_the_service_has_forgotten_ends_and_is_replaced(world):
    one = keeper(world, most=1)
    turn(world, one)
    (name,) = world.units
    world.remotes.clear()
    for _ in range(12):
        turn(world, one, 5)
    assert name not in world.units
    assert len(world.units) == 1


def test_a_job_that_the_service_has_given_up_ends_within_a_minute(world):
    """So it is with a job that somebody cancels."""
    one = keeper(world, most=1)
    turn(world, one)
    (name,) = world.units
    by_gpu(one, "a").unit.take_job()
    turn(world, one, 16)
    world.remotes.clear()
    for _ in range(6):
        turn(world, one, 5)
        assert name in world.units  # its program may be about to end
    for _ in range(6):
        turn(world, one, 5)
    assert name not in world.units


def test_a_job_from_before_other_settings_is_not_judged_by_their_list(world):
    first = keeper(world, most=1)
    turn(world, first)
    (name,) = world.units
    by_gpu(first, "a").unit.take_job()
    world.remotes.clear()
    again = keeper(world, most=1, scope="acme")
    for _ in range(20):
        turn(world, again, 5)
    assert name in world.units


def test_the_job_is_known_by_name_to_people_and_leases(world):
    one = keeper(world, most=1)
    turn(world, one)
    (name,) = world.units
    runner = f"{SETTINGS.prefix}-{name}"
    world.jobs = [Job("owner/one", "build", "12", frozenset({"gpu"}), runner)]
    turn(world, one, 4)
    assert world.called == (name, 'job "build" of owner/one, run 12')
    (said,) = told(one)["runners"]
    assert said["state"] == "busy"
    assert said["job"] == {"repository": "owner/one", "name": "build", "run": "12"}


def test_the_service_is_left_alone_for_longer_after_each_fault(world):
    world.fault = ServiceError(Fault.UNREACHABLE, "no answer")
    one = keeper(world)
    for _ in range(300):
        turn(world, one, 1)
    assert len(world.calls) < 12
    assert told(one)["fault"] == "unreachable"
    assert not world.reserved
    world.fault = None
    turn(world, one, 61)
    assert len(one.runners) == 2


def test_the_service_says_how_long_to_wait(world):
    world.fault = ServiceError(Fault.BUSY, "429", retry_after=600)
    one = keeper(world)
    for _ in range(59):
        turn(world, one, 10)
    assert len(world.calls) == 1


def test_a_job_without_a_gpu_waits_in_the_machines_queue_and_not_while_the_service_is_away(world):
    world.free = []
    world.jobs = [Job("owner/one", "build", "1", frozenset({"gpu"}), "")]
    one = keeper(world)
    turn(world, one)
    assert world.waits == Want(1)
    world.fault = ServiceError(Fault.UNREACHABLE, "no answer")
    turn(world, one, 16)
    assert world.waits is None
    world.fault = None
    turn(world, one, 61)
    assert world.waits == Want(1)
    world.free = ["a"]
    turn(world, one, 1)
    assert by_gpu(one, "a")
    assert world.waits is None


def test_a_job_that_takes_too_much_disk_is_ended_and_its_runner_reports_it(world):
    one = keeper(world, most=1, limits=Limits(disk=100))
    turn(world, one)
    unit = by_gpu(one, "a").unit
    unit.used = 101
    turn(world, one, 11)
    assert unit.ended == 0  # it has no job
    unit.take_job()
    turn(world, one, 1)
    turn(world, one, 11)
    assert unit.ended == 1
    assert unit.name in world.units


def figures(one):
    return ci_figures.parse(one.figures())


def test_the_figures_have_the_runners_by_state_and_the_jobs_that_wait(world):
    world.jobs = [Job("o/r", f"j{n}", str(n), frozenset({"gpu-count-9"}), "") for n in range(3)]
    world.jobs.append(Job("o/r", "runs", "9", frozenset(), "another-machines"))
    one = keeper(world, most=3)
    turn(world, one)
    by_gpu(one, "a").unit.take_job()
    turn(world, one, 1)
    runners = {"idle": 2, "busy": 1, "ending": 0}
    assert figures(one) == CiFigures(world.time, runners, 3, fault=False)
    one._service.requests = Requests(5000, 40, 17)
    assert figures(one).requests == Requests(5000, 40, 17)
    one._service.sees_jobs = False
    assert figures(one).waiting is None


def test_the_figures_tell_of_a_fault_and_then_of_no_jobs(world):
    one = keeper(world)
    world.fault = ServiceError(Fault.BUSY, "503")
    turn(world, one, 3)
    assert (figures(one).fault, figures(one).waiting) == (True, None)
    world.fault = None
    turn(world, one, 61)
    assert (figures(one).fault, figures(one).waiting) == (False, 0)


def test_no_report_has_a_secret(world):
    one = keeper(world)
    turn(world, one)
    assert "t0k3n" not in one.report() + one.figures() + repr(one.__dict__)
    assert "s3cret" not in one.report() + one.figures()
