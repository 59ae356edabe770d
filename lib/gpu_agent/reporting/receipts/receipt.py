# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The format of a receipt: one lease, one line of JSON. Frozen types and their parser.

An unknown value is left out of the line, and is None or empty here; it never becomes a zero. The
parser trusts no line.
"""

import collections.abc
import dataclasses
import json
import math
import re
import typing

SCHEMA: typing.Final = 1
"""The version of the format; the parser rejects other versions."""

OUTCOMES: typing.Final = ("ended", "killed", "gpu failed", "lost")
KINDS: typing.Final = ("", "container", "job", "runner")
LONGEST_LINE: typing.Final = 1 << 16
"""In bytes. A receipt with 16 GPUs and all figures takes a tenth of it."""

_MOST_GPUS: typing.Final = 64
_MOST_CODES: typing.Final = 64
_LONGEST_TEXT: typing.Final = 200
_LARGEST: typing.Final = 1e15
_TIME: typing.Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z")


class UnsoundError(ValueError):
    """A line is not a receipt; the text says why."""


@dataclasses.dataclass(frozen=True)
class GpuReceipt:
    """One GPU of a lease. None: the value is unknown, or other leases shared the GPU.

    Attributes:
        uuid: the GPU's id.
        index: its index, as in `GPU 1`.
        model: without the vendor's name, such as `A100-SXM4-80GB`.
        devices: ids of the MIG devices that the lease had; empty: it had the whole GPU.
        watched_s: seconds on which the figures are based; unknown if other leases shared the GPU,
            because no figure is of one lease alone then.
        used_s: seconds of these in which a process was on the GPU, or a CUDA kernel ran.
        busy_percent: share of the watched time in which a CUDA kernel ran.
        memory_peak_mib: the largest memory use that a poll found.
        memory_total_mib: the GPU's memory.
        energy_j: energy drawn, in joules.
        throttled_s: seconds with a lower clock, by the cause: `power cap`, `thermal`,
            `power brake`, `hardware`.
        xids: numbers of the Xids that the driver reported, each once.
        ecc_corrected: memory errors that ECC corrected.
        ecc_uncorrected: memory errors that ECC could not correct.
        failed: how the GPU failed, one line; empty: it did not fail.
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
    """The build of a step's container, as the CI system names it. Each field may be empty.

    Attributes:
        team: the team's name.
        pipeline: the pipeline's name; empty for a build without a pipeline.
        job: the job's name.
        build: the build's name, such as `42`.
    """

    team: str = ""
    pipeline: str = ""
    job: str = ""
    build: str = ""


@dataclasses.dataclass(frozen=True)
class Receipt:
    """One finished lease.

    Attributes:
        began: when the GPUs were given, UTC, as `2026-11-23T14:05:06.789Z`.
        ended: when the lease ended, UTC; with the outcome `lost`, when it was last seen.
        container: the container's id, or the systemd unit's name.
        held_s: seconds between the two.
        outcome: `ended`; `killed`: by the operator or a rule of this worker; `gpu failed`: the
            hardware is to blame; `lost`: the GPU health service did not see the end.
        gpus: the GPUs of the lease.
        reason: why it was killed, or how the first of its GPUs failed; one line.
        waited_s: seconds that it waited for its GPUs.
        team: the team's name; if the names are not known, all four are empty.
        pipeline: the pipeline's name; empty for a build without a pipeline.
        job: the job's name.
        build: the build's name, such as `42`.
        kind: `container`: of an engine; `job`: a command under gpu-run; `runner` of a CI service;
            empty: a CI step.
        who: for a container or command, its name from the engine; for a runner, its job.
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
        """The key of the lease; no other lease has it."""
        return self.container, self.began

    def as_line(self) -> str:
        """Return it as one line of JSON, without the newline."""
        found = {"schema": SCHEMA, **_without_unknown(self)}
        found["gpus"] = [_without_unknown(gpu) for gpu in self.gpus]
        return json.dumps(found, separators=(",", ":"))


def parse(line: str) -> Receipt:
    """Parse the receipt in a line.

    Raises:
        UnsoundError: the line is not a receipt.
    """
    if len(line) > LONGEST_LINE:
        raise UnsoundError("it is too long")
    try:
        found: object = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise UnsoundError(f"it is not JSON: {error}") from error
    entry = table(found)
    if entry.pop("schema", None) != SCHEMA:
        raise UnsoundError(f"its schema is not {SCHEMA}")
    gpus = items(entry.pop("gpus", None))
    if not 0 < len(gpus) <= _MOST_GPUS:
        raise UnsoundError("gpus is not a list of GPUs")
    receipt = _made(Receipt, {**entry, "gpus": tuple(map(_gpu, gpus))})
    if receipt.kind not in KINDS:
        raise UnsoundError(f"kind {receipt.kind!r} is not known")
    if receipt.outcome not in OUTCOMES:
        raise UnsoundError(f"outcome {receipt.outcome!r} is not known")
    if not _TIME.fullmatch(receipt.began) or not _TIME.fullmatch(receipt.ended):
        raise UnsoundError("began and ended must be times in UTC")
    return receipt


def table(found: object) -> dict[str, object]:
    """Return a JSON object as a dict.

    Raises:
        UnsoundError: the value is not an object.
    """
    if not isinstance(found, dict):
        raise UnsoundError("it is not an object")
    return dict(typing.cast("dict[str, object]", found))


def items(found: object) -> list[object]:
    """Return a JSON list.

    Raises:
        UnsoundError: the value is not a list.
    """
    if not isinstance(found, list):
        raise UnsoundError("it is not a list")
    return typing.cast("list[object]", found)


def is_text(value: object) -> bool:
    """Return whether a value is a printable line that is not too long."""
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and value.isprintable()


def is_number(value: object) -> bool:
    """Return whether a value is a number in the range of a GPU's figures and their sums."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= _LARGEST
        and math.isfinite(value)
    )


def cut(text: str) -> str:
    """Return a foreign text as a receipt may have it: printable, and not too long."""
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
        raise UnsoundError(f"{cut(name)!r} is not a field")
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
    raise ValueError(f"{name} is not a number")


def _without_unknown(found: Receipt | GpuReceipt) -> dict[str, object]:
    """Return the known fields; figures are rounded to the thousandth."""
    return {
        field.name: round(value, 3) if isinstance(value, float) else value
        for field in dataclasses.fields(found)
        if (value := getattr(found, field.name)) not in (None, "", ())
    }
