# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Figures of the CI system on this machine, for metrics: a file that its daemon writes. Pure.

The agent knows no CI system. It publishes what it finds in the file.
"""

import collections.abc
import dataclasses
import json
import math
import typing

VERSION: typing.Final = 1


@dataclasses.dataclass(frozen=True)
class Requests:
    """How many requests the CI service's API allows, as it said last.

    Attributes:
        limit: in a period, such as an hour.
        left: in this period.
        reset: when the next period begins, in seconds since 1970; 0: it does not say.
    """

    limit: int
    left: int
    reset: int = 0


@dataclasses.dataclass(frozen=True)
class CiFigures:
    """The figures of one moment.

    Attributes:
        at: when it was, in seconds since boot.
        runners: the number of this machine's runners by their state.
        waiting: the number of jobs that wait in the service's queue; None: not known.
        fault: whether the service cannot be asked, or a runner cannot begin.
        requests: None: the service has no limit, or was not asked yet.
    """

    at: float
    runners: collections.abc.Mapping[str, int]
    waiting: int | None
    fault: bool
    requests: Requests | None = None


def as_text(figures: CiFigures) -> str:
    """Return the content of the file."""
    return json.dumps({"version": VERSION, **dataclasses.asdict(figures)}) + "\n"


def parse(text: str) -> CiFigures:
    """Read the text of `as_text`.

    Raises:
        ValueError: it has no figures, or those of another version.
    """
    try:
        found: dict[str, typing.Any] = json.loads(text)
        fault: object = found["fault"]
        if found.pop("version") != VERSION:
            raise ValueError("another version")
        requests = found.pop("requests")
        figures = CiFigures(**found, requests=requests and Requests(**requests))
        numbers = [figures.at, *figures.runners.values(), figures.waiting or 0]
        if figures.requests:
            numbers += dataclasses.astuple(figures.requests)
        if not all(map(math.isfinite, numbers)) or not isinstance(fault, bool):
            raise ValueError("no number")
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"no figures of a CI system: {error}") from error
    return figures
