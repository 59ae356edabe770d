# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check that the GPU runtime allocates GPUs rightly: to two tasks at once, and after a kill."""

import contextlib
import time
import typing

from gpu_agent import paths as wrapper
from gpu_agent.availability import lease_report as leases
from gpu_agent.model.leases import Lease
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import Holder
from gpu_runtime.policy import Policy
from gpu_selftest import gpu_reservation as reserve
from gpu_selftest.check import Check, Obstacle, Outcome, Result
from gpu_selftest.isolation import container_view as views
from gpu_selftest.isolation import escape_attempts as doors
from gpu_selftest.isolation.container_view import View
from gpu_selftest.isolation.containers import Container, ContainerError
from gpu_selftest.isolation.inspector import Inspector
from gpu_selftest.starvation_clock import StarvedError
from machine import polling as waiting
from machine import process
from machine import process_cleanup as leftovers

# The longest wait for a GPU that seems free, in seconds.
_PATIENCE: typing.Final = 10.0
# How much longer the creation of a container may take that gets a killed task's GPU, in seconds.
# More is not a failure, since a busy machine can take longer for each step.
_RECLAIM: typing.Final = 2.0

# A step that only SIGKILL ends. Its child is in a session of its own and outlives it.
_LEAVING: typing.Final = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    os.setsid()
    print("ready", flush=True)
time.sleep(600)
"""


class _NotNow(Exception):
    """The check can't run in the present state; the result says why."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.text)
        self.result = result


class Allocation:
    """Checks in which tasks take the GPU that the runtime chooses, as every CI task does."""

    def __init__(self, inspector: Inspector, allowed: Policy, proven: list[str]) -> None:
        """Do nothing yet. A failure on devices other than the `proven` ones proves nothing."""
        self._inspector = inspector
        self._allowed = allowed
        self._proven = proven

    def disjoint(self) -> Result:
        """Run two tasks at once.

        Raises:
            StarvedError: the machine has no time or room for them.
        """
        check, inspector = doors.DISJOINT, self._inspector
        given: list[str] = []
        seen: list[View] = []
        faults: list[str] = []
        try:
            with contextlib.ExitStack() as stack:
                self._only(stack, check, 2)
                for name in ("disjoint-0", "disjoint-1"):
                    container = inspector.create(name, doors.PLAIN, timeout=_PATIENCE)
                    seen.append(inspector.look(stack.enter_context(container)))
                    for device in self._given(check, container):
                        given.append(device)
                        gpu = inspector.owners[device]
                        faults += views.faults_with(seen[-1], inspector.nodes, gpu, device)
        except (ContainerError, StarvedError) as error:
            return self._not_made(check, 2, "no container for two tasks at once", error)
        except _NotNow as obstacle:
            return obstacle.result
        names = " and ".join(map(self._name, given))
        if len({*given}) != 2 or faults or views.share_mig_nodes(seen):
            said = "; ".join([f"they were given {names or 'nothing'}", *faults])
            return inspector.failed(check, f"two tasks at once share a GPU: {said}")
        return check.result(Outcome.PASSED, f"they were given {names}")

    def reclaim(self) -> Result:
        """Check that a sleeping step counts as use, kill it, and let the next task get its GPU.

        A start counts as use too, for gpu_runtime.holder_usage.STARTING seconds. It stops to count
        when a process was started in the container and the call that did so has ended. From then
        on only the step itself keeps the GPU, so that the check need not wait for a minute.

        Raises:
            StarvedError: the machine has no time or room for the containers.
        """
        check = doors.RECLAIM
        try:
            return self._reclaim(check)
        except (ContainerError, StarvedError) as error:
            return self._not_made(check, 1, "a killed task's GPU is lost", error)
        except _NotNow as obstacle:
            return obstacle.result

    def _reclaim(self, check: Check) -> Result:
        with contextlib.ExitStack() as stack:
            # The killed task's GPU is then the only one that a task can get.
            (wanted,) = self._only(stack, check, 1)
            first, usual = self._timed(stack, "reclaim-0")
            pid, holder = _begin_step(first)
            holder.calls = []
            if not Host().in_use(first.id, holder):
                text = "a running task counts as ended, and would lose its GPU to the next one"
                return self._inspector.failed(check, text)
            _kill_step(first, pid)
            second, took = self._timed(stack, "reclaim-1")
            given = self._given(check, second)
            left = not Host().is_gone(first.id, holder)
        if given != [wanted]:
            return check.result(Outcome.NOT_RUN, "another GPU became free meanwhile")
        longer = round(max(0.0, took - usual), 1)
        limit = f"at most {_RECLAIM:g} more than for a task without a killed one before it"
        if left:
            text = "a killed task's GPU is handed out with a process of that task still on it"
            return self._inspector.failed(check, text, value=longer, threshold=limit)
        if longer > _RECLAIM:
            text = f"{self._name(wanted)} was handed out again, {longer:g} s late"
            return check.result(Outcome.NOT_RUN, text, value=longer, threshold=limit)
        text = f"{self._name(wanted)} was handed out again"
        return check.result(Outcome.PASSED, text, value=longer, threshold=limit)

    def _given(self, check: Check, container: Container) -> list[str]:
        """Return the devices that the GPU runtime leased to the container.

        Raises:
            _NotNow: the leases can't be read.
        """
        lease = self._held(check).get(container.id)
        return [*lease.devices] if lease else []

    def _held(self, check: Check) -> dict[str, Lease]:
        """Return the lease of each container that has one.

        Raises:
            _NotNow: the leases can't be read.
        """
        held = leases.holders()
        if held is None:
            why = "the leases can't be read now: see the action gpu-leases"
            raise _NotNow(check.result(Outcome.NOT_RUN, why))
        return held

    def _timed(self, stack: contextlib.ExitStack, name: str) -> tuple[Container, float]:
        began = time.monotonic()
        container = self._inspector.create(name, doors.PLAIN, timeout=_PATIENCE)
        return stack.enter_context(container), time.monotonic() - began

    def _only(self, stack: contextlib.ExitStack, check: Check, count: int) -> list[str]:
        """Reserve all free devices but `count` proven ones, which are returned.

        Raises:
            _NotNow: there are fewer, or a job uses them.
        """
        free = self._free(check, count)
        wanted = [device for device in free if device in self._proven][:count]
        others = [device for device in free if device not in wanted]
        if others:
            held = reserve.alone(self._inspector.id(f"{check.id}-others"), others)
            if why := stack.enter_context(held):
                raise _NotNow(check.not_run(why))
        return wanted

    def _free(self, check: Check, needed: int) -> list[str]:
        """Return the devices that a task of the self-test can get now, in the runtime's order.

        Raises:
            _NotNow: fewer proven devices are free than needed, or the leases can't be read.
        """
        if not self._allowed.exclusive:
            why = "tasks share all GPUs (gpu-allocation=shared)"
            raise _NotNow(check.result(Outcome.SKIPPED, why))
        # A GPU that a self-test quarantined is available to the next one, or it could not return.
        unavailable = self._allowed.unavailable(self._inspector.id(check.id))
        usable = [device.id for device in self._allowed.devices if device.id not in unavailable]
        holders = {
            device: name
            for name, lease in self._held(check).items()
            for device in lease.devices
            # The other leases have ended: the next request gets their GPUs.
            if lease.occupied
        }
        free = [device for device in usable if device not in holders]
        if sum(device in self._proven for device in free) >= needed:
            return free
        held = [
            f"{self._name(device)} is in use by container {holders[device]}"
            for device in usable
            if device in holders
        ]
        if held:
            cause = f"{needed} free GPUs are needed" if needed > 1 else "a free GPU is needed"
            raise _NotNow(check.not_run(Obstacle(f"{cause}: {', '.join(held)}", cause)))
        count = sum(device in self._proven for device in usable)
        why = f"needs {needed} healthy GPUs, and there {'is' if count == 1 else 'are'} {count}"
        raise _NotNow(check.result(Outcome.SKIPPED, why))

    def _not_made(
        self, check: Check, needed: int, why: str, error: ContainerError | StarvedError
    ) -> Result:
        """Return the result if a task got no GPU: a job may have been faster, or starved it.

        Raises:
            StarvedError: it was not seen that the GPU runtime refused the GPU.
        """
        try:
            self._free(check, needed)
        except _NotNow as obstacle:
            return obstacle.result
        if isinstance(error, StarvedError) and not self._is_passed_over(check):
            raise error
        return self._inspector.failed(check, f"{why}: {error}")

    def _is_passed_over(self, check: Check) -> bool:
        """Return whether the GPU runtime looked for a GPU for a task of this check, in vain.

        It has, if only these tasks are in its queue. If others wait too, it may be their turn. A
        holder that can't be killed now has to be waited for.
        """
        table = Store(str(wrapper.STORE)).read()
        ours = {self._inspector.id(f"{check.id}-{place}") for place in (0, 1)}
        waiting = {waiter.container for waiter in table.waiters if waiter.count}
        stuck = any(holder.stuck for holder in table.holders.values())
        return bool(waiting) and waiting <= ours and not stuck

    def _name(self, device: str) -> str:
        gpu = self._inspector.owners[device]
        return f"GPU {gpu.index}" + ("" if gpu.uuid == device else f" ({device})")


def _begin_step(container: Container) -> tuple[int, Holder]:
    """Start a step that leaves a child; return its process and its lease at that time."""
    pid = container.begin([wrapper.PYTHON, "-I", "-S", "-c", _LEAVING])
    if not waiting.until(container.output("task").read_text, _PATIENCE, every=0.01):
        raise StarvedError(f"the step of {container.id} does not start")
    holder = Store(str(wrapper.STORE)).read().holders.get(container.id)
    if holder is None:
        raise ContainerError(f"container {container.id} runs without a lease")
    return pid, holder


def _kill_step(container: Container, pid: int) -> None:
    leftovers.end_processes([pid], grace=0)
    if process.wait(pid, _PATIENCE) is None:
        raise StarvedError(f"the killed step of {container.id} does not end")
