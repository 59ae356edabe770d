# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Records of GPUs in use outside CI: the GPU runtime reads what the charm wrote, written once."""

import json
import shutil

import pytest

from gpu_agent import paths
from gpu_agent.availability import external_use, residual_memory
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from gpu_runtime import policy, unavailable
from gpu_runtime.unavailable import UNUSABLE, Unavailable
from tests.unit.grants import in_use
from tests.unit.situations import gpu, sliced

FOREIGN = ("GPU-0", in_use("pid 4711 (python3)"))
DIRTY = ("GPU-1", residual_memory.cause(12595))
HIDDEN = ("GPU-1", Unavailable(UNUSABLE, "host-state", "on the host but not in this container"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "EXTERNAL", tmp_path / "gpu-ci/cordons")
    return paths.EXTERNAL


def read_by_the_runtime(tmp_path, container=""):
    path = tmp_path / "policy.json"
    cards = (gpu(0), sliced(1, "1g.10gb", "1g.10gb"), gpu(2))
    path.write_text(install.policy_text(GpuPlan(cards, "/usr/bin/nvidia-container-runtime")))
    found = policy.read(str(path))
    assert found is not None
    return found.unavailable(container)


def test_without_a_gpu_nothing_is_made(folder):
    assert not external_use.ensure(())
    assert not folder.parent.exists()
    assert external_use.read() == {}


def test_records_come_and_go_with_their_causes(folder, tmp_path):
    assert external_use.ensure((FOREIGN, DIRTY))
    assert not external_use.ensure((FOREIGN, DIRTY))
    assert external_use.read() == dict((FOREIGN, DIRTY))
    assert read_by_the_runtime(tmp_path) == {
        "GPU-0": FOREIGN[1], **dict.fromkeys(("MIG-1-0", "MIG-1-1"), DIRTY[1]),
    }  # fmt: skip
    another = in_use("pid 4712 (ollama)")
    assert external_use.ensure((("GPU-0", another),))
    assert read_by_the_runtime(tmp_path) == {"GPU-0": another}
    assert external_use.ensure(())
    assert (external_use.read(), read_by_the_runtime(tmp_path)) == ({}, {})


def test_a_gpu_that_is_closed_stays_so_over_a_reboot_and_whatever_else_is_recorded(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(paths, "CLOSED", tmp_path / "var/closed")
    closed = Unavailable(UNUSABLE, "unit-rests", "the unit is drained or paused")
    assert external_use.close((("GPU-0", closed),))
    assert not external_use.close((("GPU-0", closed),))
    external_use.ensure((DIRTY,))
    shutil.rmtree(folder)  # as a boot empties /run
    external_use.ensure(())
    assert read_by_the_runtime(tmp_path) == {"GPU-0": closed}
    assert external_use.close(())
    assert read_by_the_runtime(tmp_path) == {}


def test_an_unusable_gpu_is_for_the_self_test_alone(folder, tmp_path):
    assert external_use.ensure((FOREIGN, HIDDEN))
    assert not external_use.ensure((FOREIGN, HIDDEN))
    assert external_use.read() == dict((FOREIGN,))
    assert read_by_the_runtime(tmp_path) == {
        "GPU-0": FOREIGN[1], **dict.fromkeys(("MIG-1-0", "MIG-1-1"), HIDDEN[1]),
    }  # fmt: skip
    testing = read_by_the_runtime(tmp_path, f"{policy.SELF_TEST_CONTAINER}lease")
    assert testing == {"GPU-0": FOREIGN[1]}
    assert external_use.ensure((FOREIGN,))
    assert read_by_the_runtime(tmp_path) == {"GPU-0": FOREIGN[1]}


def test_a_damaged_record_is_replaced(folder, tmp_path):
    external_use.ensure((FOREIGN,))
    (folder / "GPU-0.json").write_text("{")
    assert read_by_the_runtime(tmp_path)["GPU-0"].code == "damaged-record"
    assert external_use.ensure((FOREIGN,))
    assert read_by_the_runtime(tmp_path) == {"GPU-0": FOREIGN[1]}


@pytest.mark.parametrize(
    ("record", "cause"),
    [
        ({"reason": "in use outside CI: pid 4711 (python3)"}, FOREIGN[1]),
        ({"reason": "dirty: 12.3 GiB taken without a process"}, DIRTY[1]),
        ({"reason": "fan", "by": "operator"}, Unavailable("cordoned", "operator", "fan")),
        (
            {"reason": "Xid 79: lost", "check": "xid", "by": "watch"},
            Unavailable("quarantined", "xid", "Xid 79: lost"),
        ),
    ],
)
def test_records_without_kind_and_code_stay_readable(tmp_path, record, cause):
    (tmp_path / "GPU-0.json").write_text(json.dumps(record))
    assert unavailable.read_folder(str(tmp_path)) == {"GPU-0": cause}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("cordoned", "cordoned by the operator: why"),
        ("quarantined", "quarantined: why"),
        ("external", "in use outside CI: why"),
        ("unusable", "unusable: why"),
        ("unfit", "why"),
    ],
)
def test_what_people_read_of_each_kind(kind, text):
    assert Unavailable(kind, "a-code", "why").describe() == text


def test_a_cause_cannot_be_changed():
    with pytest.raises(AttributeError, match="reason"):
        FOREIGN[1].reason = "another"
