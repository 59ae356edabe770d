# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A GPU that the health watch looks after, and its figures at one look: frozen types only."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Card:
    """One GPU that the watch is to look after.

    Attributes:
        uuid: the GPU's id, as in gpu_agent.model.inventory.Gpu.
        index: the number that people know it by.
        pci_address: such as `0000:01:00.0`.
        model: without the vendor's name, such as `A100-SXM4-80GB`.
        devices: ids of what tasks get of it: its own, or those of its MIG devices.
    """

    uuid: str
    index: int
    pci_address: str
    model: str
    devices: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Figures:
    """One GPU at one look. None stands for what this GPU or its driver does not tell.

    Attributes:
        failure: the driver's words where the GPU does not answer at all; the rest is then None.
        busy: how much of the last sampling period a kernel ran, in %.
        memory_used_mib: without the driver's reserve.
        memory_total_mib: all of it.
        power_w: what it draws.
        power_limit_w: what it may draw.
        energy_j: what it has drawn since its driver was loaded.
        temperature: in °C.
        sm_clock_mhz: of the processors.
        reasons: for a lower clock, as bits (nvml.h, nvmlClocksThrottleReasons).
        ecc_corrected: since the driver was loaded.
        ecc_uncorrected: the same of those that ECC could not correct.
        remap_pending: memory rows wait for a reset to be remapped.
        remap_failed: a row could not be remapped.
        recovery_action: what the driver asks for (gpu_agent.gpu.vendors.nvidia.nvml_health.Health
            has the numbers).
        pids: of the processes that compute on it, as this machine's /proc numbers them.
        drawing: how many processes draw on it, as display servers do; their memory is theirs.
    """

    failure: str = ""
    busy: int | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    temperature: int | None = None
    sm_clock_mhz: int | None = None
    reasons: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None
    pids: tuple[int, ...] | None = None
    drawing: int | None = None
