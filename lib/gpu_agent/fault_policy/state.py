# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the judge remembers over restarts of the watch and of the machine. Pure.

It changes as the judge learns. Times that must outlast a boot are wall-clock seconds since the
epoch and are called `wall`; those called `at` are seconds since boot, and mean nothing after a
reboot. Everything is bounded, whatever is seen.
"""

import dataclasses
import json
import math
import types
import typing

from gpu_agent.fault_policy import fault_table as faults
from gpu_agent.fault_policy.fault import LEVELS, Need

VERSION: typing.Final = 1
# Of GPUs; those that are looked after come first.
MOST_GPUS: typing.Final = 64
# Of occurrences that the breaker looks back on, and of faults of jobs for each GPU.
MOST_RECENT: typing.Final = 256
MOST_JOB_FAULTS: typing.Final = 8
MOST_HOLDERS: typing.Final = 16
# Of words that come from a driver, and of what was read and could not be understood.
MOST_WORDS: typing.Final = 200
# Of a file: many times what so much can come to.
MOST_CHARACTERS: typing.Final = 4_000_000


@dataclasses.dataclass
class Streak:
    """Looks in a row that showed the same.

    Attributes:
        bad: what they showed.
        first: time of the first of them, at.
        last: time of the last of them, at.
        counted: time of the last that counted, at: those that come too soon after it do not.
        count: how many counted.
    """

    bad: bool
    first: float
    last: float
    counted: float
    count: int = 1


@dataclasses.dataclass
class Suspicion:
    """What the kernel's log told of a GPU, as long as nothing else has confirmed it.

    Attributes:
        at: when.
        fault: the row's name.
        xid: its number; None where it is none.
        text: the driver's words.
    """

    at: float
    fault: str
    xid: int | None
    text: str


@dataclasses.dataclass
class JobFault:
    """An Xid that a job was told of.

    Attributes:
        wall: when.
        xid: its number.
        containers: those that held the GPU.
    """

    wall: float
    xid: int
    containers: tuple[str, ...]


@dataclasses.dataclass
class Out:
    """What the judge took a GPU out of use for; the attributes but the last four are TakeOut's.

    Attributes:
        need: what the GPU needs, as a number of fault.Need.
        at: when that was last decided; below 0: in an earlier boot.
        seen: whether the GPU was then seen to be out.
        asked: when a test was asked for; None: not since it may pass.
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


@dataclasses.dataclass
class Gpu:
    """All about one GPU.

    Attributes:
        out: why it is out of use, by the judge.
        standing: rows whose condition was there at the last look: only what is new there counts.
        held: those of them that the breaker kept from taking it out.
        met: it was there at a look since boot.
        ecc: uncorrected errors at the last look that told.
        slow: looks at what the hardware slows down; None: nothing.
        suspicion: what the kernel's log told.
        job_faults: of the last 24 h.
        history: when it went out of use, wall, the last five times.
        tested: when tests were last asked for that are limited, wall, by the row's name.
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
    """A GPU that went out of use, or would have.

    Attributes:
        at: when; the last time where it came again.
        cause: what several may have in common.
        uuid: the GPU's.
    """

    at: float
    cause: str
    uuid: str


@dataclasses.dataclass
class Memory:
    """All that the judge remembers.

    Attributes:
        version: of this format.
        at: when the last turn was.
        wall: the same by the wall clock.
        mode: the mode that it was in.
        gpus: by UUID.
        recent: of the last five minutes.
        suspects: causes that the breaker has tripped for.
    """

    version: int = VERSION
    at: float = 0.0
    wall: float = 0.0
    mode: str = ""
    gpus: dict[str, Gpu] = dataclasses.field(default_factory=dict[str, Gpu])
    recent: tuple[Occurrence, ...] = ()
    suspects: tuple[str, ...] = ()

    def as_json(self) -> str:
        """All of it, as `parse` takes it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Memory":
        """What `as_json` told.

        Raises:
            ValueError: it is no such thing; in words, with what was read.
        """
        try:
            if len(text) > MOST_CHARACTERS:
                raise ValueError(f"{len(text)} characters are more than it can have")
            memory = typing.cast("Memory", _taken(cls, json.loads(text), "memory"))
            if memory.version != VERSION:
                raise ValueError(f"version is {memory.version}, not {VERSION}")
            for gpu in memory.gpus.values():
                _check(gpu)
            memory.trim()
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"what the watch remembered can't be used ({error}): {text[:MOST_WORDS]!r}"
            ) from error
        return memory

    def forget_boot(self) -> None:
        """The machine was started anew: what was true since boot is not."""
        self.recent = ()
        for gpu in self.gpus.values():
            gpu.slow, gpu.suspicion, gpu.met = None, None, False
            gpu.standing.pop(faults.HANG.name, None)
            if gpu.out:
                gpu.out.at, gpu.out.asked = -1.0, None

    def forget_decisions(self) -> None:
        """What was decided in another mode was carried out in another way, or not at all."""
        for gpu in self.gpus.values():
            gpu.out, gpu.ecc, gpu.standing, gpu.held = None, None, {}, {}
        self.suspects, self.recent = (), ()

    def trim(self, uuids: tuple[str, ...] = ()) -> None:
        """Keep within the bounds; these GPUs go last."""
        first = [uuid for uuid in self.gpus if uuid in uuids]
        others = [uuid for uuid in self.gpus if uuid not in uuids]
        kept = (*first, *others[-MOST_GPUS:])[: max(MOST_GPUS, len(first))]
        self.gpus = {uuid: self.gpus[uuid] for uuid in self.gpus if uuid in kept}
        self.recent = self.recent[-MOST_RECENT:]


def _check(gpu: Gpu) -> None:
    names = {gpu.out.fault} if gpu.out else set[str]()
    names |= {gpu.suspicion.fault} if gpu.suspicion else set()
    if odd := names - faults.BY_NAME.keys():
        raise ValueError(f"{odd} is no fault")
    if gpu.out and (gpu.out.level not in LEVELS or gpu.out.need not in list(Need)):
        raise ValueError(f"{gpu.out.level!r}, {gpu.out.need} is no level and need")


def _taken(kind: typing.Any, found: object, name: str) -> object:
    """A value of JSON as this type has it; a ValueError if it is none."""
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
    if named.keys() != hints.keys():
        odd = ", ".join(sorted(named.keys() ^ hints.keys()))
        raise ValueError(f"{name} lacks or should not have: {odd:.80}")
    return kind(**{key: _taken(hints[key], one, f"{name}.{key}") for key, one in named.items()})


def _is_time(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False
