# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read the health of NVIDIA's GPUs from NVML; changes nothing."""

import collections.abc
import contextlib
import ctypes
import dataclasses
import pathlib
import time
import typing

from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.gpu.vendors.nvidia import nvml
from gpu_agent.gpu.vendors.nvidia.nvml_device import Device
from gpu_agent.model import clock_reasons
from gpu_agent.model.gpu_health import Health, RemappedRows, Sample, Sram

# A reason that comes and goes within this time does not count: each sample must have it.
_LOOKS: typing.Final = 3
_BETWEEN_LOOKS_SECONDS: typing.Final = 0.1


def read(
    uuids: collections.abc.Iterable[str], root: pathlib.Path = pathlib.Path("/")
) -> dict[str, Health]:
    """Return each of these GPUs' health. It never raises: NVML's error is the failure.

    Args:
        uuids: the GPUs'; without any NVML is not used.
        root: the root of the machine's files; NVML is always this machine's.
    """
    wanted = tuple(uuids)
    if not wanted:
        return {}
    try:
        with nvml.session() as binding:
            return {uuid: _health(binding, uuid, root) for uuid in wanted}
    except nvml.NvmlError as error:
        return {uuid: Health(failure=str(error)) for uuid in wanted}


@contextlib.contextmanager
def watch(
    uuids: collections.abc.Iterable[str],
) -> collections.abc.Generator[collections.abc.Callable[[], dict[str, Sample]]]:
    """Provide a function that samples these GPUs, in some milliseconds, while NVML stays open.

    Raises:
        NvmlError: NVML can't be loaded or started. A GPU that is lost later is a failure in its
            samples.
    """
    wanted = tuple(uuids)
    with nvml.session() as binding:
        yield lambda: {uuid: _sample(binding, uuid) for uuid in wanted}


def _health(binding: typing.Any, uuid: str, root: pathlib.Path) -> Health:
    try:
        gpu = Device(binding, uuid)
        memory = gpu.ask("MemoryInfo")
        ecc = gpu.ask("EccMode")
        temperature = gpu.temperature()
        found = Health(
            compute_capability=gpu.ask("CudaComputeCapability"),
            memory_mib=memory.total >> 20 if memory else None,
            ecc=None if ecc is None else bool(ecc[0]),
            corrected_volatile=gpu.ecc_errors("CORRECTED", "VOLATILE"),
            corrected_aggregate=gpu.ecc_errors("CORRECTED", "AGGREGATE"),
            uncorrected_volatile=gpu.ecc_errors("UNCORRECTED", "VOLATILE"),
            uncorrected_aggregate=gpu.ecc_errors("UNCORRECTED", "AGGREGATE"),
            sram=_sram(gpu),
            remapped_rows=_remapped_rows(gpu),
            retired_pages=_retired_pages(gpu),
            retired_pages_pending=gpu.flag("RetiredPagesPendingStatus"),
            recovery_action=gpu.recovery_action(),
            reasons=_lasting_reasons(gpu),
            computing=gpu.flag("ComputeRunningProcesses_v3"),
            pcie_width=gpu.ask("CurrPcieLinkWidth"),
            pcie_width_max=_width_possible(gpu, root),
            temperature=temperature,
            temperature_margin=_temperature_margin(gpu, temperature),
            persistence=gpu.flag("PersistenceMode"),
            sm_clock_mhz=gpu.ask("ClockInfo", binding.NVML_CLOCK_SM),
            sm_clock_max_mhz=gpu.ask("MaxClockInfo", binding.NVML_CLOCK_SM),
            power_w=gpu.watts("PowerUsage"),
            power_limit_w=gpu.watts("EnforcedPowerLimit"),
        )
    except binding.NVMLError as error:
        return Health(failure=str(error))
    return dataclasses.replace(found, trouble=gpu.trouble)


def _sample(binding: typing.Any, uuid: str) -> Sample:
    try:
        gpu = Device(binding, uuid)
        return Sample(
            sm_clock_mhz=gpu.ask("ClockInfo", binding.NVML_CLOCK_SM),
            power_w=gpu.watts("PowerUsage"),
            temperature=gpu.temperature(),
            reasons=gpu.reasons(),
        )
    except binding.NVMLError as error:
        return Sample(failure=str(error))


def _sram(gpu: Device) -> Sram | None:
    status = gpu.binding.c_nvmlEccSramErrorStatus_v1_t()
    # The binding passes its argument on, and C needs the address.
    if gpu.ask("SramEccErrorStatus", ctypes.byref(status)) is None:
        return None
    return Sram(
        uncorrected_volatile=status.volatileUncParity + status.volatileUncSecDed,
        uncorrected_aggregate=status.aggregateUncParity + status.aggregateUncSecDed,
        corrected_volatile=status.volatileCor,
        threshold_exceeded=bool(status.bThresholdExceeded),
    )


def _remapped_rows(gpu: Device) -> RemappedRows | None:
    answer = gpu.ask("RemappedRows")
    if answer is None:
        return None
    corrected, uncorrected, pending, failed = answer
    return RemappedRows(corrected, uncorrected, bool(pending), bool(failed))


def _retired_pages(gpu: Device) -> int | None:
    causes = (
        gpu.binding.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        gpu.binding.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    pages = [gpu.ask("RetiredPages", cause) for cause in causes]
    return None if None in pages else sum(len(of_cause) for of_cause in pages)


def _lasting_reasons(gpu: Device) -> int | None:
    reasons = gpu.reasons()
    for _ in range(_LOOKS - 1):
        if not reasons or not reasons & clock_reasons.THROTTLED:
            break
        time.sleep(_BETWEEN_LOOKS_SECONDS)
        again = gpu.reasons() or 0
        reasons = (again & ~clock_reasons.THROTTLED) | (reasons & again & clock_reasons.THROTTLED)
    return reasons


def _width_possible(gpu: Device, root: pathlib.Path) -> int | None:
    """Return the most lanes that a GPU can use in its slot; NVML ignores a narrow slot."""
    width = gpu.ask("MaxPcieLinkWidth")
    pci = gpu.ask("PciInfo")
    if width is None or pci is None:
        return width
    device = root / "sys/bus/pci/devices" / nvml.pci_address(pci.busId)
    slot = kernel.number(device.resolve().parent / "max_link_width")
    # A width that the kernel does not know reads as 255 (Linux pci.h, PCIE_LNK_WIDTH_UNKNOWN).
    return min(width, slot) if slot else width


def _temperature_margin(gpu: Device, temperature: int | None) -> int | None:
    """The margin that recent GPUs report; for others computed from the slowdown temperature."""
    margin = gpu.ask("MarginTemperature")
    limit = gpu.ask("TemperatureThreshold", gpu.binding.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    if margin is not None or not limit or temperature is None:
        return margin
    return limit - temperature
