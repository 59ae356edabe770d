# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""JSON by the C half of the standard library's json alone.

`import json` compiles regular expressions at each start (re, enum, functools): 6 ms on a machine
where bare Python takes 6, and every GPU job waits for it. Its C half is the same in CPython 3.6 to
3.14.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner


class _Plain:
    """What json.JSONDecoder() tells its scanner."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int

    @staticmethod
    def parse_constant(name: str) -> object:
        raise ValueError(f"it has {name}, which JSON lacks")


def _not_json(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON form")


# typeshed takes the context for a scanner.
_scan = make_scanner(_Plain)  # pyright: ignore[reportArgumentType]
_SORTED = _SKIPPING = _NAN = False
_encode = make_encoder(
    None, _not_json, encode_basestring_ascii, None, ":", ",", _SORTED, _SKIPPING, _NAN
)


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
        return "".join(_encode(value, 0))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
