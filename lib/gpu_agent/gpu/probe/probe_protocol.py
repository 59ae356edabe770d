# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The protocol between the GPU health service and the child that asks the drivers: JSON lines.

The child loads a vendor's library, so each of its lines is validated completely.
"""

import collections.abc
import dataclasses
import json
import typing

from gpu_agent.gpu.vendors.collector import Beat, Event, Note, One
from gpu_agent.model.card import Card, Figures

_MOST_TEXT: typing.Final = 300
# As in gpu_agent.gpu.vendors.nvidia.nvml_metrics, which the health service does not load.
_MOST_PIDS: typing.Final = 1024
_MOST_NUMBER: typing.Final = 1 << 64


class GarbledError(Exception):
    """A line that does not follow the protocol."""


@dataclasses.dataclass(frozen=True)
class Begun:
    """The child runs; from now on it may wait for a call into a driver."""


@dataclasses.dataclass(frozen=True)
class End:
    """The end of a poll; the fields are those of gpu_agent.model.observations.Look.

    Attributes:
        scarce: why this poll has no result; or empty.
    """

    missing: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    scarce: str = ""


Said = Begun | Beat | Event | One | End | Note

_KINDS: typing.Final[dict[str, type[Said]]] = {
    "begun": Begun, "beat": Beat, "event": Event, "one": One, "end": End, "note": Note,
}  # fmt: skip
_NAMES: typing.Final = {kind: name for name, kind in _KINDS.items()}
_OPTIONAL_INT: typing.Final = frozenset({
    "busy", "memory_used_mib", "memory_total_mib", "temperature", "sm_clock_mhz", "reasons",
    "ecc_corrected", "ecc_uncorrected", "recovery_action", "drawing",
})  # fmt: skip
_OPTIONAL_NUMBER: typing.Final = frozenset({"power_w", "power_limit_w", "energy_j"})
_OPTIONAL_BOOL: typing.Final = frozenset({"remap_pending", "remap_failed"})


def pack(said: Said) -> bytes:
    """Return a line of the child, without its end."""
    fields = {name: value for name, value in vars(said).items() if value not in (None, "", ())}
    if isinstance(said, One):
        # Empty fields are left out, since they make up most lines.
        fields["figures"] = {
            name: value for name, value in vars(said.figures).items() if value not in (None, "")
        }
    return json.dumps({_NAMES[type(said)]: fields}, separators=(",", ":")).encode()


def unpack(line: bytes, uuids: collections.abc.Container[str]) -> Said:
    """Read a line of the child.

    Args:
        line: without its end.
        uuids: the GPUs that it may name.

    Raises:
        GarbledError: it is not of this protocol.
    """
    try:
        said = json.loads(line)
        ((name, fields),) = said.items()
        kind = _KINDS[name]
        found = _TAKEN[kind](fields) if kind in _TAKEN else kind(**fields)
        _check(found, uuids)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise GarbledError(repr(line[:200])) from error
    return found


def pack_cards(cards: collections.abc.Iterable[Card]) -> bytes:
    """Return the first line to the child: the GPUs that it samples."""
    return json.dumps([[card.uuid, card.pci_address] for card in cards]).encode()


def unpack_cards(line: bytes) -> dict[str, str]:
    """Return the PCI addresses of those GPUs by their UUIDs."""
    return dict(json.loads(line))


def _end(fields: dict[str, typing.Any]) -> End:
    found = End(**fields)
    return dataclasses.replace(found, missing=tuple(found.missing), gone=tuple(found.gone))


def _one(fields: dict[str, typing.Any]) -> One:
    figures = dict(fields["figures"])
    if "pids" in figures:
        figures["pids"] = tuple(figures["pids"])
    return One(fields["uuid"], Figures(**figures))


_TAKEN: typing.Final[dict[type[Said], collections.abc.Callable[..., Said]]] = {
    One: _one, End: _end,
}  # fmt: skip


def _check(said: Said, uuids: collections.abc.Container[str]) -> None:
    """Raise TypeError or ValueError for values of wrong types or sizes."""
    match said:
        case Event():
            _known(said.uuid, uuids)
            _text(said.fault)
            _text(said.text)
            _number(said.xid, int)
        case One():
            _known(said.uuid, uuids)
            _figures(said.figures)
        case End():
            for uuid in (*said.missing, *said.gone):
                _known(uuid, uuids)
            _text(said.scarce)
        case Note():
            _text(said.text)
        case Begun() | Beat():
            pass


def _known(uuid: object, uuids: collections.abc.Container[str]) -> None:
    if not isinstance(uuid, str) or uuid not in uuids:
        raise ValueError(uuid)


def _text(text: object) -> None:
    if not isinstance(text, str) or len(text) > _MOST_TEXT or not (text.isprintable() or not text):
        raise ValueError(text)


def _number(value: object, *kinds: type) -> None:
    if value is None:
        return
    if type(value) not in kinds or not 0 <= typing.cast("float", value) < _MOST_NUMBER:
        raise ValueError(value)


def _figures(figures: Figures) -> None:
    _text(figures.failure)
    for name in _OPTIONAL_INT:
        _number(getattr(figures, name), int)
    for name in _OPTIONAL_NUMBER:
        _number(getattr(figures, name), int, float)
    for name in _OPTIONAL_BOOL:
        if not isinstance(getattr(figures, name), bool | None):
            raise TypeError(name)
    if figures.pids is not None:
        if len(figures.pids) > _MOST_PIDS:
            raise ValueError(len(figures.pids))
        for pid in figures.pids:
            _number(pid, int)
