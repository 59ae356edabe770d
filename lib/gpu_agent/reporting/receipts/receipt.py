# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The form of a receipt: one lease, one line of JSON. Frozen types, and what reads them back.

What is not known is left out of the line, and is None or empty here: a figure that is missing is
never a zero. Lines are read as if a stranger had written them.
"""

import collections.abc
import dataclasses
import json
import math
import re
import typing

SCHEMA: typing.Final = 1
"""The version of the form; a reader refuses a line of another one."""

OUTCOMES: typing.Final = ("ended", "killed", "gpu failed", "lost")
KINDS: typing.Final = ("", "container", "job")
LONGEST_LINE: typing.Final = 1 << 16
"""In bytes. 16 GPUs with all their figures take a tenth of it."""

_MOST_GPUS: typing.Final = 64
_MOST_CODES: typing.Final = 64
_LONGEST_TEXT: typing.Final = 200
_LARGEST: typing.Final = 1e15
_TIME: typing.Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z")


class UnsoundError(ValueError):
    """A line is no receipt; the text says why."""


@dataclasses.dataclass(frozen=True)
class GpuReceipt:
    """What one GPU did for a lease. None stands for what can't be told, or is not its alone.

    Attributes:
        uuid: the GPU's id.
        index: the number that people know it by.
        model: without the vendor's name, such as `A100-SXM4-80GB`.
        devices: ids of the MIG devices that the lease had of it; empty: it had all of the GPU.
        watched_s: seconds that the figures rest on; not known where others had a part of the GPU,
            since no figure can be told of this lease alone then.
        used_s: seconds of those in which a process was on it or a kernel ran.
        busy_percent: how much of the time that was watched a kernel ran.
        memory_peak_mib: the most that was taken at one look.
        memory_total_mib: all that it has.
        energy_j: what it drew.
        throttled_s: seconds with a lower clock, by the cause: `power cap`, `thermal`,
            `power brake`, `hardware`.
        xids: numbers of the Xids that its driver told, each once.
        ecc_corrected: errors of its memory that ECC corrected.
        ecc_uncorrected: those that it could not correct.
        failed: how it failed, one line; empty: it did not.
    """

    uuid: str
    index: int | None = None
    model: str = ""
    devices: tuple[str, ...] = ()
    watched_s: float | None = None
    used_s: float | None = None
    busy_percent: float | None = None
    memory_peak_mib: int | None = None
    memory_total_mib: int | None = None
    energy_j: float | None = None
    throttled_s: collections.abc.Mapping[str, float] | None = None
    xids: tuple[int, ...] = ()
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    failed: str = ""


@dataclasses.dataclass(frozen=True)
class Names:
    """Whose step a container is, as Concourse's web has it. Each may be empty.

    Attributes:
        team: of the pipeline.
        pipeline: its name; empty for a build without one.
        job: its name.
        build: its name, such as `42`.
    """

    team: str = ""
    pipeline: str = ""
    job: str = ""
    build: str = ""


@dataclasses.dataclass(frozen=True)
class Receipt:
    """One lease that is over.

    Attributes:
        began: when the GPUs were given, UTC, as `2026-11-23T14:05:06.789Z`.
        ended: when the lease was over, UTC; with the outcome `lost` when it was last seen.
        container: the container's id.
        held_s: seconds between the two.
        outcome: `ended`; `killed`, by the operator or a rule of this worker; `gpu failed`, so
            that the hardware is to blame; `lost`: the watch did not see the end.
        gpus: what it had.
        reason: why it was killed, or how the first of its GPUs failed; one line.
        waited_s: seconds that it waited for its GPUs.
        team: of the pipeline; empty where the names are not known, as all four are then.
        pipeline: its name; empty for a build without one.
        job: its name.
        build: its name, such as `42`.
        kind: `container`, of an engine; `job`, a unit of systemd's; empty: a step's container.
        who: of these two, what its engine calls it.
    """

    began: str
    ended: str
    container: str
    held_s: float
    outcome: str
    gpus: tuple[GpuReceipt, ...]
    reason: str = ""
    waited_s: float | None = None
    team: str = ""
    pipeline: str = ""
    job: str = ""
    build: str = ""
    kind: str = ""
    who: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What no other lease has."""
        return self.container, self.began

    def as_line(self) -> str:
        """It as one line of JSON, without the line's end."""
        found = {"schema": SCHEMA, **_without_unknown(self)}
        found["gpus"] = [_without_unknown(gpu) for gpu in self.gpus]
        return json.dumps(found, separators=(",", ":"))


def parse(line: str) -> Receipt:
    """The receipt in a line.

    Raises:
        UnsoundError: it is none.
    """
    if len(line) > LONGEST_LINE:
        raise UnsoundError("it is too long")
    try:
        found: object = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise UnsoundError(f"it is no JSON: {error}") from error
    entry = table(found)
    if entry.pop("schema", None) != SCHEMA:
        raise UnsoundError(f"its schema is not {SCHEMA}")
    gpus = items(entry.pop("gpus", None))
    if not 0 < len(gpus) <= _MOST_GPUS:
        raise UnsoundError("gpus is no list of GPUs")
    receipt = _made(Receipt, {**entry, "gpus": tuple(map(_gpu, gpus))})
    if receipt.kind not in KINDS:
        raise UnsoundError(f"kind {receipt.kind!r} is not known")
    if receipt.outcome not in OUTCOMES:
        raise UnsoundError(f"outcome {receipt.outcome!r} is not known")
    if not _TIME.fullmatch(receipt.began) or not _TIME.fullmatch(receipt.ended):
        raise UnsoundError("began and ended must be times in UTC")
    return receipt


def table(found: object) -> dict[str, object]:
    """An object of JSON.

    Raises:
        UnsoundError: it is none.
    """
    if not isinstance(found, dict):
        raise UnsoundError("it is no object")
    return dict(typing.cast("dict[str, object]", found))


def items(found: object) -> list[object]:
    """A list of JSON.

    Raises:
        UnsoundError: it is none.
    """
    if not isinstance(found, list):
        raise UnsoundError("it is no list")
    return typing.cast("list[object]", found)


def is_text(value: object) -> bool:
    """Whether a value is a printable line of a length that fits."""
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and value.isprintable()


def is_number(value: object) -> bool:
    """Whether a value is a number that a sum or a difference of a GPU's figures can be."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= _LARGEST
        and math.isfinite(value)
    )


def cut(text: str) -> str:
    """A text that somebody else wrote, as a receipt may have it: printable, and not too long."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= _LONGEST_TEXT else f"{shown[: _LONGEST_TEXT - 3]}..."


def _gpu(found: object) -> GpuReceipt:
    entry = table(found)
    for name in ("devices", "xids"):
        if name in entry:
            entry[name] = tuple(items(entry[name]))
    return _made(GpuReceipt, entry)


_Made = typing.TypeVar("_Made", Receipt, GpuReceipt)


def _is_whole(value: object) -> bool:
    return is_number(value) and isinstance(value, int)


def _is_seconds(value: object) -> bool:
    return all(is_text(name) and is_number(each) for name, each in table(value).items())


_SOUND: typing.Final[dict[str, collections.abc.Callable[[typing.Any], bool]]] = {
    "str": is_text,
    "int": _is_whole,
    "float": is_number,
    "devices": lambda value: len(value) <= _MOST_GPUS and all(map(is_text, value)),
    "xids": lambda value: len(value) <= _MOST_CODES and all(map(_is_whole, value)),
    "throttled_s": _is_seconds,
    "gpus": bool,
}


def _made(kind: type[_Made], entry: dict[str, object]) -> _Made:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in entry.keys() - fields.keys():
        raise UnsoundError(f"{cut(name)!r} is no field of it")
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING
        if name not in entry:
            if needed:
                raise UnsoundError(f"it has no {name}")
            continue
        kind_of = str(getattr(field.type, "__name__", field.type)).partition(" ")[0]
        if not _SOUND[name if name in _SOUND else kind_of](entry[name]):
            raise UnsoundError(f"{name} can't be {cut(repr(entry[name]))}")
    return kind(**typing.cast("dict[str, typing.Any]", entry))


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _without_unknown(found: Receipt | GpuReceipt) -> dict[str, object]:
    """The fields of one that are known; figures to the thousandth."""
    return {
        field.name: round(value, 3) if isinstance(value, float) else value
        for field in dataclasses.fields(found)
        if (value := getattr(found, field.name)) not in (None, "", ())
    }
