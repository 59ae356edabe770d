# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Add or remove a member in the text of a JSON object, and keep every other character. Pure."""

import json
import re
import typing

_SPACE: typing.Final = re.compile(r"[ \t\r\n]*")
_DECODER: typing.Final = json.JSONDecoder()


class Member(typing.NamedTuple):
    """A member of an object, as positions in its text: of its name, its value and its end."""

    name: str
    begin: int
    value: int
    end: int


def members(text: str, begin: int = 0) -> list[Member]:
    """Return the members of the object that begins with the first `{` after `begin`.

    The text must be valid JSON.
    """
    found: list[Member] = []
    place = _skip(text, _skip(text, begin) + 1)
    while text[place] != "}":
        name, end = _DECODER.raw_decode(text, place)
        value = _skip(text, _skip(text, end) + 1)
        _, end = _DECODER.raw_decode(text, value)
        found.append(Member(name, place, value, end))
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return found


def with_member(text: str, begin: int, name: str, value: object) -> str:
    """Return `text` with one more member at the end of the object that begins there.

    Its layout is that of the member before, so that without_member restores the text.
    """
    there = members(text, begin)
    opened = _skip(text, begin) + 1
    said = f"{json.dumps(name)}: {json.dumps(value)}"
    if there:
        last = there[-1]
        before = there[-2].end if len(there) > 1 else opened
        gap = text[before : last.begin].partition(",")[2] if len(there) > 1 else (
            text[opened : last.begin]
        )  # fmt: skip
        return f"{text[: last.end]},{gap}{said}{text[last.end :]}"
    return f"{text[:opened]}{said}{text[opened:]}"


def without_member(text: str, begin: int, name: str) -> str:
    """Return `text` without that member of the object that begins there."""
    there = members(text, begin)
    for number, one in enumerate(there):
        if one.name == name:
            if number:
                return text[: there[number - 1].end] + text[one.end :]
            if len(there) > 1:
                return text[: one.begin] + text[there[1].begin :]
            return text[: one.begin] + text[one.end :]
    return text


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place
