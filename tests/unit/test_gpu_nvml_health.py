# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reading health where there is no NVML; with one: tests/functional/test_gpu_nvml_health.py."""

import ctypes

import pytest

from gpu_agent.gpu.vendors.nvidia import nvml
from gpu_agent.gpu.vendors.nvidia import nvml_health as health
from gpu_agent.model.gpu_health import Health


@pytest.fixture
def no_library():
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return
    pytest.skip("this machine has a libnvidia-ml.so.1")


def test_without_a_library_each_gpu_has_nvmls_words_as_its_failure(no_library):
    words = "NVML Shared Library Not Found"
    assert health.read(["GPU-a", "GPU-b"]) == {
        "GPU-a": Health(failure=words),
        "GPU-b": Health(failure=words),
    }
    with pytest.raises(nvml.NvmlError, match=words), health.watch(["GPU-a"]):
        pass


def test_without_gpus_nvml_is_left_alone(monkeypatch):
    monkeypatch.setattr(nvml, "session", lambda: pytest.fail("NVML was asked"))
    assert health.read(iter([])) == {}
