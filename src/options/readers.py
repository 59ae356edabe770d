# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How an option's value is read out of Juju's config, whatever it is about. Pure."""

import collections.abc
import re
import typing

from ci.concourse.upstream import TAKEN_PORTS
from options.values import OptionError

# Juju's config: option name (with hyphens) to value.
Raw = collections.abc.Mapping[str, object]
# What makes a field of it; it may raise an OptionError.
Readers = collections.abc.Mapping[str, collections.abc.Callable[[Raw], typing.Any]]


def text(raw: Raw, option: str) -> str:
    """An option's value without spaces around it; empty where it is not set."""
    value = raw.get(option)
    return "" if value is None else str(value).strip()


def choice(raw: Raw, option: str, allowed: tuple[str, ...]) -> str:
    """A value that must be one of those allowed.

    Raises:
        OptionError: it is another.
    """
    value = text(raw, option)
    if value not in allowed:
        raise OptionError(option, value, f"is unknown: use {', '.join(allowed)}")
    return value


def number(raw: Raw, option: str, most: int, least: int = 0) -> int:
    """A whole number from `least` to `most`.

    Raises:
        OptionError: it is none, or out of that range.
    """
    said = text(raw, option)
    found = int(said) if re.fullmatch(r"[0-9]{1,9}", said) else most + 1
    if not least <= found <= most:
        raise OptionError(option, said, f"is out of range: use {least} to {most}")
    return found


def duration(raw: Raw, option: str, most_hours: int) -> int:
    """A time such as `2h`, `90m`, `1h30m` or `0`, in seconds.

    Raises:
        OptionError: it is none, or too long.
    """
    said = text(raw, option)
    found = re.fullmatch(r"0|(?=.)(?:([0-9]{1,4})h)?(?:([0-9]{1,5})m)?", said)
    hours, minutes = (int(part or 0) for part in found.groups()) if found else (most_hours, 1)
    if 60 * hours + minutes > 60 * most_hours:
        remedy = f"is no time up to {most_hours}h: use one such as 2h, 1h30m, 90m or 0"
        raise OptionError(option, said, remedy)
    return 3600 * hours + 60 * minutes


def pattern(raw: Raw, option: str, allowed: str, remedy: str) -> str:
    """A value that a regular expression fits as a whole.

    Raises:
        OptionError: it does not; `remedy` is the sentence's end.
    """
    value = text(raw, option)
    if not re.fullmatch(allowed, value):
        raise OptionError(option, value, remedy)
    return value


def items(
    raw: Raw,
    option: str,
    check: collections.abc.Callable[[str], str],
) -> tuple[str, ...]:
    """The comma-separated items of an option, each checked, in order, without repeats.

    Raises:
        OptionError: `check` refuses one.
    """
    found: dict[str, None] = {}
    for item in (part.strip() for part in text(raw, option).split(",")):
        if item:
            found[check(item)] = None
    return tuple(found)


def port(raw: Raw, option: str, others: tuple[int, ...], least: int) -> int:
    """A TCP port, at least `least`, that neither Concourse nor `others` use.

    Raises:
        OptionError: it is none, or one of theirs.
    """
    said, taken = text(raw, option), (*TAKEN_PORTS, *others)
    found = int(said) if re.fullmatch(r"[0-9]{1,5}", said) else -1
    if not least <= found < 65536 or found in taken:
        listed = ", ".join(map(str, taken))
        raise OptionError(option, said, f"can't be used: use {least} to 65535 but not {listed}")
    return found
