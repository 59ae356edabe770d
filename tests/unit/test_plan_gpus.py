# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which GPUs tasks may get, and the status line for everything in the way."""

import dataclasses

import pytest

from gpu_agent.availability import residual_memory
from gpu_agent.gpu.vendors import registry
from gpu_agent.model.inventory import State, devices
from plan.gpus import Choice, choose, problem_with
from plan.labels import of_gpus
from plan.state import RememberedIds
from tests.unit.grants import in_use
from tests.unit.situations import (
    TOOLKIT,
    TSA,
    Running,
    changed,
    gpu,
    make_plan,
    note,
    situation,
    sliced,
    status_lines,
)


def uuids(choice):
    return [gpu.uuid for gpu in choice.gpus]


def line(found):
    return problem_with(found, choose(found))


def problem(found):
    return found_line.code if (found_line := line(found)) else ""


def tags(found):
    return of_gpus(found, choose(found))


def test_all_means_what_is_there():
    found = situation(gpu(0), gpu(1))
    choice = choose(found)
    assert (uuids(choice), choice.indexes) == (["GPU-0", "GPU-1"], (0, 1))
    assert choice.remember == RememberedIds()
    assert note(found) == "2x NVIDIA"


@pytest.mark.parametrize(
    ("ids", "cards", "indexes"),
    [
        ("1", [1], (1,)),
        ("2,0", [0, 2], (0, 2)),
        ("0000:02:00.0", [1], (1,)),
        ("02:00.0,0", [0, 1], (0, 1)),
        ("0,01:00.0", [0], (0,)),
    ],
)
def test_ids_of_every_kind_choose_cards(ids, cards, indexes):
    choice = choose(situation(gpu(0), gpu(1), gpu(2), options={"gpu-device-ids": ids}))
    assert (uuids(choice), choice.indexes) == ([f"GPU-{card}" for card in cards], indexes)
    assert choice.problem is None


def test_a_uuid_chooses_its_card():
    name = "GPU-4d4f434b-0000-0000-0000-000000000001"
    choice = choose(situation(gpu(0), gpu(1, uuid=name), options={"gpu-device-ids": name.upper()}))
    assert (uuids(choice), choice.indexes) == ([name], (1,))


def test_unknown_ids_say_which_exist():
    found = situation(gpu(0), gpu(1), options={"gpu-device-ids": "7,1,9"})
    assert problem(found) == "unknown-gpu-ids"
    assert "no GPU 7, 9 on this machine, which has GPU 0, 1: " in line(found).text
    assert choose(found).gpus == ()


@pytest.mark.parametrize("wrong", ["7", "0;1"])
def test_a_wrong_choice_says_which_gpus_tasks_keep(wrong):
    found = situation(gpu(0), gpu(1), options={"gpu-device-ids": wrong})
    assert "tasks keep" not in said(found)
    found = changed(found, handed_out=("GPU-0",), tsa=TSA)
    assert said(found).endswith("; until then tasks keep GPU 0")


def said(found):
    return status_lines(found, make_plan(found), Running())[0].text


REMEMBERED = RememberedIds(("1",), (("1", "GPU-1"),), (1,))


def test_an_index_keeps_meaning_its_card_when_another_is_lost():
    first = choose(situation(gpu(0), gpu(1), gpu(2), options={"gpu-device-ids": "1"}))
    assert first.remember == REMEMBERED
    # Card 0 has fallen off the bus, so that NVML calls card 1 now 0, and card 2 now 1.
    later = situation(
        gpu(1, index=0),
        gpu(2, index=1),
        options={"gpu-device-ids": "1"},
        remembered=first.remember,
    )
    choice = choose(later)
    assert (uuids(choice), choice.indexes, choice.missing) == (["GPU-1"], (1,), ())
    assert choice.remember == REMEMBERED
    assert "gpu-devices=1" in tags(later)


def test_a_chosen_card_that_is_lost_is_missed_not_replaced():
    first = choose(situation(gpu(0), gpu(1), gpu(2), options={"gpu-device-ids": "0,1"})).remember
    found = situation(
        gpu(1, index=0), gpu(2, index=1), options={"gpu-device-ids": "0,1"}, remembered=first
    )
    choice = choose(found)
    assert (uuids(choice), choice.indexes, choice.missing) == (["GPU-1"], (1,), (0,))
    assert note(found) == "1x NVIDIA, 1 missing: GPU 0"
    assert tags(found)[:4] == ("gpu", "gpu-type=nvidia", "gpu-count=1", "gpu-devices=1")
    # It comes back as if nothing had been.
    back = choose(
        situation(
            gpu(0), gpu(1), gpu(2), options={"gpu-device-ids": "0,1"}, remembered=choice.remember
        )
    )
    assert (uuids(back), back.indexes, back.missing) == (["GPU-0", "GPU-1"], (0, 1), ())


def test_a_card_chosen_by_its_uuid_keeps_the_index_that_it_had():
    """Else two cards would be called by one index when another is lost."""
    uuid = "GPU-4d4f434b-0000-0000-0000-000000000002"
    ids = f"1,{uuid},03:00.0"
    first = choose(situation(gpu(0), gpu(1), gpu(2, uuid=uuid), options={"gpu-device-ids": ids}))
    assert first.indexes == (1, 2)
    cards = (gpu(1, index=0), gpu(2, index=1, uuid=uuid))
    later = situation(*cards, options={"gpu-device-ids": ids}, remembered=first.remember)
    assert "gpu-devices=1,2" in tags(later)
    assert "gpu-count=2" in tags(later)


def test_all_chosen_cards_gone_is_a_problem_and_they_stay_remembered():
    found = situation(gpu(0), options={"gpu-device-ids": "1"}, remembered=REMEMBERED)
    assert problem(found) == "chosen-gpus-gone"
    assert choose(found).remember == REMEMBERED


def test_a_new_choice_gives_indexes_their_meaning_of_today():
    moved = (gpu(1, index=0), gpu(2, index=1))
    choice = choose(situation(*moved, options={"gpu-device-ids": "1,0"}, remembered=REMEMBERED))
    assert choice.remember == RememberedIds(("1", "0"), (("1", "GPU-2"), ("0", "GPU-1")), (1, 0))
    assert choose(situation(*moved, remembered=REMEMBERED)).remember == RememberedIds()


def test_a_mistaken_choice_forgets_nothing():
    choice = choose(
        situation(gpu(0), gpu(1), options={"gpu-device-ids": "7"}, remembered=REMEMBERED)
    )
    assert choice.remember == REMEMBERED


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_a_driver_that_fails_for_a_while_forgets_nothing(state):
    found = situation(options={"gpu-device-ids": "1"}, remembered=REMEMBERED, state=state)
    assert choose(found) == Choice(remember=REMEMBERED)


def test_a_gpu_that_nvml_lost_is_told():
    assert note(situation(gpu(0), lost=("0000:02:00.0",))) == "1x NVIDIA, 1 lost: 0000:02:00.0"


def test_a_gpu_in_use_outside_ci_is_shown_without_its_processes():
    external = (
        ("GPU-1", in_use("pid 4711 (python3)")),
        ("GPU-2", residual_memory.cause(12595)),
        ("GPU-3", in_use("pid 4712 (python3)")),
    )
    options = {"gpu-device-ids": "0,1,2"}
    found = situation(gpu(0), gpu(1), gpu(2), gpu(3), options=options)
    assert note(dataclasses.replace(found, external=external)) == (
        "1x NVIDIA, 2 in use outside CI: GPU 1, 2"
    )
    assert note(dataclasses.replace(found, external=external[2:])) == "3x NVIDIA"


STATES = {
    State.NO_GPU: "no-gpu",
    State.VFIO: "gpu-passthrough",
    State.NOUVEAU: "nouveau",
    State.NO_DRIVER: "no-driver",
    State.NOT_PASSED: "gpu-not-passed",
    State.NO_LIBRARY: "library-missing",
    State.MISMATCH: "libraries-differ",
    State.NVML_ERROR: "nvml-failed",
    State.HUNG: "driver-hangs",
    State.NO_KFD: "not-in-kfd",
}


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_every_state_has_its_own_remedy(state):
    assert problem(situation(state=state, detail="0000:01:00.0")) == STATES[state]


@pytest.mark.parametrize("state", [State.NO_GPU, State.VFIO, State.NOT_PASSED])
def test_a_command_in_a_remedy_names_the_application(state):
    found = dataclasses.replace(situation(state=state), unit="gpu-workers/12")
    assert line(found).text.endswith(" or juju config gpu-workers enable-gpu=false")


@pytest.mark.parametrize(
    ("vendor", "driver", "install"),
    [
        (
            "nvidia",
            "nvidia",
            "install it with sudo ubuntu-drivers install --gpgpu and reboot",
        ),
        ("amd", "amdgpu", "install linux-modules-extra for this kernel, or a newer kernel, "),
        ("intel", "i915 or xe", "install linux-modules-extra for this kernel, or a newer"),
    ],
)
def test_a_remedy_is_that_of_the_vendor(vendor, driver, install):
    guests = line(situation(state=State.VFIO, detail="0000:01:00.0", vendor=vendor)).text
    assert f"the {driver} driver" in guests
    missing = line(situation(state=State.NO_DRIVER, detail="0000:01:00.0", vendor=vendor)).text
    assert install in missing
    if vendor != "nvidia":
        assert "nvidia" not in (guests + missing).lower()


def test_a_vendor_that_is_not_here_is_named_with_the_way_to_any_other():
    options = {"gpu-vendor": "amd"}
    found = line(situation(state=State.NO_GPU, vendor="amd", options=options))
    assert found.code == "no-gpu-of-vendor"
    assert "gpu-vendor=amd" in found.text
    assert "juju config worker gpu-vendor=auto" in found.text


@pytest.mark.parametrize("vendor", ["amd", "intel"])
def test_gpus_of_other_vendors_need_no_runtime_of_nvidias(vendor):
    card = gpu(0, vendor=vendor, minor=-1, nodes=("/dev/dri/renderD128",))
    for toolkit in (None, dataclasses.replace(TOOLKIT, version="1.0.0")):
        found = situation(card, toolkit=toolkit, vendor=vendor)
        assert problem(found) == ""
        assert note(found) == f"1x {registry.find(vendor).display}"


def test_what_nvml_says_is_no_template():
    found = situation(state=State.NVML_ERROR, detail="{state.__class__} {0}")
    assert line(found).text.startswith("NVML failed: {state.__class__} {0}: ")


@pytest.mark.parametrize(
    ("toolkit", "code"),
    [
        (None, "toolkit-missing"),
        ("1.19.0", "toolkit-vulnerable"),
        ("1.13.9", "toolkit-vulnerable"),
        ("0.20.0", "toolkit-too-old"),
        ("", "toolkit-version-unreadable"),
        ("1.19.1", ""),
        ("1.19.1-1", ""),
        ("1.20.0", ""),
        ("2.0.0", ""),
    ],
)
def test_the_toolkit_must_be_there_and_safe(toolkit, code):
    given = None if toolkit is None else dataclasses.replace(TOOLKIT, version=toolkit)
    assert problem(situation(gpu(0), toolkit=given)) == code


def test_mig_mode_hands_out_its_devices_and_needs_some():
    assert problem(situation(sliced(0, "1g.10gb"), gpu(1))) == ""
    assert problem(situation(gpu(0), sliced(1))) == "mig-without-devices"
    # One that no task may get is nobody's business.
    assert problem(situation(gpu(0), sliced(1), options={"gpu-device-ids": "0"})) == ""


def test_where_no_gpu_is_asked_for_nothing_is_wrong():
    found = dataclasses.replace(situation(toolkit=None), inventory=None)
    assert problem(found) == ""
    assert choose(found).gpus == ()


PER_TASK = [
    ((gpu(0), gpu(1)), {"gpus-per-task": 3}, "3 is more than the 2 GPUs that tasks may use here"),
    ((gpu(0),), {"gpus-per-task": 2}, "2 is more than the 1 GPU that tasks may use here"),
    ((sliced(0, "1g.10gb"),), {"gpus-per-task": 2}, "2 is more than the 1 MIG device that"),
    ((sliced(0, "a", "b"), gpu(1)), {"gpus-per-task": 9}, "9 is more than the 3 GPUs and MIG de"),
    ((gpu(0), gpu(1)), {"gpus-per-task": 2, "gpu-device-ids": "1"}, "2 is more than the 1 GPU"),
    ((gpu(0), gpu(1)), {"gpus-per-task": 2}, ""),
    ((gpu(0),), {"gpus-per-task": 0}, ""),
    ((sliced(0, "a", "b"), gpu(1)), {"gpus-per-task": 3}, ""),
    ((gpu(0),), {"gpus-per-task": 2, "gpu-allocation": "shared"}, "2 is more than the 1 GPU"),
]


@pytest.mark.parametrize(("gpus", "options", "text"), PER_TASK)
def test_more_per_task_than_there_are_is_a_problem(gpus, options, text):
    found = situation(*gpus, options=options)
    assert problem(found) == ("gpus-per-task-too-large" if text else "")
    have = len(devices(choose(found).gpus))
    if text:
        said = line(found).text
        assert said.startswith(f"gpus-per-task={text}")
        assert f": juju config worker gpus-per-task={have}" in said
        assert said.endswith("choose more with gpu-device-ids") == ("gpu-device-ids" in options)
