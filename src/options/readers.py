# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads the value of an option out of Juju's config, whatever the option is about. Pure."""

import collections.abc
import re
import typing

from options.values import OptionError

# Juju's config: option name (with hyphens) to value.
Raw = collections.abc.Mapping[str, object]


def text(raw: Raw, option: str) -> str:
    """Return an option's value without spaces around it; empty if it is not set."""
    value = raw.get(option)
    return "" if value is None else str(value).strip()


def choice(raw: Raw, option: str, allowed: tuple[str, ...]) -> str:
    """Read an option that is one of the values allowed.

    Raises:
        OptionError: it is another value.
    """
    value = text(raw, option)
    if value not in allowed:
        listed = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        raise OptionError(option, value, f"is not allowed: use {listed}")
    return value


def number(raw: Raw, option: str, most: int, least: int = 0) -> int:
    """Read an option that is a whole number from `least` to `most`.

    Raises:
        OptionError: it is not a number, or out of range.
    """
    value = text(raw, option)
    found = whole(value)
    if found is None or not least <= found <= most:
        raise OptionError(option, value, f"is out of range: use {least} to {most}")
    return found


def whole(text: str) -> int | None:
    """Read a whole number of up to nine digits; None if it is not one."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def seconds(text: str, least: str = "0s", most: str = "7d") -> int:
    """Read a duration: days, hours, minutes and seconds, such as `90s`, `1h30m` or `7d`.

    Options and the parameters of actions have this one notation.

    Args:
        text: the duration; `0` is the same as `0s`.
        least: the shortest that is allowed, in the same notation.
        most: the longest.

    Raises:
        ValueError: the text is not such a duration, or out of range. The error's text continues a
            sentence that begins with the name and the value.
    """
    found = _seconds(text)
    if found is None or not (_seconds(least) or 0) <= found <= (_seconds(most) or 0):
        raise ValueError(
            f"is not a duration from {least} to {most}: use one such as 90s, 4m, 2h or 1h30m"
        )
    return found


def _seconds(text: str) -> int | None:
    form = r"(?=.)(?:([0-9]{1,4})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,8})s)?"
    found = re.fullmatch(form, "0s" if text == "0" else text)
    if not found:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def duration(raw: Raw, option: str, least: str = "0s", most: str = "7d") -> int:
    """Read an option that is a duration, in seconds; `seconds` says how it is written.

    Raises:
        OptionError: it is not a duration, or out of range.
    """
    value = text(raw, option)
    try:
        return seconds(value, least, most)
    except ValueError as error:
        raise OptionError(option, value, str(error)) from error


def pattern(raw: Raw, option: str, allowed: str, remedy: str) -> str:
    """Read an option that a regular expression matches as a whole.

    Raises:
        OptionError: it does not match; `remedy` ends the sentence.
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
    """Read the comma-separated items of an option, each checked, in order, without repeats.

    Raises:
        OptionError: `check` refuses one.
    """
    return tuple(dict.fromkeys(check(item) for item in split(text(raw, option))))


def split(text: str) -> list[str]:
    """Split a comma-separated list; empty items are left out."""
    return [item for item in (part.strip() for part in text.split(",")) if item]


def settings(
    raw: Raw,
    option: str,
    known: collections.abc.Mapping[str, collections.abc.Callable[[str], typing.Any]],
    repeatable: collections.abc.Container[str] = (),
) -> dict[str, list[typing.Any]]:
    """Read an option that is a comma-separated list of NAME=VALUE.

    Args:
        raw: Juju's config.
        option: the option.
        known: by name, the check of the value, which returns the form that is used. The text of
            its ValueError continues a sentence that begins with NAME=VALUE.
        repeatable: the names that may be given more than once.

    Returns:
        The values of each name that is given.

    Raises:
        OptionError: an item is not NAME=VALUE, a name is unknown or repeated, or a value cannot
            be used.
    """
    found: dict[str, list[typing.Any]] = {}
    for item in split(text(raw, option)):
        name, equals, value = (part.strip() for part in item.partition("="))
        if name not in known:
            raise OptionError(option, item, f"is not a known setting: use {', '.join(known)}")
        if not equals:
            raise OptionError(option, item, f"has no value: use {name}=VALUE")
        if name in found and name not in repeatable:
            raise OptionError(option, item, f"repeats {name}: give it once")
        try:
            found.setdefault(name, []).append(known[name](value))
        except ValueError as error:
            raise OptionError(option, item, str(error)) from error
    return found


def in_range(most: int, unit: str = "") -> collections.abc.Callable[[str], int]:
    """Return a check for `settings`: a whole number from 1 to `most`, with its unit behind it."""

    def check(value: str) -> int:
        found = whole(value.removesuffix(unit)) if value.endswith(unit) else None
        if not found or found > most:
            raise ValueError(f"is out of range: use 1{unit} to {most}{unit}")
        return found

    return check


def port(raw: Raw, option: str, taken: tuple[int, ...], least: int) -> int:
    """Read an option that is a TCP port, at least `least`.

    Raises:
        OptionError: it is not a port, or one of those that are taken.
    """
    value = text(raw, option)
    found = whole(value)
    if found is None or not least <= found < 65536 or found in taken:
        listed = f" except {', '.join(map(str, taken))}" if taken else ""
        raise OptionError(option, value, f"cannot be used: use {least} to 65535{listed}")
    return found
