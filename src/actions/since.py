# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read the parameter `since` of actions: a duration back from now, or a date."""

import datetime
import re
import typing

from options import readers

DEFAULT: typing.Final = "7d"

_MOST: typing.Final = "9999d"
_DATE: typing.Final = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?Z?)?")


class SinceError(Exception):
    """The parameter is not a time in the past; the text says what is allowed."""


def begin(since: str, now: datetime.datetime) -> str:
    """Return the moment that `since` means, UTC, such as `2026-11-23T14:05:00Z`.

    Args:
        since: the parameter.
        now: the time, with its zone.

    Raises:
        SinceError: `since` is not a duration or a date, or it is in the future.
    """
    now = now.astimezone(datetime.timezone.utc)
    try:
        if _DATE.fullmatch(since):
            parsed = datetime.datetime.fromisoformat(since.removesuffix("Z"))
            moment = parsed.replace(tzinfo=datetime.timezone.utc)
        else:
            moment = now - datetime.timedelta(seconds=readers.seconds(since, "1s", _MOST))
    except (ValueError, OverflowError) as error:
        raise SinceError(
            f"since {since[:100]!r} is not a time; allowed: a duration such as 90m, 24h or 7d, or "
            "a date in UTC, such as 2026-11-23 or 2026-11-23T14:05"
        ) from error
    if moment > now:
        raise SinceError(
            f"since {since!r} is in the future; allowed: a time before {now:%FT%H:%MZ}"
        )
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
