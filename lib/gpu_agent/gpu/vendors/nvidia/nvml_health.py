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

# Reasons for a lower clock (nvml.h of CUDA 13, nvmlClocksEventReasons). The first three are not
# faults: idleness, a requested clock, the configured power limit.
IDLE: typing.Final = 0x1
APPLICATION_CLOCKS: typing.Final = 0x2
SOFTWARE_POWER_CAP: typing.Final = 0x4
HARDWARE_SLOWDOWN: typing.Final = 0x8
SOFTWARE_THERMAL: typing.Final = 0x20
HARDWARE_THERMAL: typing.Final = 0x40
POWER_BRAKE: typing.Final = 0x80
THROTTLED: typing.Final = (
    HARDWARE_SLOWDOWN | SOFTWARE_THERMAL | HARDWARE_THERMAL | POWER_BRAKE
)  # fmt: skip

# A reason that comes and goes within this time does not count: each sample must have it.
_LOOKS: typing.Final = 3
_BETWEEN_LOOKS_SECONDS: typing.Final = 0.1


@dataclasses.dataclass(frozen=True)
class Sram:
    """Errors of the caches and registers.

    Attributes:
        uncorrected_volatile: since the driver was loaded.
        uncorrected_aggregate: in the card's life.
        corrected_volatile: since the driver was loaded.
        threshold_exceeded: whether there were so many that NVIDIA recommends replacing the card.
    """

    uncorrected_volatile: int
    uncorrected_aggregate: int
    corrected_volatile: int
    threshold_exceeded: bool


@dataclasses.dataclass(frozen=True)
class RemappedRows:
    """Rows of memory that were replaced by spare ones, in the card's life.

    Attributes:
        corrected: because of errors that were corrected.
        uncorrected: because of errors that were not.
        pending: whether a row waits for a reset to be remapped.
        failed: whether a row could not be remapped.
    """

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


@dataclasses.dataclass(frozen=True)
class Health:
    """One GPU's health. None: this GPU, its driver or a container does not report it.

    Attributes:
        failure: NVML's message if the GPU does not answer or needs a reset; the rest is then None.
        trouble: NVML's message on the first query that ended in an error; or empty.
        compute_capability: major and minor.
        memory_mib: all of its memory, in MiB.
        ecc: whether memory is checked by ECC.
        corrected_volatile: ECC errors since the driver was loaded; the next three are like it,
            `aggregate` in the card's life.
        sram: the same for caches and registers, reported by recent drivers.
        remapped_rows: from Ampere on.
        retired_pages: number of pages out of use, before Ampere.
        retired_pages_pending: whether a page waits for a reset to be taken out of use.
        recovery_action: the driver's request: 0 nothing, 1 a reset of the GPU, 2 a reboot, 3 no
            peer-to-peer traffic, 4 no new work and a reset, 5 a recovery of the IMEX domain, 6 a
            reset of the bus, 7 a cold reboot (nvml.h, NVML_GPU_RECOVERY_ACTION).
        reasons: for a lower clock, as bits; THROTTLED ones only if all of three samples within
            0.2 s have them.
        computing: whether a process has a compute context on it.
        pcie_width: lanes in use.
        pcie_width_max: the most that GPU and system support, less in a narrower slot.
        temperature: in °C.
        temperature_margin: how many °C are left until it slows itself down.
        persistence: whether the driver stays loaded without a client.
        sm_clock_mhz: the processors' clock.
        sm_clock_max_mhz: their highest clock.
        power_w: its power draw.
        power_limit_w: its power limit.
    """

    failure: str = ""
    trouble: str = ""
    compute_capability: tuple[int, int] | None = None
    memory_mib: int | None = None
    ecc: bool | None = None
    corrected_volatile: int | None = None
    corrected_aggregate: int | None = None
    uncorrected_volatile: int | None = None
    uncorrected_aggregate: int | None = None
    sram: Sram | None = None
    remapped_rows: RemappedRows | None = None
    retired_pages: int | None = None
    retired_pages_pending: bool | None = None
    recovery_action: int | None = None
    reasons: int | None = None
    computing: bool | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    temperature: int | None = None
    temperature_margin: int | None = None
    persistence: bool | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None


@dataclasses.dataclass(frozen=True)
class Sample:
    """A GPU at one moment under load; the fields are those of Health."""

    failure: str = ""
    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature: int | None = None
    reasons: int | None = None


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
        if not reasons or not reasons & THROTTLED:
            break
        time.sleep(_BETWEEN_LOOKS_SECONDS)
        again = gpu.reasons() or 0
        reasons = (again & ~THROTTLED) | (reasons & again & THROTTLED)
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
