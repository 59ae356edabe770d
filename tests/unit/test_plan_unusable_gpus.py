# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Workers whose GPUs can't be used now: what they say, promise and hand out until they can."""

import dataclasses

import pytest

from ci.concourse.plan.model import planned
from gpu_agent.model.host import Packaged, Toolkit
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.model.keep import Keep
from plan.state import RememberedIds
from tests.unit.situations import GPUS, READY, RUNTIME, gpu_unit, make_plan, said, unit

GPU_PROBLEMS = {
    **{
        state.value: {"inventory": Inventory(state, detail="0000:01:00.0", vendor="nvidia")}
        for state in State
        if state is not State.READY
    },
    "unknown id": {"options": {"gpu-device-ids": "7"}},
    "chosen one gone": {
        "options": {"gpu-device-ids": "1"},
        "inventory": dataclasses.replace(READY, gpus=GPUS[:1]),
        "remembered": RememberedIds(("1",), (("1", GPUS[1].uuid),), (1,)),
    },
    "no toolkit": {"machine": {"toolkit": None}},
    "old toolkit": {"machine": {"toolkit": Toolkit(RUNTIME, "1.19.0")}},
    "unknown toolkit": {"machine": {"toolkit": Toolkit(RUNTIME, "")}},
    "MIG without devices": {
        "inventory": dataclasses.replace(
            READY, gpus=(dataclasses.replace(GPUS[0], mig_enabled=True), GPUS[1])
        )
    },
}


def troubled(name):
    values = dict(GPU_PROBLEMS[name])
    options = {"enable-gpu": True, **values.pop("options", {})}
    return unit(options=options, **values)


@pytest.mark.parametrize("name", GPU_PROBLEMS)
def test_a_worker_whose_gpus_fail_is_blocked_and_runs_on_as_it_is(name):
    made = make_plan(troubled(name))
    ((kind, _),) = said(troubled(name))
    assert kind == "blocked"
    assert (made.gpu, planned(made).worker) == (Keep.AS_IS, Keep.AS_IS)
    assert planned(made).release


@pytest.mark.parametrize("name", GPU_PROBLEMS)
def test_gpus_that_are_of_no_use_now_are_promised_to_nobody_and_refused_in_words(name):
    found = troubled(name)
    both = dataclasses.replace(found, handed_out=tuple(gpu.uuid for gpu in GPUS))
    made = make_plan(both)
    assert made.gpu is Keep.AS_IS
    if name == "unknown id":  # an option that can't be followed takes nothing away
        assert (planned(made).worker, made.unusable) == (Keep.AS_IS, ())
        return
    few = {"chosen one gone": GPUS[1:], "MIG without devices": GPUS[:1]}.get(name)
    if few:
        assert [uuid for uuid, _ in made.unusable] == [gpu.uuid for gpu in few]
        assert planned(made).worker is Keep.AS_IS
        both = dataclasses.replace(both, handed_out=tuple(gpu.uuid for gpu in few))
        made = make_plan(both)
    assert [uuid for uuid, _ in made.unusable] == list(both.handed_out)
    assert {cause.kind for _, cause in made.unusable} == {"unusable"}
    assert all(cause.reason and cause.reason.isprintable() for _, cause in made.unusable)
    assert planned(made).worker.tags == ("gpu-unusable",)
    well = make_plan(gpu_unit()).ci.own.worker
    assert planned(made).worker == dataclasses.replace(
        well, tags=planned(made).worker.tags, max_active_tasks=0
    ), "it is restarted for its tags alone"


def test_a_chosen_toolkit_that_is_refused_takes_no_gpu_from_tasks():
    options = {"enable-gpu": True, "nvidia-container-toolkit-version": "1.17.8"}
    found = unit(
        options=options, handed_out=(GPUS[0].uuid,), packaged=Packaged("1.20.0-1", ours=True)
    )
    made = make_plan(found)
    assert (made.gpu, planned(made).worker, made.unusable) == (Keep.AS_IS, Keep.AS_IS, ())
    assert said(found)[0][0] == "blocked"


def test_each_problem_of_gpus_has_a_text_of_its_own():
    texts = {said(troubled(name))[0] for name in GPU_PROBLEMS}
    assert len(texts) == len(GPU_PROBLEMS)
