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
from host import nvidia_driver, software
from lifecycle.drain import Drainer
from lifecycle.driver_upgrade import steps as driver_upgrade
from parts import gpu_run, health_watch, selftest
from plan.model import HostPlan, Plan
from plan.state import UnitState

Say = collections.abc.Callable[[str], None]
Remove = collections.abc.Callable[[], object]


def equip(plan: HostPlan | Keep, drainer: Drainer, say: Say) -> bool:
    """Resume a driver upgrade that was interrupted, then install the host's software as planned.

    Keep.AS_IS, as on a unit that is being removed, resumes nothing.

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
    settled = nvidia_driver.end_reload()
    settled |= driver_upgrade.settle(drainer, say)
    return software.ensure(plan, say) or settled


def _removals() -> dict[str, Remove]:
    return {
        "health watch": health_service.remove,
        "gpu-run": gpu_run_service.remove,
        "engines": registry.remove,
        "self-test": selftest.remove,
        "runtime": install.remove,
        "receipts": receipts.remove,
        "host software": software.remove,
    }


@dataclasses.dataclass(frozen=True)
class Effects:
    """The calls by which a hook applies the parts of a plan; the defaults are the real ones.

    The charm hands them to the reconciler. A test hands in calls that record their arguments.

    Attributes:
        remove: the call that takes a part away, by the part's name.
    """

    equip: collections.abc.Callable[[HostPlan | Keep, Drainer, Say], bool] = equip
    install_runtime: collections.abc.Callable[[GpuPlan], bool] = install.apply
    mount: collections.abc.Callable[
        [collections.abc.Sequence[Folder] | Keep, GpuPlan | Keep | None, str, TaskFolders], object
    ] = task_mounts.ensure
    record_unavailable: collections.abc.Callable[[external_use.Gpus], object] = external_use.ensure
    close: collections.abc.Callable[[external_use.Gpus], object] = external_use.close
    register_engines: collections.abc.Callable[[EnginesPlan | None], bool] = registry.ensure
    test: collections.abc.Callable[[UnitState, Plan, Say], UnitState] = selftest.ensure
    watch: collections.abc.Callable[[UnitState, Plan], object] = health_watch.ensure
    serve_gpu_run: collections.abc.Callable[[UnitState, Plan], object] = gpu_run.ensure
    remove: collections.abc.Mapping[str, Remove] = dataclasses.field(default_factory=_removals)
