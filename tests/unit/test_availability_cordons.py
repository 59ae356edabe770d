# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Cordons: what the charm writes is what the wrapper reads, and nothing is written twice."""

import pytest

from gpu_agent import paths as wrapper
from gpu_agent.availability import cordons
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from gpu_runtime import policy
from tests.unit.situations import gpu, sliced

FOREIGN = ("GPU-0", "in use outside CI: pid 4711 (python3)")
DIRTY = ("GPU-1", "dirty: 12.3 GiB taken without a process")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(wrapper, "CORDONS", tmp_path / "gpu-ci/cordons")
    return wrapper.CORDONS


def read_by_the_wrapper(tmp_path):
    path = tmp_path / "policy.json"
    cards = (gpu(0), sliced(1, "1g.10gb", "1g.10gb"), gpu(2))
    path.write_text(install.policy_text(GpuPlan(cards, "/usr/bin/nvidia-container-runtime")))
    found = policy.read(str(path))
    assert found is not None
    return found.cordoned()


def test_without_a_reason_nothing_is_made(folder):
    assert not cordons.ensure(())
    assert not folder.parent.exists()
    assert cordons.reasons() == {}


def test_cordons_come_and_go_with_their_reasons(folder, tmp_path):
    assert cordons.ensure((FOREIGN, DIRTY))
    assert not cordons.ensure((FOREIGN, DIRTY))
    assert cordons.reasons() == dict((FOREIGN, DIRTY))
    assert read_by_the_wrapper(tmp_path) == {
        "GPU-0": FOREIGN[1],
        "MIG-1-0": DIRTY[1],
        "MIG-1-1": DIRTY[1],
    }
    assert cordons.ensure((("GPU-0", "in use outside CI: pid 4712 (ollama)"),))
    assert read_by_the_wrapper(tmp_path) == {"GPU-0": "in use outside CI: pid 4712 (ollama)"}
    assert cordons.ensure(())
    assert (cordons.reasons(), read_by_the_wrapper(tmp_path)) == ({}, {})


def test_what_is_of_no_use_now_is_for_the_self_test_alone_and_nobodys_use(folder, tmp_path):
    unusable = (("GPU-1", "GPU 0000:02:00.0 is on the host but not in this container"),)
    assert cordons.ensure((FOREIGN,), unusable)
    assert not cordons.ensure((FOREIGN,), unusable)
    assert cordons.reasons() == dict((FOREIGN,))
    why = f"quarantined: {unusable[0][1]}"
    assert read_by_the_wrapper(tmp_path) == {
        "GPU-0": FOREIGN[1], **dict.fromkeys(("MIG-1-0", "MIG-1-1"), why),
    }  # fmt: skip
    testing = policy.cordons(str(folder), f"{policy.SELF_TEST_CONTAINER}lease")
    assert testing == {"GPU-0": FOREIGN[1]}
    assert cordons.ensure((FOREIGN,))
    assert read_by_the_wrapper(tmp_path) == {"GPU-0": FOREIGN[1]}


def test_a_file_that_is_no_cordon_any_more_is_healed(folder, tmp_path):
    cordons.ensure((FOREIGN,))
    (folder / "GPU-0.json").write_text("{")
    assert read_by_the_wrapper(tmp_path) == {"GPU-0": "out of use"}
    assert cordons.ensure((FOREIGN,))
    assert read_by_the_wrapper(tmp_path) == {"GPU-0": FOREIGN[1]}
