# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The calls by which hooks apply the parts of a plan that no CI system owns, and remove them."""

import collections.abc
import dataclasses

from gpu_agent.availability import external_use
from gpu_agent.engines import registry
from gpu_agent.engines.engine import EnginesPlan
from gpu_agent.gpu_run import service as gpu_run_service
from gpu_agent.health import service as health_service
from gpu_agent.model.keep import Keep
from gpu_agent.reporting.receipts import log as receipts
from gpu_agent.runtime import install, task_mounts
from gpu_agent.runtime.settings import Folder, GpuPlan, TaskFolders
from gpu_standalone import installation
from host import software
from host.nvidia_driver_reload import Reload
from lifecycle.drain import Drainer
from lifecycle.driver_upgrade.steps import Upgrade
from lifecycle.gpu_remediation import Gpus, Remediation
from lifecycle.remediation_record import RemediationRecord
from parts import gpu_run, health_watch
from parts.selftest import SELF_TEST
from plan.model import HostPlan, Plan
from plan.state import UnitState

Say = collections.abc.Callable[[str], None]
Remove = collections.abc.Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Equip:
    """Resume a driver upgrade that was interrupted, then install the host's software as planned.

    Attributes:
        end_reload: puts back what a reload of the driver took away; returns whether less is away.
        upgrade: the upgrade that is resumed.
        install: installs the software; returns whether anything changed.
    """

    end_reload: collections.abc.Callable[[], bool] = Reload().end
    upgrade: collections.abc.Callable[[Drainer], Upgrade] = Upgrade
    install: collections.abc.Callable[[HostPlan, Say], bool] = software.HERE.ensure

    def __call__(self, plan: HostPlan | Keep, drainer: Drainer, say: Say) -> bool:
        """Resume and install; Keep.AS_IS, as on a unit that is being removed, does neither.

        Returns:
            Whether anything changed.

        Raises:
            machine.packages.PackageError: a package can't be installed; the parts before it are.
            gpu_selftest.service.SelftestError: the upgraded driver can't be tested.
            gpu_agent.model.errors.UnknownError: the machine can't be looked at now.
        """
        if plan is Keep.AS_IS:
            return False
        # First, since an upgrade takes the services that run when it resumes for all that ran.
        settled = self.end_reload()
        settled |= self.upgrade(drainer).settle(say)
        return self.install(plan, say) or settled


def remedy(record: RemediationRecord, state: UnitState, wanted: Plan, say: Say) -> tuple[str, ...]:
    """Reset the GPUs that a reset may repair; return those that need a reboot of the machine."""
    return Remediation(record, Gpus()).ensure(state, wanted, say)


def _removals() -> dict[str, Remove]:
    return {
        "agent without Juju": installation.remove_timer,
        "health watch": health_service.remove,
        "gpu-run": gpu_run_service.remove,
        "engines": registry.remove,
        "self-test": SELF_TEST.remove,
        "runtime": install.remove,
        "receipts": receipts.remove,
        "host software": software.HERE.remove,
    }


@dataclasses.dataclass(frozen=True)
class Effects:
    """The calls by which a hook applies the parts of a plan; the defaults are the real ones.

    A test hands in calls that record their arguments.

    Attributes:
        remove: the call that takes a part away, by the part's name.
    """

    equip: collections.abc.Callable[[HostPlan | Keep, Drainer, Say], bool] = Equip()
    install_runtime: collections.abc.Callable[[GpuPlan], bool] = install.apply
    mount: collections.abc.Callable[
        [collections.abc.Sequence[Folder] | Keep, GpuPlan | Keep | None, str, TaskFolders], object
    ] = task_mounts.ensure
    record_unavailable: collections.abc.Callable[[external_use.Gpus], object] = external_use.ensure
    close: collections.abc.Callable[[external_use.Gpus], object] = external_use.close
    register_engines: collections.abc.Callable[[EnginesPlan | None], bool] = registry.ensure
    remedy: collections.abc.Callable[
        [RemediationRecord, UnitState, Plan, Say], tuple[str, ...]
    ] = remedy
    test: collections.abc.Callable[[UnitState, Plan, Say], UnitState] = SELF_TEST.ensure
    watch: collections.abc.Callable[[UnitState, Plan], object] = health_watch.ensure
    serve_gpu_run: collections.abc.Callable[[UnitState, Plan], object] = gpu_run.ensure
    remove: collections.abc.Mapping[str, Remove] = dataclasses.field(default_factory=_removals)
