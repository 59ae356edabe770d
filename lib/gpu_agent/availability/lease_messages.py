# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The leases and the queue at one moment: values for programs, and texts for people. Pure."""

import collections.abc
import dataclasses
import datetime
import re
import textwrap
import typing

from gpu_agent.gpu.vendors import registry
from gpu_runtime.lease_table import CONTAINER, JOB, RUNNER, STEP
from gpu_runtime.refusal import duration

WIDTH: typing.Final = 86
"""Columns of a line: with Juju's indent, or the result's name before it, it fits 100."""

_KINDS: typing.Final = {
    STEP: "CI step",
    CONTAINER: "engine container",
    JOB: "gpu-run command",
    RUNNER: "runner",
}
# How many of the holders of a shared GPU are named in texts.
_NAMED = 3
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclasses.dataclass(frozen=True)
class Container:
    """The container or command that holds a lease.

    Attributes:
        kind: `step`, `container` of an engine, `job`: a command under gpu-run, or `runner` of a CI
            service.
        who: its name from its engine; of a step the container's id.
        gpus: the ids of its devices.
        steps: the exec ids of its processes: `task`, or a UUID for a hijacked session;
            `self-test` for the worker's own container.
        in_use: whether it uses its GPUs; if not, the next request gets them.
        handing_over: whether it has ended, and its GPUs are being handed to another holder.
        stuck: whether it has ended, but its processes cannot be killed.
        seconds: how long it has held its GPUs; None if that is not known.
        since: the moment at which it got them, UTC, ISO 8601; empty if that is not known.
    """

    kind: str
    who: str
    gpus: list[str]
    steps: list[str]
    in_use: bool
    handing_over: bool
    stuck: bool
    seconds: int | None
    since: str

    @property
    def summary(self) -> str:
        """Its name, its processes and how long it has held its GPUs, in one line."""
        parts = [self._activity] if self.kind == STEP or not self.in_use else []
        parts += [] if self.seconds is None else [duration(self.seconds)]
        return f"{self.who} ({', '.join(parts)})" if parts else self.who

    @property
    def lines(self) -> list[str]:
        """Its name and kind; then since when it has held its GPUs, and its processes."""
        kind = "self-test" if self.steps == ["self-test"] else _KINDS[self.kind]
        age = "" if self.seconds is None else f" ({duration(self.seconds)})"
        text = f"since {shown_time(self.since) if self.since else 'an unknown time'}{age}"
        if self.kind == STEP or not self.in_use:
            text += f", {'runs: ' if self.in_use and self.steps else ''}{self._activity}"
        return [f"held by {self.who} ({kind})", text]

    @property
    def _activity(self) -> str:
        if self.handing_over:
            return "ended"
        if not self.in_use:
            return "ended, but can't be killed" if self.stuck else "no longer used"
        steps = ["hijacked session" if _UUID.fullmatch(step) else step for step in self.steps]
        return " and ".join(dict.fromkeys(steps)) or "starting"


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU or MIG device.

    Attributes:
        key: its name for people, such as `gpu-0` or `gpu-0-mig-1`.
        index: the GPU's index; None if tasks no longer get the device, although it is held.
        id: its UUID.
        gpu: the UUID of its GPU.
        model: the GPU's product name.
        state: `free`, `leased`, `shared by 2`, `handing over`, or why it is unavailable.
        containers: the names of its holders.
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
    """A request in the queue.

    Attributes:
        container: the name of the future holder.
        who: its name from its engine.
        count: how many devices it requests.
        named: the ids of the devices that it requests by name; empty: any will do.
        seconds: how long it has waited.
        since: since when it waits, UTC, ISO 8601.
        overtaken: how many later requests were served before it.
        kept: how many free GPUs are reserved for it, because it was overtaken for long enough.
    """

    container: str
    who: str
    count: int
    named: list[str]
    seconds: int
    since: str
    overtaken: int
    kept: int

    @property
    def text(self) -> str:
        """Its name, its request and its waiting time."""
        wanted = " and ".join(self.named) or f"{self.count} GPU{'s' if self.count != 1 else ''}"
        waits = f"waiting {duration(self.seconds)} (since {shown_time(self.since)})"
        reserved = f", {self.kept} reserved for it" if self.kept else ""
        return f"{self.who}, requests {wanted}, {waits}{reserved}"


@dataclasses.dataclass(frozen=True)
class Seen:
    """All leases at one moment; `queue` has the oldest request first."""

    allocation: str
    devices: list[Device]
    containers: dict[str, Container]
    queue: list[Waiter]


def as_text(*lines: str) -> str:
    """Join lines into a text of at most WIDTH columns; all but its first line are indented."""
    wrapped = [
        line
        for place, text in enumerate(lines)
        for line in textwrap.wrap(
            text,
            WIDTH,
            initial_indent="  " if place else "",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    ]
    return "\n".join(wrapped)


def of_device(
    device: Device, containers: collections.abc.Mapping[str, Container], *told: str
) -> str:
    """Describe a device: its state, model and id; then what is told of it, and its holders."""
    first = [device.state, registry.without_maker(device.model), device.id]
    lines = [", ".join(word for word in first if word), *told]
    for name in device.containers[:_NAMED]:
        lines += containers[name].lines
    if device.containers[_NAMED:]:
        lines.append(f"and {len(device.containers) - _NAMED} more holders")
    return as_text(*lines)


def iso_time(wall: float) -> str:
    """Format seconds since the epoch in UTC, such as `2026-11-23T14:05:06Z`."""
    moment = datetime.datetime.fromtimestamp(wall, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def shown_time(time: str) -> str:
    """Format such a time for people: `2026-11-23 14:05:06 UTC`."""
    return f"{time[:10]} {time[11:19]} UTC"
