# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read one NVIDIA GPU's changing figures through NVML; some milliseconds for each call."""

import typing

from gpu_agent.gpu.vendors.nvidia.nvml_device import Device, is_for_want
from gpu_agent.model.card import Figures

MOST_PIDS: typing.Final = 1024
"""Most reported processes of one GPU; each takes some 100 MiB of its memory."""


class NoDeviceError(Exception):
    """The driver does not have the GPU, or has another one in its place."""


class ScarceError(Exception):
    """The machine lacks resources, so the figures are unknown; the text is NVML's."""


def find(binding: typing.Any, uuid: str, pci_address: str) -> Device:
    """Find a GPU without touching others: a query by UUID may wake all of them.

    Raises:
        NoDeviceError: the driver does not have it.
        ScarceError: the machine lacks resources.
        NVMLError: the GPU does not answer.
    """
    try:
        handle = binding.nvmlDeviceGetHandleByPciBusId(pci_address)
        if binding.nvmlDeviceGetUUID(handle) != uuid:
            raise NoDeviceError
    except binding.NVMLError_NotFound as error:
        raise NoDeviceError from error
    except binding.NVMLError as error:
        if is_for_want(error):
            raise ScarceError(str(error)) from error
        raise
    return Device(binding, uuid, handle)


def read(device: Device) -> Figures:
    """The GPU's figures; only `failure` if it does not answer.

    Raises:
        ScarceError: the machine lacks resources.
    """
    binding = device.binding
    device.trouble, device.starved = "", False
    try:
        found = _read(device)
    except binding.NVMLError as error:
        return Figures(failure=str(error))
    if device.starved:
        raise ScarceError(device.trouble)
    if device.trouble and found.memory_total_mib is None and found.temperature is None:
        return Figures(failure=device.trouble)
    return found


def _read(device: Device) -> Figures:
    binding = device.binding
    # The first version of this query counts the driver's reserve as used. On a GPU that is a NUMA
    # node (GH200), the kernel keeps files in its memory.
    memory = device.ask("MemoryInfo", binding.nvmlMemory_v2)
    if device.ask("NumaNodeId") is not None:
        memory = None
    rates = device.ask("UtilizationRates")
    rows = device.ask("RemappedRows")
    energy = device.ask("TotalEnergyConsumption")
    processes = device.ask("ComputeRunningProcesses_v3")
    drawing = device.ask("GraphicsRunningProcesses_v3")
    return Figures(
        busy=rates.gpu if rates else None,
        memory_used_mib=memory.used >> 20 if memory else None,
        memory_total_mib=memory.total >> 20 if memory else None,
        power_w=device.watts("PowerUsage"),
        power_limit_w=device.watts("EnforcedPowerLimit"),
        energy_j=None if energy is None else energy / 1000,
        temperature=device.temperature(),
        sm_clock_mhz=device.ask("ClockInfo", binding.NVML_CLOCK_SM),
        reasons=device.reasons(),
        ecc_corrected=device.ecc_errors("CORRECTED", "VOLATILE"),
        ecc_uncorrected=device.ecc_errors("UNCORRECTED", "VOLATILE"),
        remap_pending=bool(rows[2]) if rows else None,
        remap_failed=bool(rows[3]) if rows else None,
        recovery_action=device.recovery_action(),
        pids=None if processes is None else tuple(one.pid for one in processes[:MOST_PIDS]),
        drawing=None if drawing is None else len(drawing),
    )
