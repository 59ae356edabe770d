# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's door: a worker that has lost GPUs offers what is left before it is tested."""

import dataclasses

import pytest

from plan.draining import Pause
from plan.labels import NO_GPU_USABLE
from tests.unit.situations import GPUS, state, tsa

BOTH = tuple(gpu.uuid for gpu in GPUS)


@pytest.fixture
def hook(context, rooms):
    """A hook of a worker whose tasks were given `handed_out`; what it did, in its order."""

    def hook(handed_out, *gpus):
        rooms.handed_out = handed_out
        rooms.inventory = dataclasses.replace(rooms.inventory, gpus=gpus)
        rooms.calls.clear()
        context.unit_status_history.clear()
        before = dataclasses.replace(state(enable_gpu=True), relations=[tsa()])
        context.run(context.on.update_status(), before)
        done = [call.partition(" ")[0] for call in rooms.calls]
        return [call for call in done if call in ("worker.apply", "self-test.ensure")]

    return hook


def test_a_gpu_that_is_gone_is_offered_no_longer_while_the_rest_is_tested(hook, rooms):
    assert hook(BOTH, GPUS[0]) == ["worker.apply", "self-test.ensure", "worker.apply"]
    assert "gpu-count=1" in rooms.worker.tags


def test_status_says_at_once_which_went_and_which_are_new(hook, context):
    for handed_out, gpus, said in (
        (BOTH, GPUS[:1], "1 GPU gone"),
        (BOTH[:1], GPUS, "1 GPU new"),
        (("GPU-another", "GPU-third", BOTH[0]), GPUS, "1 GPU new, 2 GPUs gone"),
    ):
        hook(handed_out, *gpus)
        assert said in [status.message for status in context.unit_status_history]
    for handed_out, gpus in ((BOTH, GPUS), (BOTH, ()), ((), GPUS)):
        hook(handed_out, *gpus)
        said = [status.message for status in context.unit_status_history]
        assert not any("gone" in text or "new" in text for text in said), said


def test_a_choice_of_the_operators_is_no_gpu_that_is_gone(context, rooms):
    rooms.handed_out = BOTH
    before = dataclasses.replace(state(enable_gpu=True, gpu_device_ids="1"), relations=[tsa()])
    context.run(context.on.config_changed(), before)
    said = [status.message for status in context.unit_status_history]
    assert "gpu-device-ids=1" in said
    assert not any("gone" in text or "new" in text for text in said), said


def test_one_that_came_is_tested_before_it_is_offered(hook):
    for handed_out in ((), BOTH[:1], BOTH, ("GPU-another", BOTH[0])):
        assert hook(handed_out, *GPUS) == ["self-test.ensure", "worker.apply"]


def test_where_all_were_gone_what_is_here_has_come_and_is_tested_first(hook, rooms):
    rooms.worker_tags = (NO_GPU_USABLE,)
    assert hook(BOTH, GPUS[0]) == ["self-test.ensure", "worker.apply"]


def test_a_paused_worker_stays_down(hook, rooms):
    rooms.records.drain.write_pause(Pause("new fans"))
    assert hook(BOTH, GPUS[0]) == ["self-test.ensure"]
