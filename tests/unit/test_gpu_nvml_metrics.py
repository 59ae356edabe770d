# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What one look makes of NVML's answers: want of memory is no verdict, no answer is endless."""

import types

import pynvml
import pytest

from gpu_agent.gpu.probe import probe_protocol as wire
from gpu_agent.gpu.vendors.nvidia import nvml_metrics as figures
from gpu_agent.gpu.vendors.nvidia.nvml_device import Device
from gpu_agent.gpu.vendors.nvidia.nvml_events import Events

UUID, ADDRESS = "GPU-0", "0000:01:00.0"


class Binding:
    """pynvml with answers of the test's: a value, or the number of an error."""

    def __init__(self, **answers):
        self.answers = {"HandleByPciBusId": "handle", "UUID": UUID} | answers
        self.asked = []

    def __getattr__(self, name):
        if not name.startswith("nvmlDeviceGet"):
            return getattr(pynvml, name)

        def ask(*arguments):
            query = name.removeprefix("nvmlDeviceGet")
            self.asked.append(query)
            answer = self.answers.get(query, pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask


def look(**answers):
    binding = Binding(**answers)
    return figures.read(figures.find(binding, UUID, ADDRESS))


def error(number):
    return pynvml.NVMLError(number)


def test_what_is_not_told_is_none():
    found = look(PowerUsage=41000)
    assert found.power_w == 41
    assert {value for name, value in vars(found).items() if name != "power_w"} == {"", None}


def test_memory_that_the_machine_shares_is_not_told():
    memory = types.SimpleNamespace(used=1 << 30, total=1 << 36)
    assert look(MemoryInfo=memory).memory_used_mib == 1024
    assert look(MemoryInfo=memory, NumaNodeId=1).memory_used_mib is None


def test_no_more_processes_are_told_than_the_wire_takes():
    many = [types.SimpleNamespace(pid=4_000_000 + number) for number in range(5000)]
    found = look(ComputeRunningProcesses_v3=many, GraphicsRunningProcesses_v3=many)
    assert len(found.pids) == figures.MOST_PIDS
    assert found.drawing == 5000
    line = wire.pack(wire.One(UUID, found))
    assert len(line) < 1 << 15
    assert wire.unpack(line, {UUID}) == wire.One(UUID, found)


@pytest.mark.parametrize("number", [15, 16])  # lost; reset required
def test_a_gpu_that_is_lost_is_a_failure(number):
    assert look(Temperature=error(number)).failure == str(error(number))


def test_a_gpu_that_answers_with_errors_alone_is_a_failure():
    unknown = error(pynvml.NVML_ERROR_UNKNOWN)
    found = look(MemoryInfo=unknown, Temperature=unknown, TemperatureV=unknown)
    assert found.failure == f"nvmlDeviceGetMemoryInfo: {unknown}"
    assert look(MemoryInfo=unknown, Temperature=40).failure == ""


@pytest.mark.parametrize("number", [20, 23])  # memory; resources
@pytest.mark.parametrize("query", ["HandleByPciBusId", "UUID", "MemoryInfo"])
def test_want_of_memory_is_no_verdict(number, query):
    with pytest.raises(figures.ScarceError):
        look(**{query: error(number)})


def test_another_gpu_in_its_place_is_none():
    with pytest.raises(figures.NoDeviceError):
        look(UUID="GPU-1")
    with pytest.raises(figures.NoDeviceError):
        look(HandleByPciBusId=error(pynvml.NVML_ERROR_NOT_FOUND))


def test_asking_for_one_gpu_wakes_no_other():
    binding = Binding()
    figures.find(binding, UUID, ADDRESS)
    assert binding.asked == ["HandleByPciBusId", "UUID"]


def test_a_driver_without_event_sets_is_an_error_and_no_crash():
    binding = Binding()
    binding.nvmlEventSetCreate = lambda: (_ for _ in ()).throw(error(3))
    with pytest.raises(pynvml.NVMLError):
        Events(binding, {})
    assert Device(binding, UUID, "handle").trouble == ""
