# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The quick checks of each GPU, made of its driver's data. Without side effects."""

import collections.abc
import dataclasses
import typing

from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.nvidia.xid import Log
from gpu_agent.model import clock_reasons, inventory, versions
from gpu_agent.model.gpu_health import Health
from gpu_agent.model.inventory import Gpu
from gpu_selftest.check import Check, Level, Outcome, Result, Said
from gpu_selftest.quick import gpu_errors
from gpu_selftest.quick.gpu_case import NOT_TOLD, Case
from gpu_selftest.settings import Settings

# How close to its limit a GPU may be, in °C, before the check warns.
_NARROW_MARGIN: typing.Final = 5

_UNDER_LOAD: typing.Final = "; not judged, because a job uses the GPU"

_AZURE: typing.Final = "Azure/azurehpc-health-checks, ECC check"

_REASONS: typing.Final = {
    clock_reasons.HARDWARE_THERMAL: "hardware thermal slowdown",
    clock_reasons.SOFTWARE_THERMAL: "software thermal slowdown",
    clock_reasons.POWER_BRAKE: "hardware power brake",
}


def _check(name: str, proves: str, source: str, unit: str = "", *, condemns: bool = True) -> Check:
    return Check(
        name, Level.QUICK, proves, source=source, unit=unit, each_gpu=True, condemns=condemns
    )


NVML: typing.Final = _check(
    "nvml", "NVML answers all questions about the GPU", "nvml.h of CUDA 13"
)
ECC: typing.Final = _check(
    "ecc", "no uncorrected memory error since the driver was loaded", _AZURE, "errors"
)
SRAM_ECC: typing.Final = _check(
    "sram-ecc", "no uncorrected cache or register error", _AZURE, "errors"
)
REMAPPED_ROWS: typing.Final = _check(
    "remapped-rows", "every bad row of memory could be remapped", _AZURE, "rows"
)
RETIRED_PAGES: typing.Final = _check(
    "retired-pages", "no memory page waits to be retired, and few are", _AZURE, "pages"
)
RECOVERY_ACTION: typing.Final = _check(
    "recovery-action",
    "the driver requests no recovery",
    "nvml.h of CUDA 13, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
)
THROTTLE: typing.Final = _check(
    "throttle",
    "the clock is lowered only by idleness, the power limit or a setting",
    "Azure/azurehpc-health-checks, clock throttling; nvml.h of CUDA 13, nvmlClocksEventReasons",
    # A job's load can cause it, and so can the heat after it. Only burn-in can blame the card.
    condemns=False,
)
PCIE_WIDTH: typing.Final = _check(
    "pcie-width",
    "all PCIe lanes of GPU and slot are in use",
    "the GPU's own maximum; the slot's max_link_width in /sys",
    "lanes",
)
TEMPERATURE: typing.Final = _check(
    "temperature",
    "the GPU is cooler than its slowdown temperature",
    "the GPU's own limit",
    "°C",
    condemns=False,  # as above
)
PERSISTENCE: typing.Final = _check(
    "persistence", "the driver stays loaded between jobs", "DCGM diag, level 1"
)
XID: typing.Final = _check(
    "xid",
    "the kernel log has no Xid that requires a reset, a reboot or a repair",
    "NVIDIA's Xid catalogue, October 2025; k8s-device-plugin, internal/rm/health.go",
)
MEMORY: typing.Final = _check(
    "memory", "the GPU has the minimum memory", "option minimums (gpu-memory)", "GiB"
)
COMPUTE_CAPABILITY: typing.Final = _check(
    "compute-capability",
    "the GPU has the minimum compute capability",
    "option minimums (compute-capability)",
)


def _nvml(case: Case) -> Said:
    if case.health.failure:
        text = f"NVML says {case.health.failure}"
        return Said(Outcome.FAILED, text, case.health.failure, case.reset)
    if case.health.trouble:
        text = f"NVML does not answer everything: {case.health.trouble}"
        return Said(Outcome.WARNING, text, case.health.trouble, case.reset)
    return Said(Outcome.PASSED, "NVML answers", "no error")


def _throttle(case: Case) -> Said:
    reasons = case.health.reasons
    if reasons is None:
        return NOT_TOLD
    bits = f"0x{reasons:x}"
    named = " and ".join(words for bit, words in _REASONS.items() if reasons & bit)
    if not named:
        # It accompanies the two hardware reasons, or stands alone on older GPUs.
        named = "hardware slowdown" if reasons & clock_reasons.HARDWARE_SLOWDOWN else ""
    if not named:
        return Said(
            Outcome.PASSED, "idle" if reasons & clock_reasons.IDLE else "not throttled", bits
        )
    clock, power_brake = case.health.sm_clock_mhz, reasons & clock_reasons.POWER_BRAKE
    text = f"throttled: {named}" + ("" if clock is None else f", at {clock} MHz")
    if case.busy:
        return Said(Outcome.SKIPPED, f"{text}{_UNDER_LOAD}", bits)
    # Three samples within 0.2 s say nothing about the next minute. The GPU health service watches
    # for that, and burn-in judges it under its own load.
    return Said(Outcome.WARNING, text, bits, _power(case) if power_brake else case.cool)


def _power(case: Case) -> str:
    return (
        f"Check the power supply and the power cables of GPU {case.gpu.index}: the machine "
        f"limits its power; {case.again}"
    )


def _pcie_width(case: Case) -> Said:
    width, possible = case.health.pcie_width, case.health.pcie_width_max
    if not width or not possible:
        return NOT_TOLD
    threshold = f"at least {possible}"
    if width < possible:
        remedy = (
            f"Power off, reseat GPU {case.gpu.index} ({case.gpu.pci_address}) and its riser or "
            f"cable, and clean the contacts; {case.again}"
        )
        text = f"PCIe x{width} of x{possible}: some lanes are not in use"
        return Said(Outcome.FAILED, text, width, remedy, threshold)
    return Said(Outcome.PASSED, f"x{width}", width, threshold=threshold)


def _temperature(case: Case) -> Said:
    degrees, margin = case.health.temperature, case.health.temperature_margin
    if degrees is None:
        return NOT_TOLD
    if margin is None:
        return Said(Outcome.SKIPPED, f"{degrees} °C; the GPU does not report its limit", degrees)
    limit = degrees + margin
    threshold = f"below {limit}, better {limit - _NARROW_MARGIN}"
    text = f"{degrees} °C, {margin} °C below its limit"
    if margin > _NARROW_MARGIN:
        return Said(Outcome.PASSED, text, degrees, threshold=threshold)
    if margin <= 0:
        text = f"too hot: {degrees} °C, {-margin} °C above its limit"
    if case.busy:
        return Said(Outcome.SKIPPED, f"{text}{_UNDER_LOAD}", degrees)
    if margin <= 0:
        return Said(Outcome.FAILED, text, degrees, case.cool, threshold, cause="too hot")
    return Said(Outcome.WARNING, text, degrees, case.cool, threshold)


def _persistence(case: Case) -> Said:
    on = case.health.persistence
    if on is None:
        return NOT_TOLD
    if on:
        return Said(Outcome.PASSED, "persistence mode is on", "on")
    # Ubuntu's service starts with persistence mode off, and there is nothing to enable.
    remedy = (
        f"`juju ssh {case.settings.unit} sudo nvidia-smi -pm 1` (for a container, on its host), "
        "or each job waits for the driver to start; to keep it over reboots, remove "
        "--no-persistence-mode in `sudo systemctl edit --full nvidia-persistenced`"
    )
    return Said(Outcome.WARNING, "persistence mode is off", "off", remedy)


def _memory(case: Case) -> Said:
    wanted, gpu = case.settings.min_gpu_memory_gib, case.gpu
    if not wanted:
        return Said(Outcome.SKIPPED, "minimums has no gpu-memory")
    if case.health.memory_mib is not None:
        gpu = dataclasses.replace(gpu, memory_mib=case.health.memory_mib)
    size, threshold = inventory.memory_gib(gpu), f"at least {wanted}"
    if not size:
        return NOT_TOLD
    what = "each MIG device" if gpu.mig_enabled else "the GPU"
    if size < wanted:
        text = f"{size} GiB of memory: {what} has less than the minimum, {wanted} GiB"
        remedy = _leave_out(case, "gpu-memory", f"{size}GiB")
        return Said(Outcome.FAILED, text, size, remedy, threshold)
    return Said(Outcome.PASSED, f"{what} has {size} GiB", size, threshold=threshold)


def _compute_capability(case: Case) -> Said:
    wanted, found = case.settings.min_compute_capability, case.health.compute_capability
    if not wanted:
        return Said(Outcome.SKIPPED, "minimums has no compute-capability")
    if found is None:
        return NOT_TOLD
    has, threshold = ".".join(map(str, found)), f"at least {wanted}"
    if tuple(found) < versions.numbers(wanted):
        text = f"compute capability {has}: less than the minimum, {wanted}"
        remedy = _leave_out(case, "compute-capability", has)
        return Said(Outcome.FAILED, text, has, remedy, threshold)
    return Said(Outcome.PASSED, has, has, threshold=threshold)


def _leave_out(case: Case, key: str, lower: str) -> str:
    command = f"juju config {case.settings.application}"
    others = [str(gpu.index) for gpu in case.settings.gpus if gpu.uuid != case.gpu.uuid]
    less = f"the minimum by `{command} {case.settings.minimums(key, lower)}`; {case.again}"
    if not others:
        return f"Lower {less}"
    without = f"{command} gpu-device-ids={','.join(others)}"
    return f"Leave GPU {case.gpu.index} out by `{without}`, or lower {less}"


class _Row(typing.NamedTuple):
    check: Check
    judge: collections.abc.Callable[[Case], Said]
    threshold: str


_MEMORY_ROW: typing.Final = _Row(MEMORY, _memory, "gpu-memory in minimums")
_ROWS: typing.Final = (
    _Row(NVML, _nvml, "no error"),
    _Row(
        ECC,
        gpu_errors.ecc,
        "0 uncorrected since the driver was loaded; better at most 20,000,000 corrected",
    ),
    _Row(
        SRAM_ECC,
        gpu_errors.sram_ecc,
        "0 uncorrected since the driver was loaded; better 0 ever, at most 10,000 corrected",
    ),
    _Row(REMAPPED_ROWS, gpu_errors.remapped_rows, "at most 512, none failed; better none pending"),
    _Row(RETIRED_PAGES, gpu_errors.retired_pages, "none pending, fewer than 62"),
    _Row(RECOVERY_ACTION, gpu_errors.recovery_action, "none"),
    _Row(THROTTLE, _throttle, "no thermal slowdown, hardware slowdown or power brake"),
    _Row(PCIE_WIDTH, _pcie_width, "all of GPU and slot"),
    _Row(TEMPERATURE, _temperature, "below where it slows down"),
    _Row(PERSISTENCE, _persistence, "on"),
    _Row(XID, gpu_errors.xid, "none that requires a reset, a reboot or a repair"),
    _MEMORY_ROW,
    _Row(COMPUTE_CAPABILITY, _compute_capability, "compute-capability in minimums"),
)
CHECKS: typing.Final = tuple(row.check for row in _ROWS)
# These checks don't need an answer of NVML.
_WITHOUT_NVML: typing.Final = (NVML, XID)


def run(
    settings: Settings,
    healths: collections.abc.Mapping[str, Health],
    xids: Log,
    gpus: tuple[Gpu, ...],
    busy: collections.abc.Collection[str] = (),
) -> list[Result]:
    """Make all quick checks of these GPUs; if a GPU's health is unknown, only the memory's size.

    Args:
        settings: the minimums for GPUs.
        healths: the health of each GPU whose vendor tells it, by the GPU's id.
        xids: the Xids in the kernel log.
        gpus: the GPUs.
        busy: ids of GPUs that a job uses.
    """
    results: list[Result] = []
    for gpu in gpus:
        if told := healths.get(gpu.uuid):
            case = Case(settings, gpu, told, xids, gpu.uuid in busy or bool(told.computing))
            results += [_result(row, case) for row in _ROWS]
        else:
            why = f"{registry.find(gpu.vendor).display}: health is known of NVIDIA's GPUs only"
            results.append(NVML.result(Outcome.SKIPPED, why, gpu=gpu.uuid))
            results.append(_result(_MEMORY_ROW, Case(settings, gpu, Health(), xids)))
    return results


def _result(row: _Row, case: Case) -> Result:
    failure, gpu = case.health.failure, case.gpu.uuid
    if failure and row.check not in _WITHOUT_NVML:
        return row.check.result(Outcome.NOT_RUN, f"nvml failed: {failure}", gpu=gpu)
    return row.check.told(row.judge(case), gpu, row.threshold)
