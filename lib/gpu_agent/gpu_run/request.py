# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a caller may ask for, taken apart without trust."""

import dataclasses
import json
import typing

from gpu_runtime.json_shape import items, text

MOST: typing.Final = 4096
"""The longest request, in bytes."""
LONGEST_WAIT: typing.Final = 7 * 86400
"""Of GPUs, in seconds; also what stands for no limit."""

_VERSION: typing.Final = 1
_MOST_GPUS: typing.Final = 128
_LONGEST_NAME: typing.Final = 80
_KEYS: typing.Final = {
    *("version", "nonce", "do", "gpus", "named", "any", "timeout", "command"),
}


class BadRequestError(Exception):
    """It is no request that can be followed; the text says why."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What a caller asks for.

    Attributes:
        listing: to be told who has which GPU; all else is for a run.
        gpus: how many GPUs; None: all.
        named: the very ones, by index or UUID; then `gpus` is how many that are.
        any: whether fewer will do, one at least, where not all are free.
        timeout: how long it waits, in seconds; None: as long as tasks do.
        command: it in the caller's words, for people.
    """

    listing: bool = False
    gpus: int | None = 1
    named: tuple[str, ...] = ()
    any: bool = False
    timeout: int | None = None
    command: str = ""


def parse(data: bytes, nonce: str) -> Request:
    """The request in a packet.

    Args:
        data: the packet.
        nonce: what it must have in it.

    Raises:
        BadRequestError: it is none.
    """
    try:
        found: dict[str, typing.Any] = json.loads(data.decode())
        if found.keys() != _KEYS or found["version"] != _VERSION or found["nonce"] != nonce:
            raise BadRequestError("it is none that this version of gpu-run understands")
        do, gpus, timeout = (found[key] for key in ("do", "gpus", "timeout"))
        named = [text(one) for one in items(found["named"])]
        sound = [
            do in ("run", "list"),
            gpus == "all" or _is_number(gpus, 1, _MOST_GPUS),
            found["named"] == named and len(named) <= _MOST_GPUS,
            all(0 < len(one) <= _LONGEST_NAME for one in named),
            isinstance(found["any"], bool) and isinstance(found["command"], str),
            timeout is None or _is_number(timeout, 0, LONGEST_WAIT),
        ]
    # RecursionError: brackets within brackets; AttributeError, TypeError: another shape.
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise BadRequestError("it is no request") from error
    if not all(sound):
        raise BadRequestError("it asks for what there is not")
    names = tuple(dict.fromkeys(named))
    count = len(names) or (None if gpus == "all" else gpus)
    listing = do == "list"
    return Request(listing, count, names, found["any"], timeout, found["command"])


def packed(event: dict[str, object]) -> bytes:
    """A packet for a caller."""
    return json.dumps(event, separators=(",", ":")).encode()


def _is_number(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
