# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The judge's memory over restarts of the GPU health service and of the machine. Pure.

Times that must outlast a boot are wall-clock seconds since the epoch, named `wall`. Times named
`at` are seconds since boot and mean nothing after a reboot. All collections are bounded.
"""

import dataclasses
import json
import math
import types
import typing

from gpu_agent.fault_policy import fault_table as faults
from gpu_agent.fault_policy.fault import LEVELS, Need

VERSION: typing.Final = 1
# Number of GPUs; watched GPUs are kept first.
MOST_GPUS: typing.Final = 64
# Number of occurrences for the circuit breaker, and of job faults per GPU.
MOST_RECENT: typing.Final = 256
MOST_JOB_FAULTS: typing.Final = 8
MOST_HOLDERS: typing.Final = 16
# Characters of a driver's text, and of unreadable input in an error.
MOST_WORDS: typing.Final = 200
# Characters of a memory file: many times the largest possible one.
MOST_CHARACTERS: typing.Final = 4_000_000


@dataclasses.dataclass
class Streak:
    """Consecutive polls with the same result.

    Attributes:
        bad: the result.
        first: time of the first poll, at.
        last: time of the last poll, at.
        counted: time of the last counted poll, at; polls too soon after it are not counted.
        count: number of counted polls.
    """

    bad: bool
    first: float
    last: float
    counted: float
    count: int = 1


@dataclasses.dataclass
class Suspicion:
    """A report of the kernel log on a GPU that no other source has confirmed yet.

    Attributes:
        at: when.
        fault: the row's name.
        xid: the Xid's number; None: not an Xid.
        text: the driver's text.
    """

    at: float
    fault: str
    xid: int | None
    text: str


@dataclasses.dataclass
class JobFault:
    """An Xid that was reported in a job's log.

    Attributes:
        wall: when.
        xid: the Xid's number.
        containers: the containers that held the GPU.
    """

    wall: float
    xid: int
    containers: tuple[str, ...]


@dataclasses.dataclass
class Out:
    """A GPU that the judge quarantined; attributes not listed here are those of TakeOut.

    Attributes:
        need: what the GPU needs, a number of fault.Need.
        at: when that was last decided; below 0: in an earlier boot.
        seen: whether the GPU was seen to be quarantined after that.
        asked: when a test was requested, wall; None: not since the fault is over.
    """

    fault: str
    reason: str
    level: str
    remedy: str
    cause: str
    need: int
    at: float
    seen: bool = False
    asked: float | None = None
    code: str = ""


@dataclasses.dataclass
class Gpu:
    """The memory of one GPU.

    Attributes:
        out: why the judge quarantined it; None: it did not.
        standing: rows that the last poll showed, with their causes; only new rows count.
        held: rows for which the circuit breaker prevented a quarantine.
        met: whether a poll since boot has seen the GPU.
        ecc: uncorrected errors at the last poll that reported them.
        slow: consecutive polls with or without slowdown; None: no slowdown.
        suspicion: an unconfirmed report of the kernel log.
        job_faults: faults of jobs in the last 24 h.
        history: when it was quarantined, wall, the last five times.
        tested: when rate-limited tests were last requested, wall, by the row's name.
    """

    out: Out | None = None
    standing: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    held: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    met: bool = False
    ecc: int | None = None
    slow: Streak | None = None
    suspicion: Suspicion | None = None
    job_faults: tuple[JobFault, ...] = ()
    history: tuple[float, ...] = ()
    tested: dict[str, float] = dataclasses.field(default_factory=dict[str, float])


@dataclasses.dataclass
class Occurrence:
    """A GPU that was quarantined, or would have been.

    Attributes:
        at: when; if repeated, the last time.
        cause: the common cause of several GPUs.
        uuid: the GPU's UUID.
    """

    at: float
    cause: str
    uuid: str


@dataclasses.dataclass
class Memory:
    """The judge's memory.

    Attributes:
        version: version of this format.
        at: time of the last turn.
        wall: the same by the wall clock.
        mode: the mode of the last turn.
        gpus: the memory of each GPU by UUID.
        recent: occurrences of the last five minutes.
        suspects: causes for which the circuit breaker has tripped.
    """

    version: int = VERSION
    at: float = 0.0
    wall: float = 0.0
    mode: str = ""
    gpus: dict[str, Gpu] = dataclasses.field(default_factory=dict[str, Gpu])
    recent: tuple[Occurrence, ...] = ()
    suspects: tuple[str, ...] = ()

    def as_json(self) -> str:
        """The memory as JSON, which `parse` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Memory":
        """Read the JSON of `as_json`.

        Raises:
            ValueError: the text is not such JSON; the message quotes it.
        """
        try:
            if len(text) > MOST_CHARACTERS:
                raise ValueError(f"{len(text)} characters are more than it can have")
            memory = typing.cast("Memory", _taken(cls, json.loads(text), "memory"))
            if memory.version != VERSION:
                raise ValueError(f"version is {memory.version}, not {VERSION}")
            # So earlier revisions called this mode.
            memory.mode = "enabled" if memory.mode == "on" else memory.mode
            for gpu in memory.gpus.values():
                _check(gpu)
            memory.trim()
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"cannot use the memory of the GPU health service ({error}): {text[:MOST_WORDS]!r}"
            ) from error
        return memory

    def forget_boot(self) -> None:
        """Drop what was true for the last boot only."""
        self.recent = ()
        for gpu in self.gpus.values():
            gpu.slow, gpu.suspicion, gpu.met = None, None, False
            gpu.standing.pop(faults.HANG.name, None)
            if gpu.out:
                gpu.out.at, gpu.out.asked = -1.0, None

    def forget_decisions(self) -> None:
        """Drop decisions of another mode, which were carried out differently or not at all."""
        for gpu in self.gpus.values():
            gpu.out, gpu.ecc, gpu.standing, gpu.held = None, None, {}, {}
        self.suspects, self.recent = (), ()

    def trim(self, uuids: tuple[str, ...] = ()) -> None:
        """Drop what exceeds the bounds; the GPUs of `uuids` are kept."""
        first = [uuid for uuid in self.gpus if uuid in uuids]
        others = [uuid for uuid in self.gpus if uuid not in uuids]
        kept = (*first, *others[-MOST_GPUS:])[: max(MOST_GPUS, len(first))]
        self.gpus = {uuid: self.gpus[uuid] for uuid in self.gpus if uuid in kept}
        self.recent = self.recent[-MOST_RECENT:]


def _check(gpu: Gpu) -> None:
    names = {gpu.out.fault} if gpu.out else set[str]()
    names |= {gpu.suspicion.fault} if gpu.suspicion else set()
    if odd := names - faults.BY_NAME.keys():
        raise ValueError(f"{odd} is not a known fault")
    if gpu.out and (gpu.out.level not in LEVELS or gpu.out.need not in list(Need)):
        raise ValueError(f"{gpu.out.level!r}, {gpu.out.need} is not a known level and need")


def _taken(kind: typing.Any, found: object, name: str) -> object:
    """Convert a JSON value to this type; raise ValueError if it does not fit."""
    if dataclasses.is_dataclass(kind):
        return _object(typing.cast("type", kind), found, name)
    if isinstance(kind, types.UnionType):
        (inner,) = (one for one in typing.get_args(kind) if one is not types.NoneType)
        return None if found is None else _taken(inner, found, name)
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(found, list):
        listed = typing.cast("list[object]", found)
        return tuple(_taken(inside[0], one, name) for one in listed)
    if origin is dict and isinstance(found, dict):
        named = typing.cast("dict[str, object]", found)
        return {key: _taken(inside[1], one, f"{name}.{key}") for key, one in named.items()}
    if kind is float and type(found) in (int, float) and _is_time(typing.cast("float", found)):
        return float(typing.cast("float", found))
    if kind in (int, bool, str) and type(found) is kind:
        return found
    raise ValueError(f"{name} is {found!r:.80}")


def _object(kind: type, found: object, name: str) -> object:
    hints = typing.get_type_hints(kind)
    if not isinstance(found, dict):
        raise ValueError(f"{name} is {found!r:.80}")
    named = typing.cast("dict[str, object]", found)
    # The revision before wrote no `code`.
    if odd_names := (named.keys() ^ hints.keys()) - ({"code"} - named.keys()):
        odd = ", ".join(sorted(odd_names))
        raise ValueError(f"{name} lacks or should not have: {odd:.80}")
    return kind(**{key: _taken(hints[key], one, f"{name}.{key}") for key, one in named.items()})


def _is_time(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False
