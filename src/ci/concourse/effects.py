# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The calls by which hooks apply the parts of Concourse's plan, and remove them."""

import collections.abc
import dataclasses

from ci.concourse import release
from ci.concourse.api import worker_view
from ci.concourse.plan.model import WebPlan, WorkerPlan
from ci.concourse.web import local_postgresql, web
from ci.concourse.web.local_postgresql import LocalDatabase
from ci.concourse.worker import container_network, launcher, worker
from ci.concourse.worker.keys import WorkerKeys
from ci.system import Remove, Say
from relations.model import WebSecrets


def _removals() -> dict[str, Remove]:
    return {
        "worker": worker.remove,
        "launcher": launcher.remove,
        "web": web.remove,
        "database": local_postgresql.HERE.remove,
        "release": release.remove,
        "network": container_network.remove,
    }


@dataclasses.dataclass(frozen=True)
class Effects:
    """The calls by which a hook applies the parts of Concourse's plan.

    The defaults are the real ones. A test hands in calls that record their arguments.

    Attributes:
        remove: the call that takes a part away, by the part's name.
    """

    new_secrets: collections.abc.Callable[[], WebSecrets] = web.new_secrets
    authorize: collections.abc.Callable[[collections.abc.Iterable[str]], object] = web.authorize
    prune: collections.abc.Callable[[frozenset[str]], frozenset[str]] = worker_view.prune
    install_launcher: collections.abc.Callable[[], object] = launcher.ensure
    forward: collections.abc.Callable[[], object] = container_network.ensure
    apply_web: collections.abc.Callable[[WebPlan, LocalDatabase, Say], object] = web.apply
    apply_worker: collections.abc.Callable[[WorkerPlan, WorkerKeys, Say], object] = worker.apply
    retire_worker: collections.abc.Callable[[float, Say], object] = worker.retire
    set_database_aside: collections.abc.Callable[[str], object] = local_postgresql.HERE.set_aside
    remove: collections.abc.Mapping[str, Remove] = dataclasses.field(default_factory=_removals)
