# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Root's part of gpu-run, one process for each connection: stdin is it. See door.py."""

import collections.abc
import json
import os
import resource
import secrets
import signal
import socket
import typing

from gpu_agent import paths as wrapper
from gpu_agent.availability import lease_report as leases
from gpu_agent.gpu_run import scope as room
from gpu_agent.gpu_run.caller import Caller, GoneError
from gpu_agent.gpu_run.request import BadRequestError, Request
from gpu_agent.gpu_run.scope import RoomError
from gpu_agent.runtime import policy
from gpu_runtime import cgroups as groups
from gpu_runtime import decision_log as journal
from gpu_runtime import lease_manager as broker
from gpu_runtime import lease_table as table
from gpu_runtime.decision_log import Decision
from gpu_runtime.grant import Grant
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.policy import Policy
from gpu_runtime.queue_messages import Place
from gpu_runtime.queue_messages import gpus as counted
from gpu_runtime.refusal import Refused, duration, fault
from machine import process

# In bytes: a guard, many times what it takes.
_MEMORY: typing.Final = 256 << 20
# In seconds: after so long without a look at the GPUs, of which it has two a second while it
# waits, the kernel ends this process.
_STUCK: typing.Final = 120
_OPEN: typing.Final = (
    "this machine keeps no device from a command, as in a container: leave all but those alone "
    "that CUDA_VISIBLE_DEVICES names"
)
_REFUSALS: typing.Final = (
    BadRequestError, Refused, RoomError, leases.LeaseError, process.CommandError,
)  # fmt: skip
_EXPIRED: typing.Final = "this job waited "  # as gpu_runtime.queue_messages begins it


def main() -> None:
    """Serve the connection on stdin."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    signal.alarm(_STUCK)
    connection = socket.socket(fileno=os.dup(0))
    try:
        caller = Caller(connection)
        try:
            asked = caller.ask()
            caller.tell(_listing() if asked.listing else Run(caller, asked).done())
        except _REFUSALS as error:
            caller.tell({"event": "refused", "text": str(error)})
        except (OSError, ValueError) as error:
            said = fault(error)
            caller.tell({"event": "refused", "text": f"this worker gives no GPU now: {said}"})
            raise
    except GoneError:
        pass


class Run:
    """One command that is to have GPUs.

    Args:
        caller: whose process is to become it.
        asked: how it is to be.
    """

    def __init__(self, caller: Caller, asked: Request) -> None:
        self._caller, self._asked = caller, asked
        self._store, self._host = Store(str(wrapper.STORE)), Host()
        self._unit = f"gpu-run-{secrets.token_hex(6)}.scope"
        self._who = table.readable(f"gpu-run of {caller.user}: {asked.command}".rstrip())
        self._said = ""

    def done(self) -> dict[str, object]:
        """Wait for the GPUs and put the caller where it has them; what it is told then.

        Raises:
            GoneError: it wants no more; nobody has a lease then.
            Refused: there are none for it.
            BadRequestError: it is where it can have none.
            RoomError: it can't be put there.
            OSError, ValueError: the leases can't be used.
        """
        allowed = next(self._policies())
        self._caller.check_place()
        self._check_has_none()
        named = [*dict.fromkeys(_named(allowed, name) for name in self._asked.named)]
        decision, granted = Decision(self._unit), None
        decision.kind = "gpu-run"
        try:
            granted = self._acquire(named, decision)
            journal.intruders(str(wrapper.LOG), self._host.intruders, granted.ids)
            return self._enter(granted, decision)
        except (Refused, RoomError) as error:
            decision.reason, decision.granted = str(error), []
            if str(error).startswith(_EXPIRED):
                return {"event": "refused", "text": str(error), "expired": True}
            raise
        except GoneError:
            decision.reason = "its caller has ended"
            raise
        finally:
            decision.write(str(wrapper.LOG))

    def _check_has_none(self) -> None:
        """See that it is in no lease's control group, to leave that with what it has open."""
        own = self._caller.groups()
        holders = self._store.read().holders.values()
        held = [path for one in holders for path in (one.cgroup, one.unified) if path]
        if any(groups.is_below(path, one) for path in own for one in held):
            raise BadRequestError(
                "this has GPUs by a lease already: ask for all that it needs at once"
            )

    def _acquire(self, named: list[str], decision: Decision) -> Grant:
        """Have a lease; where fewer will do, of as many as are free now."""
        asked = self._asked
        if asked.any:
            usable = len(next(self._policies()).devices)
            for count in range(min(asked.gpus or usable, usable), 1, -1):
                decision.asked = count
                try:
                    return broker.acquire(
                        self._store, self._host, self._policies(0), self._request(named), decision
                    )
                except Refused:
                    continue
        decision.asked = 1 if asked.any else len(named) or asked.gpus
        request, policies = self._request(named), self._policies()
        return broker.acquire(
            self._store, self._host, policies, request, decision, told=self._wait
        )

    def _request(self, named: list[str]) -> broker.Request:
        request = broker.Request(self._unit, "", room.group(self._unit))
        request.kind, request.who, request.named = table.JOB, self._who, named
        return request

    def _policies(self, timeout: int | None = None) -> collections.abc.Iterator[Policy]:
        """What may be had at each look: whole GPUs, for no rule on devices tells parts apart."""
        limit = self._asked.timeout if timeout is None else timeout
        while True:
            signal.alarm(_STUCK)
            allowed = policy.allowed(table.JOB)
            if allowed is None:
                raise Refused("nobody gets a GPU on this worker now: `juju status` tells why")
            allowed.devices = [one for one in allowed.devices if one.id == one.gpu]
            if not allowed.devices:
                raise Refused(
                    "the GPUs of this worker are divided into MIG devices, which gpu-run can't "
                    "keep apart: have a task of Concourse's, or a container, use them"
                )
            if limit is not None:
                allowed.wait_timeout = limit
            yield allowed

    def _wait(self, place: Place) -> None:
        """Tell where it stands, where that is news."""
        self._caller.check()
        count = len(self._asked.named) or self._asked.gpus
        wanted = "all GPUs" if count is None else counted(1 if self._asked.any else count)
        # The minutes alone are none.
        news = f"{place.number} {[(one.name, one.device.id) for one in place.held]}"
        if news != self._said:
            self._said = news
            text = f"waiting for {wanted}: {place.words}"
            self._caller.tell({"event": "waiting", "text": text, "place": place.number})

    def _enter(self, granted: Grant, decision: Decision) -> dict[str, object]:
        """Put the caller where it has these GPUs; where that fails, give them back.

        Raises:
            BadRequestError, Refused, GoneError, RoomError, OSError, ValueError: it failed.
        """
        entered = False
        try:
            allowed = next(self._policies()).devices
            devices = [one for one in allowed if one.id in granted.ids]
            if len(devices) < len(granted.ids):
                raise Refused("the GPUs of this worker have changed just now: run it again")
            confined = room.enter(
                self._unit, self._caller, devices, self._who, self._check_has_none
            )
            entered = True
        finally:
            with self._store as leased:
                if holder := leased.holders.get(self._unit):
                    # From now on its control group tells.
                    holder.execs, holder.calls = True, []
            if not entered:
                broker.give_back(self._store, self._host, self._unit)
        decision.reason = "" if confined else "not confined"
        seconds = decision.waited_ms / 1000
        told = _granted(granted, seconds if self._said else 0, confined=confined)
        return told | {"unit": self._unit, "confined": confined, "waited_seconds": seconds}


def _named(allowed: Policy, name: str) -> str:
    """The id of the GPU that somebody means by an index or a UUID."""
    for device in allowed.devices:
        if name.lower() in (str(device.index), f"gpu-{device.index}", device.id.lower()):
            return device.id
    there = ", ".join(f"{device.index} ({device.id})" for device in allowed.devices)
    raise Refused(f"there is no GPU {name!r} for gpu-run here; there is {there}")


def _granted(granted: Grant, waited: float, *, confined: bool) -> dict[str, object]:
    """What the command is told of its GPUs.

    Args:
        granted: what it got.
        waited: for how long it was told to wait, in seconds; 0: it was not.
        confined: whether the others are kept from it.
    """
    environment, gpus = granted.environment, json.loads(granted.environment["GPU_CI_DEVICES"])
    # The others' words for GPUs have no such variable that is to be relied on.
    if environment["NVIDIA_VISIBLE_DEVICES"] != "void":
        environment = {**environment, "CUDA_VISIBLE_DEVICES": ",".join(granted.ids)}
    has = ", ".join(f"GPU {one['index']}" for one in gpus)
    words = [f"has {has} after {duration(waited)}"] if waited else []
    text = "; ".join(words if confined else [*words, _OPEN])
    return {"event": "granted", "text": text, "environment": environment, "gpus": gpus}


def _listing() -> dict[str, object]:
    lines = [f"{name}: {words}" for name, words in leases.report().items()]
    return {"event": "list", "text": "\n".join(lines), "json": json.loads(leases.as_json())}


if __name__ == "__main__":
    main()
