# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the checks of a GPU are given and give, and what an operator does about one. Pure."""

import dataclasses
import typing

from gpu_agent.gpu.vendors.nvidia.nvml_health import Health
from gpu_agent.gpu.vendors.nvidia.xid import Log
from gpu_agent.model.inventory import Gpu
from gpu_selftest.check import Outcome, Said
from gpu_selftest.settings import Settings


@dataclasses.dataclass(frozen=True)
class Case:
    """One GPU and all that is known of it.

    Attributes:
        settings: what is asked of GPUs.
        gpu: which one.
        health: what NVML says of it.
        log: what the kernel's log says of all.
        busy: whether a job has it, so that its heat and its clock are that job's.
    """

    settings: Settings
    gpu: Gpu
    health: Health
    log: Log
    busy: bool = False

    @property
    def again(self) -> str:
        """How the GPU comes back once it is mended."""
        return f"then `juju run {self.settings.unit} gpu-selftest`"

    @property
    def reboot(self) -> str:
        """What to do where only a new start of the machine helps."""
        return f"{self._rebooting}; {self.again}"

    @property
    def reset(self) -> str:
        """What to do where a new start of the GPU is enough."""
        return (
            f"{self._rebooting}; or, while nothing uses the GPU, reset it: "
            f"`sudo nvidia-smi --gpu-reset -i {self.gpu.uuid}`; {self.again}"
        )

    @property
    def _rebooting(self) -> str:
        return (
            f"Reboot the machine (`juju ssh {self.settings.unit} sudo reboot`; where that is a "
            "container, its host)"
        )

    @property
    def replace(self) -> str:
        """What to do about a card that does not mend."""
        return (
            f"Have GPU {self.gpu.index} replaced ({self.gpu.model}, {self.gpu.pci_address}); "
            f"{self.again}"
        )

    @property
    def cool(self) -> str:
        """What to do about a hot GPU."""
        return (
            f"Look at fans, air flow and dust of GPU {self.gpu.index}, and at the room's "
            f"temperature; {self.again}"
        )


NOT_TOLD: typing.Final = Said(Outcome.SKIPPED, "not told by this GPU or its driver")
