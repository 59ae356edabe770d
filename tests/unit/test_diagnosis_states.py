# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The tables of states: each row is reached and shows its text, and whatever is found has one."""

import dataclasses
import itertools

import pytest

from ci.concourse.plan.model import WorkerPlan
from gpu_agent.diagnosis import driver_states as gpu_states
from gpu_agent.diagnosis import states as host_states
from gpu_agent.diagnosis import toolkit_states
from gpu_agent.diagnosis.facts import Facts, Kind
from gpu_agent.model.host import Driver, Packaged
from gpu_agent.model.inventory import Inventory, State, Vendor
from gpu_agent.runtime.settings import GpuPlan
from options.table import Options
from plan import diagnosis, gpus, status
from plan.model import Plan
from plan.status import Line, Running
from tests.unit.host_situations import (
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
    facts,
    runtime,
)
from tests.unit.situations import GPUS, RUNTIME, TOOLKIT, situation


def test_every_row_is_shown_here_under_its_name():
    for rows, shown in (
        (gpu_states.TABLE, GPU_ROWS),
        (toolkit_states.TABLE, TOOLKIT_ROWS),
        ((*gpu_states.NOTES, *toolkit_states.NOTES), NOTES),
    ):
        assert [row.name for row in rows] == list(shown)


@pytest.mark.parametrize("name", GPU_ROWS)
def test_a_state_of_the_gpus_is_reached_and_shows_its_text(name):
    found, text = GPU_ROWS[name]
    assert host_states.state_of(found, gpu_states.TABLE).name == name
    assert str(host_states.of_gpus(found) or "") == text
    assert str(host_states.blocking(found) or "") == text


@pytest.mark.parametrize("name", TOOLKIT_ROWS)
def test_a_state_of_the_toolkit_is_reached_and_shows_its_text(name):
    found, text = TOOLKIT_ROWS[name]
    assert host_states.state_of(found, toolkit_states.TABLE).name == name
    assert str(host_states.of_toolkit(found) or "") == text
    assert str(host_states.blocking(found) or "") == text


@pytest.mark.parametrize("name", NOTES)
def test_a_note_is_reached_and_shows_its_text(name):
    found, text = NOTES[name]
    assert host_states.blocking(found) is None
    assert text in host_states.notes(found)
    # It is this row's, and of nobody who has nothing to say.
    assert host_states.notes(facts()) == ()


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
    Options(gpu_driver=driver, auto_reboot=reboot)
    for driver in ("auto", "none", "580-server")
    for reboot in (False, True)
]


# NVIDIA's alone, as gpu_agent.model.inventory says.
NVIDIAS = (State.NOUVEAU, State.NO_LIBRARY, State.MISMATCH, State.NVML_ERROR)
FINDINGS = [
    (state, vendor)
    for state, vendor in itertools.product(State, Vendor)
    if vendor is Vendor.NVIDIA or state not in NVIDIAS
]


@pytest.mark.parametrize(("state", "vendor"), FINDINGS)
def test_whatever_is_found_has_one_state_in_whole_words(state, vendor):
    for driver, options in itertools.product([Driver(), *DRIVERS], OPTIONS):
        inventory = Inventory(state, driver=driver.loaded, detail="{seen}", vendor=vendor)
        found = Facts(inventory, "ci/7", driver, TOOLKIT, options=options)
        row = host_states.state_of(found, gpu_states.TABLE)
        assert (row.kind is Kind.FINE) == (state is State.READY)
        obstacle = host_states.of_gpus(found)
        assert (obstacle is None) == (state is State.READY)
        said = [str(obstacle)] if obstacle else host_states.notes(found)
        for text in said:
            assert "{" not in text.replace("{seen}", ""), text
            assert "  " not in text, text
            assert "()" not in text, text
            assert ": ," not in text, text
            assert text.isprintable(), text
            assert vendor is Vendor.NVIDIA or "nvidia" not in text.lower(), text
        if obstacle:
            assert obstacle.what
            assert obstacle.remedy
            assert obstacle.passes <= obstacle.reboots
            assert obstacle.reboots == row.reboots


def test_only_a_container_is_sent_to_its_host_and_none_is_rebooted():
    for state, driver in itertools.product(State, DRIVERS):
        obstacle = host_states.of_gpus(facts(state, driver))
        name = host_states.state_of(facts(state, driver), gpu_states.TABLE).name
        if driver.container:
            assert not (obstacle and obstacle.reboots), name
            assert "upgrade-driver" not in "".join(host_states.notes(facts(state, driver)))
        else:
            assert "LXD's" not in name
            assert name != "no driver on the host"


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
    "name", ["reboot needed", "reboot needed, nouveau", "reboot needed, other kernel"]
)
def test_a_reboot_is_the_charms_only_where_it_may_and_once(name):
    found, _ = GPU_ROWS[name]
    for ours, auto_reboot, before in itertools.product(
        (False, True), (False, True), ("", OLD, NEW)
    ):
        obstacle = host_states.of_gpus(
            dataclasses.replace(
                found,
                driver=changed(found.driver, ours=ours),
                options=Options(auto_reboot=auto_reboot),
                rebooted_for=before,
            )
        )
        remedy = "sudo reboot when no job runs"
        if ours and not auto_reboot:
            remedy += ", or juju config worker auto-reboot=true"
        elif ours:
            remedy = "the charm reboots when no job runs"
            if before == NEW:
                remedy = "the charm has rebooted once for it: see sudo dmesg for nvidia and NVRM"
        assert (obstacle.remedy, obstacle.reboots) == (remedy, True)
        assert obstacle.passes == (remedy == "the charm reboots when no job runs")


def test_where_the_module_was_refused_no_reboot_is_offered():
    found = facts(State.MISMATCH, changed(UPGRADED, refused=REFUSED), auto_reboot=True)
    obstacle = host_states.of_gpus(found)
    assert (obstacle.remedy, obstacle.passes) == ("sudo reboot when no job runs", False)


def test_another_branch_is_asked_for_the_way_this_driver_came():
    found = facts(State.NO_DRIVER, changed(LOADED, ours=False))
    remedy = host_states.of_gpus(found).remedy
    assert remedy.endswith("install one of another branch the way this one came")


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
    for on, name in ((True, "refused by Secure Boot"), (False, "module refused")):
        driver = changed(INSTALLED, refused=words, secure_boot=on)
        assert host_states.of_gpus(facts(State.NO_DRIVER, driver)).state == name


def test_a_toolkit_that_is_not_ours_is_not_asked_to_be_the_chosen_one():
    found = facts(toolkit_version="1.17.8-1")
    assert host_states.blocking(found) is None
    ours = dataclasses.replace(found, packaged=Packaged("1.20.0-1", ours=True))
    assert host_states.blocking(ours).state == "chosen toolkit vulnerable"


def test_the_seeds_version_works_where_it_is_allowed_and_is_named():
    found = facts(
        toolkit=runtime("1.17.8"),
        packaged=Packaged("1.17.8-1", ours=True),
        toolkit_version="1.17.8-1",
        allow_vulnerable_toolkit=True,
    )
    assert host_states.blocking(found) is None
    assert host_states.notes(found) == ("vulnerable toolkit 1.17.8 is allowed: CVE-2026-24260",)


def unit(found):
    """A worker in that state."""
    state = situation(*found.inventory.gpus, toolkit=found.toolkit)
    options = dataclasses.replace(found.options, deployment_mode="worker", enable_gpu=True)
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
    worker = WorkerPlan("worker-0", (), (), "", (), (), wrapped=True)
    gpu = GpuPlan(GPUS, RUNTIME)
    made = Plan((), None, gpu, worker, None, gpus.choose(state))
    assert gpus.problem_with(state, made.choice) is None
    assert status.lines(state, made, Running(worker=True, connected=True)) == [
        Line(
            status.Kind.ACTIVE,
            f"Worker ready (GPU: 2x NVIDIA; kernel {NEXT}, which the next boot takes, has no "
            "nvidia module: juju run worker/0 upgrade-driver; vulnerable toolkit 1.17.8 is "
            "allowed: CVE-2026-24260)",
        )
    ]
    without = dataclasses.replace(made, gpu=None)
    (line,) = status.lines(state, without, Running(worker=True, connected=True))
    assert line.text == "Worker ready"


@pytest.mark.parametrize(
    ("auto_reboot", "kind", "remedy"),
    [
        (False, status.Kind.BLOCKED, "sudo reboot when no job runs, or juju config"),
        (True, status.Kind.WAITING, "the charm reboots when no job runs"),
    ],
)
def test_what_the_charm_ends_by_itself_is_waited_for(auto_reboot, kind, remedy):
    state = unit(facts(State.MISMATCH, UPGRADED, auto_reboot=auto_reboot))
    choice = gpus.choose(state)
    line = status.sentence(gpus.problem_with(state, choice), state, choice)
    assert line.kind is kind
    assert line.text.startswith(f"reboot needed (driver {NEW} installed, {OLD} loaded): {remedy}")


def test_where_no_gpu_is_asked_for_there_is_no_state():
    state = dataclasses.replace(unit(facts(toolkit=None)), inventory=None)
    assert diagnosis.facts(state) is None
    assert gpus.problem_with(state, gpus.Choice()) is None
