# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The tables of states: each row is reached and shows its text, and whatever is found has one."""

import dataclasses
import itertools

import pytest

from ci.concourse.options.worker import WorkerSettings
from ci.concourse.plan.model import WorkerPlan
from gpu_agent.diagnosis import driver_states as gpu_states
from gpu_agent.diagnosis import states as host_states
from gpu_agent.diagnosis import toolkit_states
from gpu_agent.diagnosis.facts import Facts, Kind
from gpu_agent.gpu.vendors import registry
from gpu_agent.model.host import Driver, Packaged
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.runtime.settings import GpuPlan
from plan import diagnosis, gpus
from plan.messages import Level
from tests.unit.host_situations import (
    CARD,
    CONTAINER,
    GPU_ROWS,
    INSTALLED,
    LOADED,
    METAL,
    NEW,
    NEXT,
    NOTES,
    NOW,
    OLD,
    REFUSED,
    TOOLKIT_ROWS,
    UPGRADED,
    changed,
    chosen,
    facts,
    runtime,
)
from tests.unit.situations import GPUS, RUNTIME, TOOLKIT, Running, plan_of, situation, status_lines


def test_every_row_has_facts_here_under_its_code():
    for rows, shown in (
        (gpu_states.TABLE, GPU_ROWS),
        (toolkit_states.TABLE, TOOLKIT_ROWS),
        ((*gpu_states.NOTES, *toolkit_states.NOTES), NOTES),
    ):
        assert [row.code for row in rows] == list(shown)


@pytest.mark.parametrize("code", GPU_ROWS)
def test_a_state_of_the_gpus_is_reached(code):
    row = host_states.state_of(GPU_ROWS[code], gpu_states.TABLE)
    assert row.code == code
    obstacle = host_states.of_gpus(GPU_ROWS[code])
    assert (obstacle is None) == (row.kind is Kind.FINE)
    assert obstacle is None or (obstacle.code, bool(obstacle.remedy)) == (code, True)
    assert host_states.blocking(GPU_ROWS[code]) == obstacle


@pytest.mark.parametrize("code", TOOLKIT_ROWS)
def test_a_state_of_the_toolkit_is_reached(code):
    row = host_states.state_of(TOOLKIT_ROWS[code], toolkit_states.TABLE)
    assert row.code == code
    obstacle = host_states.of_toolkit(TOOLKIT_ROWS[code])
    assert (obstacle is None) == (row.kind is Kind.FINE)
    assert obstacle is None or (obstacle.code, bool(obstacle.remedy)) == (code, True)
    assert host_states.blocking(TOOLKIT_ROWS[code]) == obstacle


@pytest.mark.parametrize("code", NOTES)
def test_a_note_is_reached_only_by_its_facts(code):
    assert host_states.blocking(NOTES[code]) is None
    assert code in [note.code for note in host_states.notes(NOTES[code])]
    assert host_states.notes(facts()) == ()


@pytest.mark.parametrize("code", [*GPU_ROWS, *TOOLKIT_ROWS, *NOTES])
def test_a_state_of_eight_gpus_fits_before_its_remedy(code):
    found = {**GPU_ROWS, **TOOLKIT_ROWS, **NOTES}[code]
    if CARD in found.inventory.detail:
        eight = ", ".join(f"0000:{bus:02x}:00.0" for bus in range(0x41, 0x49))
        inventory = dataclasses.replace(found.inventory, detail=eight)
        found = dataclasses.replace(found, inventory=inventory)
    said = host_states.blocking(found)
    for finding in [said] if said else host_states.notes(found):
        assert len(finding.what) <= 120, finding.what


DRIVERS = [
    Driver(
        container=container,
        kernel=NOW,
        next_kernel="" if container else NEXT,
        modules=modules,
        loaded=loaded,
        branch="580-server" if version else "",
        version=version,
        ours=ours,
        bound=container and bound,
        secure_boot=bool(refused),
        refused=refused,
    )
    for container, modules, loaded, version, ours, bound, refused in itertools.product(
        (False, True),
        ((), ((NOW, NEW),), ((NEXT, NEW),), ((NOW, OLD), (NEXT, ""))),
        ("", OLD, NEW),
        ("", NEW),
        (False, True),
        (False, True),
        ("", REFUSED, "No such device"),
    )
]
OPTIONS = [
    chosen(gpu_driver=driver, may_reboot=reboot)
    for driver in ("auto", "none", "580-server")
    for reboot in (False, True)
]


# NVIDIA's alone, as gpu_agent.model.inventory says.
NVIDIAS = (State.NOUVEAU, State.NO_LIBRARY, State.MISMATCH, State.NVML_ERROR)
FINDINGS = [
    (state, vendor)
    for state, vendor in itertools.product(State, registry.NAMES)
    if vendor == "nvidia" or state not in NVIDIAS
]


@pytest.mark.parametrize(("state", "vendor"), FINDINGS)
def test_whatever_is_found_has_one_state_in_whole_words(state, vendor):
    for driver, options in itertools.product([Driver(), *DRIVERS], OPTIONS):
        inventory = Inventory(state, driver=driver.loaded, detail="{seen}", vendor=vendor)
        found = Facts(inventory, "ci/7", options, driver, TOOLKIT)
        row = host_states.state_of(found, gpu_states.TABLE)
        assert (row.kind is Kind.FINE) == (state is State.READY)
        obstacle = host_states.of_gpus(found)
        assert (obstacle is None) == (state is State.READY)
        said = [obstacle] if obstacle else host_states.notes(found)
        for text in map(str, said):
            assert "{" not in text.replace("{seen}", ""), text
            assert "  " not in text, text
            assert "()" not in text, text
            assert ": ," not in text, text
            assert text.isprintable(), text
            assert vendor == "nvidia" or "nvidia" not in text.lower(), text
        if obstacle:
            assert obstacle.what
            assert obstacle.remedy
            assert obstacle.passes <= obstacle.reboots
            assert obstacle.reboots == row.reboots


def test_only_a_container_is_sent_to_its_host_and_none_is_rebooted():
    for state, driver in itertools.product(State, DRIVERS):
        obstacle = host_states.of_gpus(facts(state, driver))
        code = host_states.state_of(facts(state, driver), gpu_states.TABLE).code
        if driver.container:
            assert not (obstacle and obstacle.reboots), code
            notes = host_states.notes(facts(state, driver))
            assert "upgrade-driver" not in "".join(map(str, notes))
        else:
            assert "lxd" not in code
            assert code != "no-driver-on-host"


@pytest.mark.parametrize(
    ("driver", "offered"),
    [
        (METAL, True),
        (INSTALLED, True),
        (changed(INSTALLED, ours=False), False),
    ],
    ids=["none there", "ours", "another's"],
)
def test_where_the_charm_would_do_it_the_remedy_of_none_says_so(driver, offered):
    plain = host_states.of_gpus(facts(State.NO_DRIVER, driver))
    told = host_states.of_gpus(facts(State.NO_DRIVER, driver, gpu_driver="none"))
    assert told.what == plain.what
    more = ", or juju config worker gpu-driver=auto" if offered else ""
    assert told.remedy == plain.remedy + more


@pytest.mark.parametrize(
    "code", ["reboot-needed", "reboot-needed-nouveau", "reboot-needed-kernel"]
)
def test_a_reboot_is_the_charms_only_where_it_may_and_once(code):
    found = GPU_ROWS[code]
    for ours, auto_reboot, before in itertools.product(
        (False, True), (False, True), ("", OLD, NEW)
    ):
        obstacle = host_states.of_gpus(
            dataclasses.replace(
                found,
                driver=changed(found.driver, ours=ours),
                options=chosen(may_reboot=auto_reboot),
                rebooted_for=before,
            )
        )
        assert obstacle.reboots
        assert obstacle.passes == (ours and auto_reboot and before != NEW)
        offered = obstacle.remedy.endswith("or juju config worker auto-reboot=driver")
        assert offered == (ours and not auto_reboot)
        assert ("did not help" in obstacle.remedy) == (ours and auto_reboot and before == NEW)


def test_where_the_module_was_refused_no_reboot_is_offered():
    found = facts(State.MISMATCH, changed(UPGRADED, refused=REFUSED), may_reboot=True)
    obstacle = host_states.of_gpus(found)
    assert (obstacle.remedy, obstacle.passes) == ("sudo reboot when no build runs", False)


def test_another_branch_is_asked_for_the_way_this_driver_came():
    found = facts(State.NO_DRIVER, changed(LOADED, ours=False))
    remedy = host_states.of_gpus(found).remedy
    assert remedy.endswith("install another branch in the same way as this one")


@pytest.mark.parametrize("option", ["auto", "none", "580-server"])
def test_a_driver_of_the_chosen_branch_or_of_any_needs_no_word(option):
    assert host_states.notes(facts(gpu_driver=option)) == ()
    container = facts(driver=changed(CONTAINER, library=NEW), gpu_driver="595-server")
    assert host_states.notes(container) == ()


@pytest.mark.parametrize(
    "refused",
    [REFUSED, "could not insert 'nvidia': Required key not available"],
)
def test_secure_boot_is_named_by_what_modprobe_says(refused):
    found = facts(State.NO_DRIVER, changed(INSTALLED, refused=refused))
    assert host_states.of_gpus(found).what == f"Secure Boot refuses the nvidia module ({refused})"


def test_a_lockdown_is_secure_boots_only_where_that_is_on():
    words = "could not insert 'nvidia': Operation not permitted"
    for on, code in ((True, "module-unsigned"), (False, "module-refused")):
        driver = changed(INSTALLED, refused=words, secure_boot=on)
        assert host_states.of_gpus(facts(State.NO_DRIVER, driver)).code == code


def test_a_toolkit_that_is_not_ours_is_not_asked_to_be_the_chosen_one():
    found = facts(toolkit_version="1.17.8-1")
    assert host_states.blocking(found) is None
    ours = dataclasses.replace(found, packaged=Packaged("1.20.0-1", ours=True))
    assert host_states.blocking(ours).code == "chosen-toolkit-vulnerable"


def test_the_seeds_version_works_where_it_is_allowed_and_is_named():
    found = facts(
        toolkit=runtime("1.17.8"),
        packaged=Packaged("1.17.8-1", ours=True),
        toolkit_version="1.17.8-1",
        allow_vulnerable_toolkit=True,
    )
    assert host_states.blocking(found) is None
    (note,) = host_states.notes(found)
    assert note.code == "toolkit-vulnerable-allowed"
    assert "CVE-2026-24260" in note.what


def unit(found):
    """A worker in that state."""
    state = situation(*found.inventory.gpus, toolkit=found.toolkit)
    chosen = dataclasses.asdict(found.options)
    reboot = "driver" if chosen.pop("may_reboot") else "none"
    options = dataclasses.replace(state.options, auto_reboot=reboot, **chosen)
    return dataclasses.replace(
        state,
        inventory=found.inventory,
        driver=found.driver,
        packaged=found.packaged,
        options=options,
    )


def test_notes_stand_in_the_brackets_of_ready():
    state = unit(
        facts(
            driver=changed(LOADED, next_kernel=NEXT),
            toolkit=runtime("1.17.8"),
            allow_vulnerable_toolkit=True,
        )
    )
    worker = WorkerPlan("worker-0", (), (), "", (), WorkerSettings(), wrapped=True)
    gpu = GpuPlan(GPUS, RUNTIME)
    made = plan_of(gpu=gpu, worker=worker, choice=gpus.choose(state))
    assert gpus.problem_with(state, made.choice) is None
    (line,) = status_lines(state, made, Running(worker=True, connected=True))
    assert line.notes == ("gpus", "next-boot-without-module", "toolkit-vulnerable-allowed")
    assert line.text.startswith(f"Worker ready (GPU: 2x NVIDIA; kernel {NEXT} of the next boot")
    without = dataclasses.replace(made, gpu=None)
    (line,) = status_lines(state, without, Running(worker=True, connected=True))
    assert line.text == "Worker ready"


@pytest.mark.parametrize(("auto_reboot", "level"), [(False, Level.BLOCKED), (True, Level.WAITING)])
def test_what_the_charm_ends_by_itself_is_waited_for(auto_reboot, level):
    state = unit(facts(State.MISMATCH, UPGRADED, may_reboot=auto_reboot))
    choice = gpus.choose(state)
    line = gpus.problem_with(state, choice)
    assert (line.level, line.code) == (level, "reboot-needed")


def test_where_no_gpu_is_asked_for_there_is_no_state():
    state = dataclasses.replace(unit(facts(toolkit=None)), inventory=None)
    assert diagnosis.facts(state) is None
    assert gpus.problem_with(state, gpus.Choice()) is None
