# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A GPU that the GPU health service checks, and its figures at one poll: frozen types only."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Card:
    """One GPU that the GPU health service checks.

    Attributes:
        uuid: the GPU's id, as in gpu_agent.model.inventory.Gpu.
        index: its index, as in `GPU 1`.
        pci_address: such as `0000:01:00.0`.
        model: without the vendor's name, such as `A100-SXM4-80GB`.
        devices: the ids that tasks get: its own, or those of its MIG devices.
    """

    uuid: str
    index: int
    pci_address: str
    model: str
    devices: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Figures:
    """One GPU at one poll; None: the GPU or its driver does not report the value.

    Attributes:
        failure: the driver's error if the GPU does not answer; all other values are then None.
        busy: share of the last sampling period in which a compute kernel ran, in percent.
        memory_used_mib: allocated memory without the driver's reserve.
        memory_total_mib: total memory.
        power_w: power draw in watts.
        power_limit_w: power limit in watts.
        energy_j: energy used since the driver was loaded, in joules.
        temperature: in °C.
        sm_clock_mhz: clock of the streaming multiprocessors.
        reasons: reasons for a lower clock, as bits (nvml.h, nvmlClocksThrottleReasons).
        ecc_corrected: errors that ECC corrected since the driver was loaded.
        ecc_uncorrected: errors that ECC could not correct since the driver was loaded.
        remap_pending: memory rows are remapped at the next reset.
        remap_failed: a row could not be remapped.
        recovery_action: the recovery that the driver asks for
            (gpu_agent.model.gpu_health.Health has the numbers).
        pids: the processes that compute on it, as numbered in this machine's /proc.
        drawing: number of processes that draw on it, such as display servers.
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
