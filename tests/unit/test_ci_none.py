# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A unit without a CI system: its options, plan, status, and whom a drain waits for."""

import dataclasses
import os
import types

import pytest
from ops import testing

from ci import systems
from ci.none import Found, Holders, NoCiSystem
from gpu_agent.model.keep import Keep
from gpu_runtime import proc
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import JOB, Holder
from gpu_runtime.unavailable import UNUSABLE
from lifecycle.drain import Drainer
from lifecycle.records import Records
from options.part import Part
from plan import plan, status
from plan.agent_view import AgentView
from plan.draining import Drain, Pause, Purpose, Rest, Rules
from plan.state import Failure, UnitState
from tests.unit.situations import GPUS, MACHINE, READY, Release, parse, refused, state, tsa

NONE = {"ci_system": "none", "deployment_mode": "worker", "enable_gpu": True}
CI = NoCiSystem(types.SimpleNamespace(model=None), print, Records.here())


def unit(rests=False, **values):
    found = {"options": parse(**NONE), "inventory": READY, "ci": Found((), has_runc=True)}
    given = UnitState(unit="gpu-host/0", machine=MACHINE, rests=rests, **found)
    return dataclasses.replace(given, **values)


def said(found, running=None):
    made, running = plan.make(found, CI), running or status.Running()
    added = CI.status(found, made, rests=running.rest is not None)
    return [(line.level.value, line.text) for line in status.lines(found, made, running, added)]


@pytest.mark.parametrize("mode", ["web", "all"])
def test_web_needs_a_ci_system(mode):
    text = refused(ci_system="none", deployment_mode=mode)
    assert text == f"deployment-mode '{mode}' is not for ci-system=none: use worker"


@pytest.mark.parametrize("ci_system", ["concurse", "None", ""])
def test_a_ci_system_that_does_not_exist_is_refused_with_those_that_do(ci_system):
    text = refused(ci_system=ci_system)
    assert text.startswith(f"ci-system '{ci_system}' ")
    assert all(name in text for name in systems.BY_NAME)
    assert parse(ci_system=ci_system).frozen == {Part.UNIT}


def test_a_change_that_is_refused_keeps_all_as_it_is():
    found = unit(options=parse(**NONE | {"deployment_mode": "all"}), inventory=None)
    made = plan.make(found, CI)
    assert (made.gpu, made.engines, made.ci.own) == (Keep.AS_IS, Keep.AS_IS, Keep.AS_IS)


def test_gpus_are_for_engines_and_gpu_run_with_the_machines_own_runc():
    made = plan.make(unit(), CI)
    assert made.gpu.gpus == GPUS
    assert (made.gpu.runc, made.ci.own, made.unusable) == ("", None, ())
    assert CI.agent(parse(**NONE)) == AgentView()
    assert made.offer.uuids
    assert said(unit()) == [("active", "Ready (GPU: 2x NVIDIA)")]


def test_a_unit_that_rests_gives_out_no_gpu():
    made = plan.make(unit(rests=True), CI)
    assert [uuid for uuid, _ in made.closed] == [gpu.uuid for gpu in GPUS]
    assert {(one.kind, one.code) for _, one in made.closed} == {(UNUSABLE, "unit-rests")}
    assert not made.offer.uuids
    running = status.Running(rest=Rest(Pause("new fans"), None, 0.0, builds=("a",), job="lease"))
    assert said(unit(rests=True), running) == [("maintenance", "Paused: new fans (1 lease left)")]


@pytest.mark.parametrize(
    "values",
    [
        {"options": parse(**NONE, gpu_device_ids="7")},
        {"failures": (Failure(Part.GPU, "no space"),)},
        {"inventory": dataclasses.replace(READY, gpus=GPUS[1:])},
    ],
    ids=["unknown id", "runtime not installed", "one gone"],
)
def test_it_gives_out_none_of_those_that_the_runtime_still_offers(values):
    there = tuple(gpu.uuid for gpu in GPUS)
    found = unit(rests=True, handed_out=there, **values)
    assert sorted(uuid for uuid, _ in plan.make(found, CI).closed) == sorted(there)
    before = dataclasses.replace(found, rests=False)
    assert len(plan.make(before, CI).unusable) < len(there)


def test_what_is_wrong_with_a_gpu_is_said_in_place_of_the_pause():
    mig = dataclasses.replace(GPUS[0], mig_enabled=True)
    found = unit(
        rests=True,
        inventory=dataclasses.replace(READY, gpus=(mig, GPUS[1])),
        handed_out=tuple(gpu.uuid for gpu in GPUS),
    )
    made = plan.make(found, CI)
    assert {uuid: one.code for uuid, one in made.unusable} == {GPUS[0].uuid: "mig-without-devices"}
    assert {uuid for uuid, _ in made.closed} == {one.uuid for one in GPUS}


def test_gpus_that_were_not_asked_for_and_relations_to_a_ci_system_are_said():
    options = parse(**NONE | {"enable_gpu": False})
    found = unit(
        options=options,
        inventory=None,
        idle_gpus=2,
        ci=Found((("worker-tsa", "web"),), has_runc=True),
    )
    ((kind, text),) = said(found)
    assert kind == "active"
    assert text.startswith("Ready (2 GPUs found, but enable-gpu=false: ")
    assert "with ci-system=none" in text
    assert "juju remove-relation gpu-host:worker-tsa web" in text


@pytest.fixture
def store(tmp_path):
    """A store of leases; its holders use their GPUs as long as this process lives."""
    me = os.getpid(), int(proc.read("/proc/self/stat").rpartition(")")[2].split()[19])
    store = Store(str(tmp_path / "leases"))

    def hold(name, who="", *, lives=True):
        holder = Holder("", [GPUS[0].uuid], [], exclusive=True, since=1.0)
        holder.kind, holder.who = JOB, who
        holder.keeper = me if lives else (me[0], me[1] + 1)
        with store as table:
            table.holders[name] = holder

    return types.SimpleNamespace(folder=tmp_path / "leases", hold=hold)


def test_holders_that_use_a_gpu_are_counted_and_named(store):
    holders = Holders(store.folder)
    assert holders.running() == ()
    store.hold("gpu-run-1-1-a.scope", "alice")
    store.hold("gpu-run-1-2-b.scope", lives=False)
    assert holders.running() == ("gpu-run-1-1-a.scope",)
    named = holders.builds((*holders.running(), "gone"))
    assert list(named) == ["gpu-run-1-1-a.scope"]
    assert "alice" in named["gpu-run-1-1-a.scope"]


def test_leases_that_cannot_be_read_are_no_free_machine(rooms, store):
    store.folder.mkdir()
    (store.folder / "leases.json").write_text("{")
    with pytest.raises(OSError, match="the leases cannot be read"):
        Holders(store.folder).running()
    assert not Drainer(Holders(store.folder), rooms.records).is_free()


def test_a_reboot_waits_for_the_lease_and_looks_again(rooms, store):
    drainer, told = Drainer(Holders(store.folder), rooms.records), []
    store.hold("gpu-run-1-1-a.scope", "alice")
    rules = Rules("gpu-host/0", 3600)
    assert not drainer.ready(Purpose.REBOOT, "reboot for driver 580", rules, told.append)
    assert rooms.woken == [(0, 30)]
    (line,) = told
    assert line.startswith("Draining (1 lease left, 0m of 1h), then reboot for driver 580: ")
    assert rooms.records.drain.rests()
    store.hold("gpu-run-1-1-a.scope", lives=False)
    assert drainer.ready(Purpose.REBOOT, "reboot for driver 580", rules, told.append)


def test_after_the_time_out_it_says_whose_leases_end(rooms, store, caplog):
    drainer, told = Drainer(Holders(store.folder), rooms.records), []
    store.hold("gpu-run-1-1-a.scope", "alice")
    rules = Rules("gpu-host/0", 3600)
    drainer.ready(Purpose.REBOOT, "reboot", rules, told.append)
    rooms.now += 3600
    assert drainer.ready(Purpose.REBOOT, "reboot", rules, told.append)
    assert told[-1].startswith("reboot goes on after 1h and interrupts these leases: ")


def test_a_hook_brings_nothing_of_concourse(context, rooms):
    after = context.run(context.on.config_changed(), state(**NONE))
    assert after.unit_status == testing.ActiveStatus("Ready (GPU: 2x NVIDIA)")
    assert rooms.gpu.gpus == GPUS
    assert not [call for call in rooms.calls if call.startswith(("release", "worker", "web"))]


def test_a_pause_and_its_end_reach_the_gpus_with_the_action(context, rooms):
    before = state(**NONE)
    context.run(context.on.config_changed(), before)
    assert rooms.closed == ()
    context.run(context.on.action("pause", params={"reason": "dust"}), before)
    assert {one.code for _, one in rooms.closed} == {"unit-rests"}
    context.run(context.on.update_status(), before)
    assert {one.code for _, one in rooms.closed} == {"unit-rests"}
    context.run(context.on.action("resume"), before)
    assert rooms.closed == ()
    after = context.run(context.on.update_status(), before)
    assert rooms.closed == ()
    assert after.unit_status.name == "active"


@pytest.fixture
def switched(context, rooms):
    """A unit of Concourse whose ci-system is none from the next hook on."""

    def remove():
        rooms.installed = None
        rooms.calls.append("release.remove")

    rooms.installed = Release()
    rooms.hand_in(remove={"release": remove})
    rooms.calls.clear()
    told = dataclasses.replace(tsa(), local_unit_data={"worker-public-key": "a key"})
    ports = frozenset({testing.TCPPort(8080)})
    return dataclasses.replace(state(**NONE), relations=[told], opened_ports=ports)


PARTING = ["worker.retire", "worker.remove", "web.remove"]


def of_concourse(rooms):
    names = (*PARTING, "network.remove", "release.remove", "database.remove", "runtime.apply")
    return [call for call in rooms.calls if call in names]


def test_a_switch_takes_away_the_services_then_has_the_runtime_and_then_the_programs(
    context, rooms, switched
):
    """The GPU runtime names Concourse's runc until it is installed with the machine's own."""
    after = context.run(context.on.config_changed(), switched)
    last = ["runtime.apply", "network.remove", "release.remove"]
    assert of_concourse(rooms) == [*PARTING, *last]
    assert "worker-public-key" not in after.get_relations("worker-tsa")[0].local_unit_data
    assert after.opened_ports == frozenset()
    rooms.calls.clear()
    context.run(context.on.update_status(), switched)
    assert of_concourse(rooms) == ["runtime.apply"]


def test_where_the_runtime_cannot_change_the_programs_stay_until_it_can(context, rooms, switched):
    context.run(context.on.config_changed(), state(**NONE, gpu_device_ids="7"))
    assert of_concourse(rooms) == PARTING
    rooms.calls.clear()
    context.run(context.on.config_changed(), switched)
    assert of_concourse(rooms)[-2:] == ["network.remove", "release.remove"]


def test_a_hook_killed_after_the_programs_began_to_go_is_ended_by_the_next(
    context, rooms, switched
):
    rooms.records.unit.set_removing("concourse")
    rooms.installed = None
    context.run(context.on.update_status(), switched)
    assert of_concourse(rooms)[-2:] == ["network.remove", "release.remove"]
    assert not rooms.records.unit.is_removing("concourse")


def test_a_pause_outlives_a_switch_and_a_drain_for_concourse_does_not(context, rooms, switched):
    found = Drain(Purpose.RELEASE, "Concourse 8", "unit/0", rooms.boot, 60, 1.0, 1.0)
    rooms.records.drain.write(found)
    context.run(context.on.action("pause", params={"reason": "dust"}), switched)
    assert {one.code for _, one in rooms.closed} == {"unit-rests"}
    after = context.run(context.on.config_changed(), switched)
    assert after.unit_status == testing.MaintenanceStatus("Paused: dust (no lease left)")
    assert rooms.records.drain.drain() is None


def test_a_unit_that_leaves_during_a_switch_lets_builds_end(context, rooms, switched):
    context.run(context.on.stop(), switched)
    assert "worker.retire" in rooms.calls
