# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-cordon and gpu-uncordon at the charm's door, and what other actions say of such a GPU."""

import pytest
from ops import testing

from gpu_agent import paths
from gpu_agent import paths as wrapper
from gpu_agent.availability import quarantine, retests
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from tests.unit.situations import GPUS, RUNTIME, state, tsa

XID = "Xid 79: the GPU has fallen off the bus"
BEFORE = {"relations": [tsa()], "enable_gpu": True}


@pytest.fixture
def worker(rooms, tmp_path, monkeypatch):
    """Its real quarantine and policy, in a folder."""
    for name in ("POLICY", "STORE", "EXTERNAL", "LOG"):
        monkeypatch.setattr(wrapper, name, tmp_path / name.lower())
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    monkeypatch.setattr(retests, "PATH", tmp_path / "retests")
    rooms.hand_in(quarantined=quarantine.read)
    wrapper.POLICY.write_text(install.policy_text(GpuPlan(GPUS, RUNTIME)))
    return rooms


def act(context, action, **params):
    after = context.run(context.on.action(action, params=params), state(**BEFORE))
    return context.action_results, after


def test_a_cordon_is_seen_by_all_at_once_and_lifted_again(context, worker):
    results, after = act(context, "gpu-cordon", gpu="gpu-1", reason="swapping the fan")
    assert results == {
        "gpu": GPUS[1].uuid,
        "state": "cordoned by the operator: swapping the fan",
        "running": "none",
    }
    assert "gpu-count=1" in worker.worker.tags
    assert after.unit_status.message.startswith("Worker ready (GPU: 1x NVIDIA, 1 cordoned: ")
    assert "GPU 1 (swapping the fan" in after.unit_status.message
    results, _ = act(context, "gpu-leases")
    assert results["gpu-1"].startswith("cordoned by the operator: swapping the fan, A100")
    results, _ = act(context, "gpu-inventory")
    assert results["gpu-1"].endswith("not for tasks (cordoned by the operator: swapping the fan)")
    assert results["gpu-0"].endswith("\n  for tasks")

    results, after = act(context, "gpu-uncordon", gpu="gpu-1", reason="done")
    assert results["state"] == "available"
    assert after.unit_status == testing.ActiveStatus("Worker ready (GPU: 2x NVIDIA)")
    assert "gpu-count=2" in worker.worker.tags


def test_gpu_inventory_says_why_a_gpu_is_in_quarantine(context, worker):
    quarantine.put(GPUS[0].uuid, XID, "xid", "quick", "")
    results, _ = act(context, "gpu-inventory")
    assert results["gpu-0"].endswith(f"not for tasks (quarantined: {XID})")
    assert results["gpu-1"].endswith("\n  for tasks")


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("gpu-cordon", f"No GPU here is 'gpu-2'; this unit has gpu-0 ({GPUS[0].uuid}), gpu-1"),
        ("gpu-uncordon", f"No GPU here is 'gpu-2'; this unit has gpu-0 ({GPUS[0].uuid}), gpu-1"),
    ],
)
def test_what_cannot_be_done_is_told_in_words(context, worker, action, words):
    with pytest.raises(testing.ActionFailed) as caught:
        act(context, action, gpu="gpu-2", reason="why")
    assert caught.value.message.startswith(words)


def test_one_that_is_not_out_of_use_is_not_brought_back(context, worker):
    with pytest.raises(
        testing.ActionFailed, match="is not cordoned or quarantined; these are: none"
    ):
        act(context, "gpu-uncordon", gpu="gpu-1", reason="why")
