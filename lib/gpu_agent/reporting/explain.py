# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Explain what happened to a build, container, unit or job, from records of one machine. Pure.

The records are the decision log, the usage records, the lease store and the records of unavailable
GPUs. Users choose many of the texts in them, so texts are cut before they are shown.
"""

import collections.abc
import dataclasses
import datetime
import json
import textwrap
import typing

from gpu_agent.reporting import decisions
from gpu_agent.reporting.decisions import Entry
from gpu_agent.reporting.receipts.receipt import Receipt
from gpu_runtime.lease_table import CONTAINER, JOB, RUNNER, STEP
from gpu_runtime.refusal import duration

# Columns of a line; with Juju's indent it fits 100.
_WIDTH: typing.Final = 96
_LABEL: typing.Final = 10
_LISTED: typing.Final = 20  # cases of a list
_DECISIONS: typing.Final = 5  # of one case
_HOLDERS: typing.Final = 8  # of one decision
_SHORT: typing.Final = 120  # characters of a name or cause that others chose
_LARGEST: typing.Final = 60_000  # bytes of a result; Linux limits Juju's to 128 KiB
# Two clocks may place one event at moments that differ by so many seconds.
_SLACK: typing.Final = 5.0
# A shorter beginning of an id would match too much.
_SHORTEST_ID: typing.Final = 4
_KINDS: typing.Final = {
    STEP: "CI step", CONTAINER: "engine container", JOB: "gpu-run", RUNNER: "runner",
}  # fmt: skip
# The kinds of units, by what the decision log calls them.
_UNITS: typing.Final = {"gpu-run": JOB, "runner": RUNNER}
_NO_REQUEST: typing.Final = frozenset(
    {
        *(decisions.RECLAIM, decisions.UNUSED, decisions.CORDON, decisions.UNCORDON),
        decisions.INTRUDER,
    }
)


@dataclasses.dataclass(frozen=True)
class Lease:
    """One lease: a container that had GPUs for a time.

    Attributes:
        container: the container's id or the unit's name.
        kind: `step`, `container` or `job`, as gpu_runtime.lease_table has it.
        who: its name from its engine; empty for a CI step.
        build: team, pipeline, job and build; some may be empty, all are if they are not known.
        devices: the ids of its GPUs and MIG devices.
        began: seconds since the epoch.
        ended: the same; None: the lease goes on.
        outcome: as a usage record has it; empty if the lease goes on.
        reason: why it was ended or how its GPU failed; may be empty.
        faults: what its GPUs met: the device's id and a text each.
    """

    container: str
    kind: str
    who: str
    build: tuple[str, str, str, str]
    devices: tuple[str, ...]
    began: float
    ended: float | None
    outcome: str = ""
    reason: str = ""
    faults: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Waiting:
    """A request that is in the queue now; `since` in seconds since the epoch."""

    container: str
    who: str
    count: int
    named: tuple[str, ...]
    since: float
    position: int


@dataclasses.dataclass(frozen=True)
class Out:
    """A GPU that is unavailable now: its id, the cause, and since when (UTC, may be empty)."""

    gpu: str
    cause: str
    since: str


@dataclasses.dataclass(frozen=True)
class Source:
    """A source that was searched.

    Attributes:
        name: such as `decision log`.
        place: its path.
        oldest: the time of its oldest record, UTC; empty if it has none, or has no times.
        damaged: how many of its records could not be read.
        error: why the source could not be read at all; empty: it was read.
    """

    name: str
    place: str
    oldest: str = ""
    damaged: int = 0
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Records:
    """Everything that is known on this machine.

    Attributes:
        entries: of the decision log, the oldest first.
        leases: from the usage records and the lease store, in any order.
        queue: the requests that wait now.
        out: the GPUs that are unavailable now.
        labels: the ids of devices and GPUs, each with its name for people, such as `GPU 1`.
        parts: the ids of MIG devices, each with the id of its GPU.
        sources: where these come from.
        now: seconds since the epoch.
    """

    entries: tuple[Entry, ...]
    leases: tuple[Lease, ...]
    queue: tuple[Waiting, ...]
    out: tuple[Out, ...]
    labels: collections.abc.Mapping[str, str]
    parts: collections.abc.Mapping[str, str]
    sources: tuple[Source, ...]
    now: float


@dataclasses.dataclass(frozen=True)
class Held:
    """A lease of another container, with those of its devices that matter to the request."""

    devices: tuple[str, ...]
    lease: Lease


@dataclasses.dataclass(frozen=True)
class Decided:
    """One decision on a request; `asked_at` and `at` are seconds since the epoch."""

    entry: Entry
    asked_at: float
    at: float
    held: tuple[Held, ...]

    @property
    def verdict(self) -> str:
        """`granted`, `refused`, or `no GPU requested`."""
        if self.entry.granted:
            return "granted"
        return "refused" if _is_refused(self.entry) else "no GPU requested"


@dataclasses.dataclass(frozen=True)
class Case:
    """All that is known of one container.

    Attributes:
        container: its id or unit.
        kind: a text such as `CI step`; may be empty.
        who: its name from its engine; may be empty.
        build: its build, such as `main/train/fit/12`; empty if that is not known.
        decisions: the last decisions on its requests, the oldest first.
        earlier: how many earlier decisions are left out.
        waiting: its request that waits now; None if none does.
        leases: its leases, the oldest first.
        ends: the entries by which an operator or this worker ended it.
        out: the GPUs that matter to it and are unavailable now.
        faults: what its GPUs met in that time: the device's id and a text each.
        last: when something was last recorded of it, in seconds since the epoch.
    """

    container: str
    kind: str
    who: str
    build: str
    decisions: tuple[Decided, ...]
    earlier: int
    waiting: Waiting | None
    leases: tuple[Lease, ...]
    ends: tuple[Entry, ...]
    out: tuple[Out, ...]
    faults: tuple[tuple[str, str], ...]
    last: float


def lease_of(receipt: Receipt, *, over: bool = True) -> Lease:
    """Read the lease in a usage record; `over` is false for a lease that goes on."""
    faults: list[tuple[str, str]] = []
    for gpu in receipt.gpus:
        faults += [(gpu.uuid, f"Xid {number}") for number in gpu.xids]
        if gpu.failed:
            faults.append((gpu.uuid, gpu.failed))
        if gpu.ecc_uncorrected:
            faults.append((gpu.uuid, f"{gpu.ecc_uncorrected} uncorrected ECC errors"))
    return Lease(
        container=receipt.container,
        kind=receipt.kind or STEP,
        who=receipt.who,
        build=(receipt.team, receipt.pipeline, receipt.job, receipt.build),
        devices=tuple(one for gpu in receipt.gpus for one in (gpu.devices or (gpu.uuid,))),
        began=seconds(receipt.began),
        ended=seconds(receipt.ended) if over else None,
        outcome=receipt.outcome if over else "",
        reason=receipt.reason,
        faults=tuple(faults),
    )


def seconds(time: str) -> float:
    """Read a UTC time of a record, as seconds since the epoch; 0 if it is not a time."""
    try:
        return datetime.datetime.fromisoformat(time.removesuffix("Z") + "+00:00").timestamp()
    except (ValueError, OverflowError):
        return 0.0


@dataclasses.dataclass(frozen=True)
class Found:
    """What a name means: the newest cases, the newest first, and how many there are in all."""

    cases: tuple[Case, ...]
    count: int


def find(records: Records, name: str, since: float) -> Found:
    """Find the cases that a name means.

    An exact match of an id, a name or a build excludes the ids that only begin with `name`.

    Args:
        records: where to look.
        name: a build or a part of its name, an id or its beginning, a unit or a container's name.
        since: cases of which nothing was recorded since then are left out; in seconds since the
            epoch.
    """
    exact, beginning = set[str](), set[str]()
    for container, who, build in _names(records):
        if name in {container, who, *_spellings(container, who, build)} - {""}:
            exact.add(container)
        elif len(name) >= _SHORTEST_ID and container.startswith(name):
            beginning.add(container)
    return _newest(records, exact or beginning, since)


def unnamed_refusals(records: Records, since: float) -> Found:
    """Find the refused CI tasks, which have no build name because they had no lease."""
    leased = {lease.container for lease in records.leases}
    found = {
        entry.container
        for entry in records.entries
        if entry.kind in decisions.TASKS and _is_refused(entry) and entry.container not in leased
    }
    return _newest(records, found, since)


def _newest(records: Records, containers: set[str], since: float) -> Found:
    """Make the newest cases; a log may have thousands."""
    entries: dict[str, list[Entry]] = {container: [] for container in containers}
    for entry in records.entries:
        if entry.container in entries:
            entries[entry.container].append(entry)
    leases: dict[str, list[Lease]] = {container: [] for container in containers}
    for lease in records.leases:
        if lease.container in leases:
            leases[lease.container].append(lease)
    waiting = {one.container: one for one in records.queue}

    def last(container: str) -> float:
        times = [seconds(entry.time) for entry in entries[container]]
        times += [records.now if one.ended is None else one.ended for one in leases[container]]
        return max([*times, records.now] if container in waiting else times, default=0.0)

    times = {container: last(container) for container in containers}
    recent = [container for container in containers if times[container] >= since]
    recent.sort(key=lambda container: (-times[container], container))
    cases = [
        _case(records, one, entries[one], leases[one], waiting.get(one), times[one])
        for one in recent[:_LISTED]
    ]
    return Found(tuple(cases), len(recent))


def _names(
    records: Records,
) -> collections.abc.Generator[tuple[str, str, tuple[str, str, str, str]]]:
    """Yield each container with its name and build, as often as a record has it."""
    no_build = ("", "", "", "")
    for entry in records.entries:
        if entry.container:
            yield entry.container, entry.who, no_build
    for lease in records.leases:
        yield lease.container, lease.who, lease.build
    for waiting in records.queue:
        yield waiting.container, waiting.who, no_build


def _spellings(container: str, who: str, build: tuple[str, str, str, str]) -> set[str]:
    """Return the other names under which people know a container."""
    found = {container.removesuffix(end) for end in (".scope", ".service")}
    before, quote, rest = who.partition('"')
    if quote and before and rest.endswith('"'):
        found.add(rest[:-1])  # docker container "train"
    _, colon, command = who.partition(": ")
    if colon and who.startswith("gpu-run of "):
        found |= {command, command.partition(" ")[0]}
    team, pipeline, job, number = build
    if job:
        jobs = {job, f"{pipeline}/{job}", f"{team}/{pipeline}/{job}"}
        found |= jobs | {f"{one}/{number}" for one in jobs}
    elif team:  # a build without a pipeline has an id alone
        found |= {number, f"{team}/{number}"}
    return found


def _case(
    records: Records,
    container: str,
    entries: list[Entry],
    recorded: list[Lease],
    waiting: Waiting | None,
    last: float,
) -> Case:
    requests = [entry for entry in entries if entry.kind not in _NO_REQUEST]
    leases = [*recorded, *_unrecorded(records, requests[-_DECISIONS:], recorded)]
    leases.sort(key=lambda lease: lease.began)
    made = tuple(_decided(records, entry) for entry in requests[-_DECISIONS:])
    build = next((lease.build for lease in reversed(leases) if any(lease.build)), ("",) * 4)
    devices = {device for lease in leases for device in lease.devices}
    devices |= {device for entry in requests for device in (*entry.named, *entry.granted)}
    began = min([one.asked_at for one in made] + [one.began for one in leases], default=0.0)
    concerned = {records.parts.get(device, device) for device in devices}
    # A request that got nothing may have needed any GPU.
    needed_any = bool(waiting) or any(map(_is_refused, requests))
    return Case(
        container=container,
        kind=_kind(requests, leases),
        who=next((one for one in _whos(entries, leases, waiting) if one), ""),
        build="/".join(part for part in build if part),
        decisions=made,
        earlier=len(requests) - len(made),
        waiting=waiting,
        leases=tuple(leases),
        ends=tuple(entry for entry in entries if entry.kind in _NO_REQUEST),
        out=tuple(one for one in records.out if one.gpu in concerned or needed_any),
        faults=_faults(records, concerned, began, last),
        last=last,
    )


def _is_refused(entry: Entry) -> bool:
    return not entry.granted and bool(entry.code or entry.reason)


def _whos(
    entries: list[Entry], leases: list[Lease], waiting: Waiting | None
) -> collections.abc.Generator[str]:
    yield from (entry.who for entry in reversed(entries))
    yield from (lease.who for lease in reversed(leases))
    if waiting:
        yield waiting.who


def _kind(requests: list[Entry], leases: list[Lease]) -> str:
    if leases:
        return _KINDS.get(leases[-1].kind, "")
    if any(entry.is_step for entry in requests):
        return _KINDS[STEP]
    if unit := next((_UNITS[entry.kind] for entry in requests if entry.kind in _UNITS), ""):
        return _KINDS[unit]
    return _KINDS[CONTAINER] if requests else ""


def _unrecorded(
    records: Records, entries: list[Entry], recorded: list[Lease]
) -> collections.abc.Generator[Lease]:
    """Yield the leases that only the decision log has: granted, and without a usage record.

    Such a lease was over at the latest when another container got one of its devices.
    """
    until = float("-inf")
    for entry in entries:
        at = seconds(entry.time)
        if not entry.granted or at <= until or any(_covers(lease, at) for lease in recorded):
            continue
        later = [
            seconds(other.time)
            for other in records.entries
            if other.container != entry.container
            and seconds(other.time) > at
            and not set(entry.granted).isdisjoint(other.granted)
        ]
        kind = STEP if entry.is_step else _UNITS.get(entry.kind, CONTAINER)
        until = min(later, default=records.now)
        yield Lease(
            entry.container, kind, entry.who, ("", "", "", ""), entry.granted, at, until,
            "end not recorded",
        )  # fmt: skip


def _covers(lease: Lease, at: float) -> bool:
    """Whether a lease existed at a moment."""
    return lease.began - _SLACK <= at and (lease.ended is None or at <= lease.ended + _SLACK)


def _decided(records: Records, entry: Entry) -> Decided:
    at = seconds(entry.time)
    asked_at = at - (entry.waited or 0.0)
    wanted = {*entry.named, *entry.granted}
    held: list[Held] = []
    for lease in records.leases:
        over = lease.ended is not None and lease.ended < asked_at
        if lease.container == entry.container or over or lease.began > at:
            continue
        devices = tuple(one for one in lease.devices if not wanted or one in wanted)
        if devices:
            held.append(Held(devices, lease))
    held.sort(key=lambda one: (one.devices, one.lease.began))
    return Decided(entry, asked_at, at, tuple(held))


def _faults(
    records: Records, concerned: set[str], began: float, last: float
) -> tuple[tuple[str, str], ...]:
    """Return the faults that any lease's usage record has of these GPUs in that time."""
    found = [
        (gpu, text)
        for lease in records.leases
        if lease.began <= last and (lease.ended is None or lease.ended >= began)
        for gpu, text in lease.faults
        if gpu in concerned
    ]
    return tuple(dict.fromkeys(found))


def as_text(records: Records, case: Case) -> str:
    """Explain one case, in lines of at most 96 columns."""
    lines = _block("Container", _cut(case.container))
    title = ", ".join(filter(None, (case.kind, _cut(case.who))))
    lines += _block("", title) if title else []
    lines += _block("Build", _cut(case.build)) if case.build else []
    if case.earlier:
        lines += _block("", f"({case.earlier} earlier decisions are left out)")
    for made in case.decisions:
        lines += _decision_lines(records, made)
    if case.waiting:
        lines += _waiting_lines(records, case.waiting)
    for gpu, text in case.faults[:_HOLDERS]:
        lines += _block("Fault", f"{_label(records, gpu)}: {_cut(text)}")
    for one in case.out[:_HOLDERS]:
        since = f", since {shown(seconds(one.since))}" if one.since else ""
        lines += _block("Out now", f"{_label(records, one.gpu)} is {_cut(one.cause)}{since}")
    for lease in case.leases[-_DECISIONS:]:
        lines += _end_lines(records, lease)
    for entry in case.ends[-_DECISIONS:]:
        lines += _block(
            "Ended by", f"{shown(seconds(entry.time))}: {entry.kind}: {_cut(entry.reason)}"
        )
    if not case.leases and not case.waiting:
        lines += _block("Ended", "it never had a GPU")
    return "\n".join(lines)


def _decision_lines(records: Records, made: Decided) -> list[str]:
    entry = made.entry
    lines = _block("Asked", f"{shown(made.asked_at)}: {_request(records, entry)}")
    wait = f" after waiting {duration(entry.waited)}" if entry.waited else ""
    code = f" ({entry.code})" if entry.code else ""
    text = f"{shown(made.at)}: {made.verdict}{code}{wait}"
    if entry.granted:
        text += f": {', '.join(_with_id(records, one) for one in entry.granted[:_HOLDERS])}"
    lines += _block("Decided", text)
    lines += _block("", entry.reason) if entry.reason else []
    for one in made.held[:_HOLDERS]:
        names = ", ".join(_label(records, device) for device in one.devices[:_HOLDERS])
        lines += _block("Held then", f"{names}: {_holder(one.lease)}")
    if made.held[_HOLDERS:]:
        lines += _block("", f"and {len(made.held) - _HOLDERS} more leases")
    if not made.held and made.verdict != "no GPU requested":
        lines += _block("Held then", "no other lease is recorded for that time")
    return lines


def _request(records: Records, entry: Entry) -> str:
    if entry.named:
        names = ", ".join(_with_id(records, one) for one in entry.named[:_HOLDERS])
        return f"{entry.kind} requests {names} by name"
    if entry.asked is None:
        return f"{entry.kind} requests all GPUs"
    if not entry.asked and not entry.granted and (entry.code or entry.reason):
        return f"{entry.kind}; it was refused before its request was counted"
    return f"{entry.kind} requests {gpus(entry.asked or len(entry.granted))}"


def _waiting_lines(records: Records, waiting: Waiting) -> list[str]:
    names = ", ".join(_with_id(records, one) for one in waiting.named[:_HOLDERS])
    lines = _block("Asked", f"{shown(waiting.since)}: requests {names or gpus(waiting.count)}")
    age = duration(max(0.0, records.now - waiting.since))
    lines += _block("Waiting", f"for {age}, position {waiting.position} in the queue")
    for lease in [one for one in records.leases if one.ended is None][:_HOLDERS]:
        names = ", ".join(_label(records, device) for device in lease.devices[:_HOLDERS])
        lines += _block("Held now", f"{names}: {_holder(lease)}")
    return lines


def _end_lines(records: Records, lease: Lease) -> list[str]:
    names = ", ".join(_label(records, device) for device in lease.devices[:_HOLDERS])
    if lease.ended is None:
        age = duration(max(0.0, records.now - lease.began))
        return _block("Holds", f"{names} since {shown(lease.began)} ({age})")
    held = duration(max(0.0, lease.ended - lease.began))
    if lease.outcome == "end not recorded":
        by = f"; it was over by {shown(lease.ended)}" if lease.ended < records.now else ""
        return _block("Ended", f"no usage record of its lease of {names}{by}")
    why = f": {_cut(lease.reason)}" if lease.reason else ""
    return _block("Ended", f"{shown(lease.ended)}: {lease.outcome}{why}; held {names} for {held}")


def _holder(lease: Lease) -> str:
    build = "/".join(part for part in lease.build if part)
    who = _cut(lease.who or f"container {lease.container}") + (
        f" ({_cut(build)})" if build else ""
    )
    ended = "now" if lease.ended is None else shown(lease.ended)
    return f"{who}, {shown(lease.began)} to {ended}"


def as_list(found: Found) -> str:
    """List several cases, the newest first, in lines of at most 96 columns."""
    lines: list[str] = []
    for case in found.cases:
        lines += textwrap.wrap(
            _headline(case), _WIDTH, subsequent_indent="    ", break_on_hyphens=False
        )
        names = [f"container {_cut(case.container)}", _cut(case.who)]
        names += [f"build {_cut(case.build)}"] if case.build else []
        lines += textwrap.wrap(
            ", ".join(filter(None, names)),
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    if left_out := found.count - len(found.cases):
        lines.append(f"and {left_out} older ones")
    return "\n".join(lines)


def _headline(case: Case) -> str:
    parts: list[str] = []
    if case.decisions:
        made = case.decisions[-1]
        code = f" ({made.entry.code})" if made.entry.code else ""
        parts = [f"{shown(made.at)}: {made.verdict}{code}"]
        if made.verdict == "granted":
            parts.append(gpus(len(made.entry.granted)))
        if made.entry.waited:
            parts.append(f"waited {duration(made.entry.waited)}")
    elif case.leases:
        parts = [f"{shown(case.leases[-1].began)}: granted", gpus(len(case.leases[-1].devices))]
    if case.waiting:
        parts.append(f"waiting at position {case.waiting.position}")
    elif case.leases:
        last = case.leases[-1]
        parts.append("holds them now" if last.ended is None else last.outcome)
    return ", ".join(parts) or shown(case.last)


def as_json(name: str, records: Records, found: Found) -> str:
    """Return the cases as JSON; only a single case has its decisions and leases."""
    for most in (16, 4, 1, 0):
        whole = {
            "name": name,
            "matches": found.count,
            "cases": [_plain(case, most, whole=found.count == 1) for case in found.cases],
            "searched": [dataclasses.asdict(source) for source in records.sources],
        }
        text = json.dumps(whole)
        if len(text) <= _LARGEST:
            break
    return text


def _plain(case: Case, most: int, *, whole: bool) -> dict[str, object]:
    found: dict[str, object] = {
        "container": case.container,
        "kind": case.kind,
        "who": case.who,
        "build": case.build,
        "last": _iso(case.last),
        "summary": _headline(case),
    }
    if not whole:
        return found
    return found | {
        "decisions": [
            {
                "time": made.entry.time,
                "asked-at": _iso(made.asked_at),
                "kind": made.entry.kind,
                "asked": "all" if made.entry.asked is None else made.entry.asked,
                "named": [*made.entry.named],
                "verdict": made.verdict,
                "code": made.entry.code,
                "reason": made.entry.reason,
                "waited-seconds": made.entry.waited,
                "granted": [*made.entry.granted],
                "held-then": [
                    {**_plain_lease(one.lease), "devices": [*one.devices]}
                    for one in made.held[:most]
                ],
            }
            for made in case.decisions
        ],
        "waiting": None if case.waiting is None else dataclasses.asdict(case.waiting),
        "leases": [_plain_lease(lease) for lease in case.leases[-max(1, most) :]],
        "ended-by": [
            {"time": entry.time, "kind": entry.kind, "reason": entry.reason}
            for entry in case.ends[-_DECISIONS:]
        ],
        "faults": [{"gpu": gpu, "text": text} for gpu, text in case.faults[:most]],
        "out-now": [dataclasses.asdict(one) for one in case.out[:most]],
    }


def _plain_lease(lease: Lease) -> dict[str, object]:
    return {
        "container": lease.container,
        "who": lease.who,
        "build": "/".join(part for part in lease.build if part),
        "devices": [*lease.devices],
        "began": _iso(lease.began),
        "ended": None if lease.ended is None else _iso(lease.ended),
        "outcome": lease.outcome,
        "reason": lease.reason,
    }


def searched(records: Records) -> list[str]:
    """Say for each source whether it was read, and back to when it reaches."""
    lines: list[str] = []
    for source in records.sources:
        text = f"{source.name} ({source.place}): "
        if source.error:
            text += f"could not be read: {source.error}"
        elif source.oldest:
            text += f"back to {shown(seconds(source.oldest))}"
        else:
            text += "read"
        if source.damaged:
            text += f"; {source.damaged} damaged lines left out"
        lines += textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def gpus(count: int) -> str:
    """Return a number of GPUs as text."""
    return f"{count} GPU{'' if count == 1 else 's'}"


def shown(at: float) -> str:
    """Format seconds since the epoch for people, such as `2026-11-23 14:05:06 UTC`."""
    return f"{_iso(at)[:19].replace('T', ' ')} UTC"


def _iso(at: float) -> str:
    moment = datetime.datetime.fromtimestamp(at, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _label(records: Records, device: str) -> str:
    return records.labels.get(device) or _cut(device)


def _with_id(records: Records, device: str) -> str:
    label = records.labels.get(device)
    return f"{label} ({device})" if label else _cut(device)


def _cut(text: str) -> str:
    """Return a text that others chose: printable, and not too long."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text[: _SHORT + 1])
    return line if len(line) <= _SHORT else f"{line[: _SHORT - 1]}…"


def _block(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"{label:<{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_on_hyphens=False,
    )
