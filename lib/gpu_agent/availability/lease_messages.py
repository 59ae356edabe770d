# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What is seen of leases at one moment: in words for people, as values for programs. Pure."""

import collections.abc
import dataclasses
import re

from gpu_runtime.lease_table import STEP
from gpu_runtime.refusal import duration

# Of the many that may share a GPU, so many are named to people.
_NAMED = 3
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclasses.dataclass(frozen=True)
class Container:
    """One container or job with a lease.

    Attributes:
        kind: `step`, `container` of an engine, or `job`.
        who: it as its engine has it; a step by its container's id.
        gpus: ids of its devices.
        steps: exec ids of what runs in it: `task`, or a UUID for a hijacked session; `self-test`
            for the worker's own.
        in_use: whether it uses its GPUs; if not, the next task takes them from it.
        handing_over: whether it has ended, and its GPUs go to another one after a look at who has
            them open.
        stuck: whether that was tried, but what it left can't be killed.
        seconds: how long it has had them; None if that is not known.
    """

    kind: str
    who: str
    gpus: list[str]
    steps: list[str]
    in_use: bool
    handing_over: bool
    stuck: bool
    seconds: int | None

    @property
    def words(self) -> str:
        """Which it is, what runs in it and since when."""
        steps = ["hijacked session" if _UUID.fullmatch(step) else step for step in self.steps]
        if not self.in_use:
            steps = ["ended, but can't be killed" if self.stuck else "no longer used"]
            steps = ["ended"] if self.handing_over else steps
        age = [] if self.seconds is None else [duration(self.seconds)]
        if self.kind == STEP or not self.in_use:
            age.insert(0, " and ".join(dict.fromkeys(steps)) or "starting")
        return f"{self.who} ({', '.join(age)})" if age else self.who


@dataclasses.dataclass(frozen=True)
class Device:
    """One GPU or MIG device, under the key that people know it by, such as `gpu-0`.

    One that is held although no task may get it any more has no index.
    """

    key: str
    index: int | None
    id: str
    gpu: str
    model: str
    state: str
    containers: list[str]


@dataclasses.dataclass(frozen=True)
class Waiter:
    """A container that waits for GPUs: how many, and for how long it has.

    Attributes:
        who: it as its engine has it.
        named: ids of the very devices that it waits for; empty: any will do.
        overtaken: how many that came later were served before it.
        kept: how many free GPUs are kept for it, since it has been passed over for long enough.
    """

    container: str
    who: str
    count: int
    named: list[str]
    seconds: int
    overtaken: int
    kept: int

    @property
    def words(self) -> str:
        """It for people."""
        wanted = " and ".join(self.named) or self.count
        text = f"{self.who}, asks for {wanted}, for {duration(self.seconds)}"
        return f"{text}, {self.kept} kept for it" if self.kept else text


@dataclasses.dataclass(frozen=True)
class Seen:
    """All leases at one moment."""

    allocation: str
    devices: list[Device]
    containers: dict[str, Container]
    waiters: list[Waiter]


def of_device(device: Device, containers: collections.abc.Mapping[str, Container]) -> str:
    """A device for people: its state, and who has it."""
    words = [device.state, device.model.removeprefix("NVIDIA "), device.id]
    words += [containers[name].words for name in device.containers[:_NAMED]]
    if device.containers[_NAMED:]:
        words.append(f"{len(device.containers) - _NAMED} more")
    return ", ".join(word for word in words if word)
