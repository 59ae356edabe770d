# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The health of a GPU as its driver reports it: frozen types only."""

import dataclasses


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
