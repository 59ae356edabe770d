# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The operator's actions at the charm's door, and what it makes of their parameters."""

import json

import pytest
from ops import testing

from oci import leases
from tests.unit.situations import GPUS, database, state, tsa


def test_admin_password_is_shown_by_its_action(context, rooms):
    before = context.run(context.on.update_status(), state("web", [database()]))
    context.run(context.on.action("get-admin-password"), before)
    assert context.action_results["username"] == "admin"
    assert context.action_results["password"] == "secret-password"
    assert context.action_results["url"].endswith(":8080")


def test_admin_password_on_a_worker_fails_in_words(context, rooms):
    with pytest.raises(testing.ActionFailed, match="web application"):
        context.run(context.on.action("get-admin-password"), state(relations=[tsa()]))


@pytest.mark.parametrize("action", ["gpu-inventory", "get-admin-password"])
def test_an_action_fails_in_words_while_an_option_is_wrong(context, rooms, action):
    with pytest.raises(testing.ActionFailed, match="gpu-vendor 'nvida' is unknown"):
        context.run(context.on.action(action), state(gpu_vendor="nvida"))


def test_gpu_inventory_shows_what_tasks_may_use(context, rooms):
    before = state(relations=[tsa()], enable_gpu=True, gpu_device_ids="1")
    after = context.run(context.on.action("gpu-inventory"), before)
    results = context.action_results
    assert results["count"] == "2"
    assert results["gpu-0"].endswith("not for tasks")
    assert results["gpu-1"].startswith("NVIDIA A100-SXM4-80GB, 81920 MiB, GPU-00000001-")
    assert json.loads(results["json"])["allowed"] == [GPUS[1].uuid]
    assert after.unit_status == before.unit_status


def test_gpu_inventory_shows_a_cordoned_gpu_as_not_for_tasks(context, rooms):
    rooms.cordoned = ((GPUS[1].uuid, "dirty: 12.3 GiB taken without a process"),)
    before = state(relations=[tsa()], enable_gpu=True)
    context.run(context.on.action("gpu-inventory"), before)
    assert json.loads(context.action_results["json"])["allowed"] == [GPUS[0].uuid]


@pytest.mark.parametrize("enable", [True, False])
def test_gpu_leases_on_a_unit_without_a_policy_says_so(context, rooms, enable):
    context.run(context.on.action("gpu-leases"), state(relations=[tsa()], enable_gpu=enable))
    assert context.action_results == {
        "state": "off: tasks get no GPU on this unit",
        "json": "{}",
    }


def test_gpu_release_hands_its_parameters_on(context, rooms, monkeypatch):
    asked = []

    def release(gpu, reason, *, force):
        asked.append((gpu, reason, force))
        return {"released": "nobody held it"}

    monkeypatch.setattr(leases, "release", release)
    for extra, force in (({}, False), ({"force": True}, True)):
        params = {"gpu": "1", "reason": "hangs", **extra}
        context.run(context.on.action("gpu-release", params=params), state(relations=[tsa()]))
        assert context.action_results == {"released": "nobody held it"}
        assert asked.pop() == ("1", "hangs", force)


def test_gpu_release_fails_in_words(context, rooms):
    action = context.on.action("gpu-release", params={"gpu": "1", "reason": "hangs"})
    with pytest.raises(testing.ActionFailed, match="Tasks get no GPU on this unit"):
        context.run(action, state(relations=[tsa()]))
