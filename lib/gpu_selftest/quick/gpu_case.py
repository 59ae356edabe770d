# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Input of the checks of one GPU, and the remedies that they share. Without side effects."""

import dataclasses
import typing

from gpu_agent.gpu.vendors.nvidia.xid import Log
from gpu_agent.model.gpu_health import Health
from gpu_agent.model.inventory import Gpu
from gpu_selftest.check import Outcome, Said
from gpu_selftest.settings import Settings


@dataclasses.dataclass(frozen=True)
class Case:
    """One GPU and everything that is known about it.

    Attributes:
        settings: the minimums for GPUs.
        gpu: the GPU.
        health: NVML's data on it.
        log: the kernel log's Xids of all GPUs.
        busy: whether a job uses it, so that temperature and clock depend on that job.
    """

    settings: Settings
    gpu: Gpu
    health: Health
    log: Log
    busy: bool = False

    @property
    def again(self) -> str:
        """The command that returns the GPU to use after the repair."""
        return f"then `juju run {self.settings.unit} gpu-selftest`"

    @property
    def reboot(self) -> str:
        """The remedy if only a reboot helps."""
        return f"{self._rebooting}; {self.again}"

    @property
    def reset(self) -> str:
        """The remedy if a reset of the GPU is enough.

        By hand it is refused while the GPU health service has the GPU open.
        """
        return (
            f"{self._rebooting}; or have it reset when nothing uses the GPU: "
            f"`juju config {self.settings.application} gpu-recovery=reset`; {self.again}"
        )

    @property
    def _rebooting(self) -> str:
        return (
            f"Reboot the machine (`juju ssh {self.settings.unit} sudo reboot`; for a container, "
            "its host)"
        )

    @property
    def replace(self) -> str:
        """The remedy for a broken card."""
        return (
            f"Replace GPU {self.gpu.index} ({self.gpu.model}, {self.gpu.pci_address}); "
            f"{self.again}"
        )

    @property
    def cool(self) -> str:
        """The remedy for a hot GPU."""
        return (
            f"Check fans, air flow and dust of GPU {self.gpu.index}, and the room temperature; "
            f"{self.again}"
        )


NOT_TOLD: typing.Final = Said(Outcome.SKIPPED, "not reported by this GPU or its driver")
