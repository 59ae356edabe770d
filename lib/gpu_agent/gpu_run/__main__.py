# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The part of gpu-run that runs as root: one process per connection, on stdin. See door.py."""

import collections.abc
import json
import os
import resource
import secrets
import signal
import socket
import typing

from gpu_agent import paths
from gpu_agent.availability import lease_report as leases
from gpu_agent.gpu_run import scope
from gpu_agent.gpu_run.caller import Caller, GoneError
from gpu_agent.gpu_run.request import Request, refused
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
from gpu_runtime.refusal import Refused, duration, failed, fault
from machine import process

# In bytes: a safety limit, many times the usual use.
_MEMORY: typing.Final = 256 << 20
# In seconds: the kernel ends this process after this time without a look at the GPUs. A waiting
# process looks twice a second.
_STUCK: typing.Final = 120
_OPEN: typing.Final = (
    "this machine cannot block its other GPUs, as in a container. Use only the GPUs in "
    "CUDA_VISIBLE_DEVICES"
)


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
        except Refused as refusal:
            caller.tell(refused(refusal))
        except (leases.LeaseError, process.CommandError) as error:
            caller.tell(refused(Refused("worker-fault", str(error))))
        except (OSError, ValueError) as error:
            noun = table.NOUNS[table.JOB]
            text = f"{failed(noun)}: {fault(error, noun)}"
            caller.tell(refused(Refused("worker-fault", text)))
            raise
    except GoneError:
        pass


class Run:
    """One request for GPUs for a command.

    Args:
        caller: the process that will become the command.
        asked: the request.
    """

    def __init__(self, caller: Caller, asked: Request) -> None:
        self._caller, self._asked = caller, asked
        self._store, self._host = Store(str(paths.STORE)), Host()
        self._unit = f"gpu-run-{secrets.token_hex(6)}.scope"
        self._who = table.readable(f"gpu-run of {caller.user}: {asked.command}".rstrip())
        self._said = ""

    def done(self) -> dict[str, object]:
        """Wait for the GPUs, move the caller into its scope, and return the answer.

        Raises:
            GoneError: the caller has ended; then there is no lease.
            Refused: the request cannot be granted.
            OSError, ValueError: the leases cannot be read.
        """
        allowed = next(self._policies())
        self._caller.check_place()
        self._check_has_none()
        named = [*dict.fromkeys(_named(allowed, name) for name in self._asked.named)]
        decision, granted = Decision(self._unit), None
        decision.kind, decision.who, decision.named = "gpu-run", self._who, named
        try:
            granted = self._acquire(named, decision)
            journal.intruders(str(paths.LOG), self._host.intruders, granted.ids)
            return self._enter(granted, decision)
        except Refused as refusal:
            decision.refuse(refusal)
            raise
        except GoneError:
            decision.refuse(
                Refused("caller-gone", "the process that requested the GPUs has ended")
            )
            raise
        finally:
            decision.write(str(paths.LOG))

    def _check_has_none(self) -> None:
        """Check that the caller is not in a lease's control group, with devices open."""
        own = self._caller.groups()
        holders = self._store.read().holders.values()
        held = [path for one in holders for path in (one.cgroup, one.unified) if path]
        if any(groups.is_below(path, one) for path in own for one in held):
            raise Refused(
                "gpu-run-nested",
                "this process already has GPUs from gpu-run. Request all GPUs at once",
            )

    def _acquire(self, named: list[str], decision: Decision) -> Grant:
        """Get a lease; with --any, of as many GPUs as are free now."""
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
        request = broker.Request(self._unit, "", scope.group(self._unit))
        request.kind, request.who, request.named = table.JOB, self._who, named
        return request

    def _policies(self, timeout: int | None = None) -> collections.abc.Iterator[Policy]:
        """Yield the current policy with whole GPUs only: device rules cannot separate parts."""
        limit = self._asked.timeout if timeout is None else timeout
        while True:
            signal.alarm(_STUCK)
            allowed = policy.allowed(table.JOB)
            if allowed is None:
                raise Refused(
                    "gpus-disabled",
                    "this worker gives no GPU to gpu-run now. `juju status` or `gpu-ci-agent "
                    "start` shows why",
                )
            allowed.devices = [one for one in allowed.devices if one.id == one.gpu]
            if not allowed.devices:
                raise Refused(
                    "gpu-divided",
                    "the GPUs of this worker are divided into MIG devices, which gpu-run cannot "
                    "keep apart. Use a CI task or a container instead",
                )
            if limit is not None:
                allowed.wait_timeout = limit
            yield allowed

    def _wait(self, place: Place) -> None:
        """Send the caller its position, if that has changed."""
        self._caller.check()
        count = len(self._asked.named) or self._asked.gpus
        wanted = "all GPUs" if count is None else counted(1 if self._asked.any else count)
        # A change of the minutes alone is not news.
        news = f"{place.number} {[(one.name, one.device.id) for one in place.held]}"
        if news != self._said:
            self._said = news
            text = f"waiting for {wanted}: {place.words}"
            self._caller.tell({"event": "waiting", "text": text, "place": place.number})

    def _enter(self, granted: Grant, decision: Decision) -> dict[str, object]:
        """Move the caller into its scope with these GPUs; if that fails, give them back.

        Raises:
            Refused, GoneError, OSError, ValueError: it failed.
        """
        entered = False
        try:
            allowed = next(self._policies()).devices
            devices = [one for one in allowed if one.id in granted.ids]
            if len(devices) < len(granted.ids):
                raise Refused(
                    "gpus-changed",
                    "the GPUs of this worker changed during this request. Run the command again",
                )
            confined = scope.enter(
                self._unit, self._caller, devices, self._who, self._check_has_none
            )
            entered = True
        finally:
            with self._store as leased:
                if holder := leased.holders.get(self._unit):
                    # From now on its control group shows whether it lives.
                    holder.execs, holder.calls = True, []
            if not entered:
                broker.give_back(self._store, self._host, self._unit)
        if not confined:
            decision.code = "not-confined"
            decision.reason = "this machine can't keep its other GPUs from the command"
        seconds = decision.waited_ms / 1000
        told = _granted(granted, seconds if self._said else 0, confined=confined)
        return told | {"unit": self._unit, "confined": confined, "waited_seconds": seconds}


def _named(allowed: Policy, name: str) -> str:
    """Return the id of the GPU with this index or UUID."""
    for device in allowed.devices:
        if name.lower() in (str(device.index), f"gpu-{device.index}", device.id.lower()):
            return device.id
    there = ", ".join(f"{device.index} ({device.id})" for device in allowed.devices)
    raise Refused("gpu-not-offered", f"gpu-run does not offer GPU {name!r}. Offered: {there}")


def _granted(granted: Grant, waited: float, *, confined: bool) -> dict[str, object]:
    """Make the answer to a granted request.

    Args:
        granted: the grant.
        waited: how long the request waited, in seconds; 0: no wait was reported.
        confined: whether the other GPUs are blocked.
    """
    environment, gpus = granted.environment, json.loads(granted.environment["GPU_CI_DEVICES"])
    # The libraries of other vendors have no such variable that is reliable.
    if environment["NVIDIA_VISIBLE_DEVICES"] != "void":
        environment = {**environment, "CUDA_VISIBLE_DEVICES": ",".join(granted.ids)}
    has = ", ".join(f"GPU {one['index']}" for one in gpus)
    words = [f"got {has} after {duration(waited)}"] if waited else []
    text = "; ".join(words if confined else [*words, _OPEN])
    return {"event": "granted", "text": text, "environment": environment, "gpus": gpus}


def _listing() -> dict[str, object]:
    lines = [f"{name}: {words}" for name, words in leases.report().items()]
    return {"event": "list", "text": "\n".join(lines), "json": json.loads(leases.as_json())}


if __name__ == "__main__":
    main()
