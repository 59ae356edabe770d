# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""JSON by the C half of the standard library's json alone, where there is one.

`import json` compiles regular expressions at each start (re, enum, functools): 6 ms on a machine
where bare Python takes 6, and every GPU job waits for it. Its C half is private to CPython; it was
the same from 3.6 to 3.14. Where it is not, json itself takes its place.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def _no_constant(name: str) -> object:
    raise ValueError(f"it has {name}, which JSON lacks")


def _not_json(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON form")


class _Plain:
    """What json.JSONDecoder() tells its scanner."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_no_constant)


_SORTED = _SKIPPING = _NAN = False
try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    # typeshed takes the context for a scanner.
    _scan = make_scanner(_Plain)  # pyright: ignore[reportArgumentType]
    _in_c = make_encoder(
        None, _not_json, encode_basestring_ascii, None, ":", ",", _SORTED, _SKIPPING, _NAN
    )

    def _encode(value: object) -> Iterable[str]:
        return _in_c(value, 0)

except (ImportError, TypeError):
    from json import JSONDecoder, JSONEncoder
    from json.scanner import make_scanner

    _decoder = JSONDecoder(parse_constant=_no_constant)
    _scan = make_scanner(_decoder)  # pyright: ignore[reportArgumentType]
    _encoder = JSONEncoder(separators=(",", ":"), allow_nan=_NAN, default=_not_json)

    def _encode(value: object) -> Iterable[str]:
        return _encoder.iterencode(value)


def loads(content: bytes) -> object:
    """The value of the JSON text `content`.

    Raises:
        ValueError: it is no JSON text in UTF-8.
    """
    text = content.decode().strip(" \t\n\r")
    try:
        value, end = _scan(text, 0)
    except (StopIteration, SystemError) as error:
        # Up to Python 3.11 the C half has no words for a syntax error unless json lends them.
        raise ValueError("it is no JSON") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if end != len(text):
        raise ValueError(f"something follows its JSON value at character {end}")
    return value


def dumps(value: object) -> str:
    """`value` as compact JSON in ASCII.

    Raises:
        ValueError: it holds a number that JSON lacks, or is nested too deeply.
    """
    try:
        return "".join(_encode(value))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
