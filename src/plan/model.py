# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The plan of a unit, and its part about the host: frozen types only."""

import dataclasses

from gpu_agent.engines import engine
from gpu_agent.model import keep
from gpu_agent.runtime import settings as runtime_settings
from plan.ci_plan import CiPlan, WaitLimit
from plan.gpu_offers import GpuOffer
from plan.gpus import Choice, Unusable
from plan.messages import Line


@dataclasses.dataclass(frozen=True)
class DriverPlan:
    """Which of NVIDIA's drivers to have, by packages of the distribution.

    Attributes:
        branch: such as `580-server`; empty: the one recommended for this GPU, or on a machine that
            has one of ours, that.
        userspace: in a container, the exact version that the libraries must have, such as
            `580.65.06`; empty on a machine.
        fabric_manager: the GPUs need it.
    """

    branch: str = ""
    userspace: str = ""
    fabric_manager: bool = False


@dataclasses.dataclass(frozen=True)
class ToolkitPlan:
    """Which container toolkit of NVIDIA's to have, and from where.

    Attributes:
        version: of all its packages, such as `1.20.0-1`.
        mirror: base URL of its repository, without a slash at its end.
        key: the repository's public key, ASCII-armoured; empty: it is fetched from there, and
            taken only if it has the fingerprint that NVIDIA's is known by.
    """

    version: str
    mirror: str
    key: str = ""


@dataclasses.dataclass(frozen=True)
class HostPlan:
    """The host's software for the GPUs. None: given up; Keep: unchanged.

    Software that is given up loses its sources, pins and holds. Its packages stay until the unit
    is removed.

    Attributes:
        settings: whether the kernel's limits and services are set for GPU work.
        nvidia: whether those are among them that NVIDIA's driver has.
    """

    driver: DriverPlan | keep.Keep | None = None
    toolkit: ToolkitPlan | keep.Keep | None = None
    settings: bool = False
    nvidia: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of this unit. A part that is None is removed; Keep means unchanged.

    Attributes:
        problems: what keeps the GPUs or the options from their work.
        choice: the GPUs that gpu-device-ids allows here.
        unusable: UUIDs of the GPUs of tasks that tasks cannot use now, each with the reason.
        closed: UUIDs of the GPUs that no request gets, since the unit is drained or paused.
        reboot: the installed driver needs a reboot, and the charm may make it.
        offer: this unit's GPUs for other units; None: unchanged.
        longest_wait: the limit of gpu-wait-timeout.
        engines: which engines' containers can have GPUs.
    """

    problems: tuple[Line, ...]
    gpu: runtime_settings.GpuPlan | keep.Keep | None
    ci: CiPlan = CiPlan()
    choice: Choice = Choice()
    unusable: Unusable = ()
    closed: Unusable = ()
    host: HostPlan | keep.Keep = keep.Keep.AS_IS
    reboot: bool = False
    offer: GpuOffer | None = None
    longest_wait: WaitLimit = WaitLimit()
    engines: engine.EnginesPlan | keep.Keep | None = None
