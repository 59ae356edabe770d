# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The leases of runners: reserved before a runner is registered, over when its unit has ended."""

import collections.abc
import contextlib
import dataclasses
import math
import typing

from ci.runners import units
from ci.runners.decide import Claim, Want
from gpu_agent import device_rules, paths
from gpu_agent.runtime import policy as policies
from gpu_runtime import decision_log as journal
from gpu_runtime import lease_manager as manager
from gpu_runtime import lease_table as table
from gpu_runtime.decision_log import Decision
from gpu_runtime.grant import Grant
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import Waiter
from gpu_runtime.policy import Device, Policy
from gpu_runtime.refusal import Refused


@dataclasses.dataclass(frozen=True)
class Look:
    """The leases at one moment.

    Attributes:
        usable: the ids of the GPUs that runners may have, with or without a holder.
        free: the ids of those without a holder.
        held: the GPUs of each runner that has a lease, by the runner's name.
        others: the requests of other holders that wait.
    """

    usable: tuple[str, ...]
    free: tuple[str, ...]
    held: collections.abc.Mapping[str, tuple[str, ...]]
    others: tuple[Claim, ...]


@dataclasses.dataclass(frozen=True)
class Lease:
    """The lease of a runner that begins.

    Attributes:
        gpus: the ids of its GPUs; none for a runner without any.
        nodes: the device nodes that its unit may open.
        environment: the variables that name its jobs' GPUs.
    """

    gpus: tuple[str, ...]
    nodes: list[str]
    environment: collections.abc.Mapping[str, str]


class Leases:
    """The machine's leases, as runners have them.

    A process that has a waiting request keeps it in the queue by asking again.
    """

    def __init__(self, store: Store | None = None, host: Host | None = None) -> None:
        """Begin without a waiting request.

        Args:
            store: the store of leases; the machine's unless it is given.
            host: the processes of the machine.
        """
        self._store, self._host = store or Store(str(paths.STORE)), host or Host()
        self._waiter: Waiter | None = None
        self._wants: Want | tuple[str, ...] | None = None

    def look(self) -> Look:
        """Look at the leases, without a lock.

        Raises:
            OSError, ValueError, Refused: they cannot be read.
        """
        policy, found = _policy(), self._store.read()
        held = {
            units.name_of(name): tuple(holder.gpus)
            for name, holder in found.holders.items()
            if holder.kind == table.RUNNER
        }
        devices = policy.devices if policy else []
        out = policy.unavailable() if policy else {}
        usable = [device.id for device in devices if device.id not in out]
        exclusive = policy.exclusive if policy else True
        over = [
            name
            for name in found.blocking(usable, exclusive=exclusive)
            if not self._host.in_use(name, found.holders[name])
        ]
        me = self._host.me()
        waiting = [one for one in found.waiters if one.call != me and self._host.alive(one.call)]
        mine = {gpu for gpus in held.values() for gpu in gpus}
        free = found.free(usable, exclusive=exclusive, without=over)
        return Look(
            tuple(usable),
            # Where GPUs are shared, each still has one runner.
            tuple(gpu for gpu in free if exclusive or gpu not in mine),
            held,
            tuple(Claim(one.count, tuple(one.named)) for one in waiting),
        )

    def reserve(self, unit: units.Unit, wanted: tuple[str, ...] | Want, who: str) -> Lease | None:
        """Get the lease of a runner that will begin.

        Args:
            unit: the runner's.
            wanted: the ids of free GPUs, or a request that may have to wait for its turn.
            who: the runner's name for people.

        Returns:
            None if it waits now.

        Raises:
            OSError, ValueError, Refused: it cannot be granted.
        """
        if wanted == ():
            environment = {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}
            return Lease((), [], environment)
        policy = _policy()
        if policy is None:
            raise Refused("gpus-disabled", "this worker gives no GPU to runners now")
        if self._wants != wanted:
            self.leave()
        request, decision = manager.Request(unit.slice, "", unit.group), Decision(unit.slice)
        request.kind, request.who = table.RUNNER, who
        decision.kind, decision.who = "runner", table.readable(who)
        if isinstance(wanted, Want):
            decision.asked = wanted.count
            request.unfit = dict.fromkeys(wanted.unfit, "it is not what the job's labels name")
        else:
            decision.asked, request.named = len(wanted), [*wanted]
            decision.named = [*wanted]
        self._wants = wanted
        if self._waiter is None:
            self._waiter = Waiter(unit.slice, self._host.me(), 0, self._host.now())
        waiter = self._waiter
        waiter.container, waiter.who, waiter.named = unit.slice, decision.who, [*request.named]
        try:
            granted = manager.attempt(self._store, self._host, policy, waiter, request, decision)
        except Refused as refusal:
            decision.refuse(refusal)
            decision.write(str(paths.LOG))
            self.leave()
            raise
        if granted is None:
            return None
        self._waiter = self._wants = None
        decision.write(str(paths.LOG))
        journal.intruders(str(paths.LOG), self._host.intruders, granted.ids)
        self._host.intruders.clear()
        return self._lease(unit, policy, granted)

    def leave(self) -> None:
        """Wait for nothing."""
        waiter, self._waiter, self._wants = self._waiter, None, None
        if waiter:
            manager.leave(self._store, waiter)

    def begun(self, unit: units.Unit) -> None:
        """Note that the runner's unit runs: from now on its control group shows its use.

        Raises:
            OSError, ValueError, Refused: the leases cannot be changed.
        """
        with self._store as leased:
            if holder := leased.holders.get(unit.slice):
                holder.execs, holder.calls = True, []

    def call(self, unit: units.Unit, who: str) -> None:
        """Note whose job the runner has, for people.

        Raises:
            OSError, ValueError, Refused: the leases cannot be changed.
        """
        with self._store as leased:
            if holder := leased.holders.get(unit.slice):
                holder.who = table.readable(who)

    def end(self, unit: units.Unit) -> bool:
        """End the lease of a runner whose unit has ended; whether it is over.

        What is left in its slice, such as containers of its job, is killed.

        Raises:
            OSError, ValueError, Refused: the leases cannot be read.
        """
        with self._store as leased:
            if holder := leased.holders.get(unit.slice):
                holder.execs, holder.calls = True, []
        return manager.give_back(self._store, self._host, unit.slice, force=True)

    def _lease(self, unit: units.Unit, policy: Policy, granted: Grant) -> Lease:
        """Return the lease; if the GPUs' nodes are gone, give it back."""
        try:
            devices = [one for one in policy.devices if one.id in granted.ids]
            environment = dict(granted.environment)
            if environment["NVIDIA_VISIBLE_DEVICES"] != "void":
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(granted.ids)
            return Lease(tuple(granted.ids), device_rules.nodes(devices), environment)
        except Refused:
            with contextlib.suppress(OSError, ValueError, Refused):
                self.end(unit)
            raise


def _policy() -> Policy | None:
    """Return the policy with whole GPUs only: device rules cannot separate parts.

    Raises:
        Refused: it cannot be read.
    """
    found = policies.allowed(table.RUNNER)
    if found is None:
        return None
    whole: list[Device] = [one for one in found.devices if one.id == one.gpu]
    found.devices = whole
    # How long a request waits is for the daemon to say, which looks at the service's queue.
    found.wait_timeout = typing.cast(int, math.inf)
    return found
