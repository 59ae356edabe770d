# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read the untrusted request of a caller."""

import dataclasses
import json
import typing

from gpu_runtime.json_shape import items, text
from gpu_runtime.refusal import Refused

MOST: typing.Final = 4096
"""The longest request, in bytes."""
LONGEST_WAIT: typing.Final = 7 * 86400
"""The longest wait for GPUs, in seconds."""

_VERSION: typing.Final = 1
_MOST_GPUS: typing.Final = 128
_LONGEST_NAME: typing.Final = 80
_KEYS: typing.Final = {
    *("version", "nonce", "do", "gpus", "named", "any", "timeout", "command"),
}


@dataclasses.dataclass(frozen=True)
class Request:
    """A caller's request.

    Attributes:
        listing: whether it requests the list of GPUs; the other attributes are for a run.
        gpus: the number of GPUs; None: all.
        named: particular GPUs, by index or UUID; then `gpus` is their number.
        any: whether fewer GPUs are enough, at least one, if not all are free.
        timeout: the longest wait, in seconds; None: as for tasks.
        command: the command's name, for people.
    """

    listing: bool = False
    gpus: int | None = 1
    named: tuple[str, ...] = ()
    any: bool = False
    timeout: int | None = None
    command: str = ""


def parse(data: bytes, nonce: str) -> Request:
    """Return the request in a packet.

    Args:
        data: the packet.
        nonce: the nonce that it must contain.

    Raises:
        Refused: it is not a valid request.
    """
    try:
        found: dict[str, typing.Any] = json.loads(data.decode())
        if found.keys() != _KEYS or found["version"] != _VERSION or found["nonce"] != nonce:
            raise Refused(
                "request-invalid",
                "this version of the gpu-run service does not understand the request",
            )
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
    # RecursionError: nested brackets; AttributeError, TypeError: another type.
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise Refused("request-invalid", "the request is not a JSON object") from error
    if not all(sound):
        raise Refused("request-invalid", "the request has a value that is not allowed")
    names = tuple(dict.fromkeys(named))
    count = len(names) or (None if gpus == "all" else gpus)
    listing = do == "list"
    return Request(listing, count, names, found["any"], timeout, found["command"])


def refused(refusal: Refused) -> dict[str, object]:
    """The event that answers a request with a refusal."""
    return {"event": "refused", "code": refusal.code, "text": str(refusal)}


def packed(event: dict[str, object]) -> bytes:
    """Return the packet of an event for a caller."""
    return json.dumps(event, separators=(",", ":")).encode()


def _is_number(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
