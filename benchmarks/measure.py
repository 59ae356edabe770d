# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Interleaved measurements, their medians, and ratios between them."""

import dataclasses
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Times = dict[str, float]


class Failed(Exception):
    """A call that had to succeed did not."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
        n: measurements of each arm.
        chance: decides the order of the arms.
    """

    n: int
    chance: random.Random


@dataclasses.dataclass(frozen=True)
class Ceiling:
    """A figure that may not be higher than it was promised to be."""

    what: str
    value: float
    ceiling: float
    unit: str = ""

    @property
    def holds(self) -> bool:
        return self.value <= self.ceiling


@dataclasses.dataclass
class Report:
    """What one benchmark found: paragraphs and tables in Markdown, and the figures promised."""

    title: str
    blocks: list[str] = dataclasses.field(default_factory=list)
    ceilings: list[Ceiling] = dataclasses.field(default_factory=list)


def begun(argv: Sequence[object], environment: Mapping[str, str]) -> int:
    """Process id of `argv`, just started; stdin, stdout and stderr are /dev/null."""
    words = [str(word) for word in argv]
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    return os.posix_spawn(words[0], words, environment, file_actions=null)


def spawned(
    argv: Sequence[object], environment: Mapping[str, str], log: Path | None = None
) -> float:
    """Milliseconds from starting `argv` to its end.

    Raises:
        Failed: it did not exit with 0; what `log` holds says why.
    """
    began = time.perf_counter()
    _, status = os.waitpid(begun(argv, environment), 0)
    took = (time.perf_counter() - began) * 1000
    if status:
        said = log.read_text() if log and log.exists() else ""
        raise Failed(f"{argv} ended with {os.waitstatus_to_exitcode(status)}: {said}")
    return took


class Samples:
    """Milliseconds by call and arm, in the order of the rounds."""

    def __init__(self) -> None:
        self.times: dict[tuple[str, str], list[float]] = {}

    def add(self, arm: str, times: Times) -> None:
        for call, took in times.items():
            self.times.setdefault((call, arm), []).append(took)

    def pool(self, call: str, arms: Sequence[str], name: str) -> None:
        """Make one arm `name` of several that do the same in this call."""
        self.times[call, name] = [took for arm in arms for took in self.times[call, arm]]

    def median(self, call: str, arm: str) -> float:
        return statistics.median(self.times[call, arm])

    def ratio(self, call: str, arm: str, baseline: str) -> float:
        """Ratio of the medians."""
        return self.median(call, arm) / self.median(call, baseline)

    def table(self, heading: str, calls: Sequence[str], arms: Sequence[str]) -> str:
        """A row a call; the first arm is the baseline, the others' ratios are to it.

        In brackets the 10th and 90th percentile, for a ratio those of the rounds' own ratios.
        """
        lines = [f"| {heading} | {arms[0]}, ms | {' | '.join(arms[1:])} |"]
        lines.append("|---" * (len(arms) + 1) + "|")
        for call in calls:
            base = self.times[call, arms[0]]
            cells = [f"{statistics.median(base):.1f} ({spread(base, '.1f')})"]
            for arm in arms[1:]:
                ratios = [a / b for a, b in zip(self.times[call, arm], base, strict=True)]
                ratio = self.ratio(call, arm, arms[0])
                cells.append(f"**{ratio:.2f}** ({spread(ratios, '.2f')})")
            lines.append(f"| {call} | {' | '.join(cells)} |")
        return "\n".join(lines)


def interleaved(arms: Mapping[str, Callable[[], Times]], options: Options) -> Samples:
    """Run every arm once a round, in random order; the first round only warms caches up."""
    samples = Samples()
    for number in range(options.n + 1):
        for arm in options.chance.sample(list(arms), len(arms)):
            times = arms[arm]()
            if number:
                samples.add(arm, times)
    return samples


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(values: Sequence[float], form: str) -> str:
    return f"{percentile(values, 10):{form}}-{percentile(values, 90):{form}}"
