# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The fields of a row in the table of faults. Pure: types and their texts only."""

import dataclasses
import enum
import typing

from gpu_agent.model.observations import Source


class Action(enum.Enum):
    """What the GPU health service does about a fault."""

    OUT = "quarantines the GPU"
    HOLD = "keeps the GPU from new tasks"
    ALL = "keeps all GPUs from new tasks; running jobs continue"
    TEST = "requests a self-test when the GPU is idle"
    TELL = "writes a line into the job's log"
    METRIC = "counts it in the metrics"
    OPERATOR = "leaves the return of the GPU to an operator"
    STOP = "quarantines no further GPU for that cause and reports it in status"


class Sure(enum.Enum):
    """When a fault counts as certain."""

    ONCE = "at once"
    LOOKS = "after three polls in a row, at least 10 s apart"
    LASTING = "after 10 min without interruption"
    MISSES = "after two calls in a row that did not return"
    HISTORY = "after earlier faults"


class Need(enum.IntEnum):
    """What a GPU needs before it can pass a test, from least to most."""

    NOTHING = 0
    RESET = 1
    REBOOT = 2
    REPAIR = 3


LEVELS: typing.Final = ("quick", "isolation", "compute", "burn-in", "")
"""Levels of the self-test; each includes those before. Empty: only an operator returns a GPU."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One row of the table.

    Attributes:
        name: unique code, used in decisions, records and metrics.
        title: meaning, for people.
        sources: where it is seen; the kernel log never decides alone.
        sure: when it counts as certain.
        action: what follows.
        back: when it is over, for people.
        level: the level of the self-test that returns the GPU; empty: an operator returns it, or
            no test is needed.
        need: what the GPU needs before that test can pass.
        remedy: what the operator does; `{uuid}`, `{index}`, `{model}` and `{address}` stand for
            the GPU's.
        short: text in status, before the `:` of a reason.
        words: cause in the job's log; empty: no line.
        cause: common cause if several GPUs have the fault at once; empty: none.
        counted: whether it counts for the rule that an operator returns a GPU after the fifth
            quarantine.
    """

    name: str
    title: str
    sources: tuple[Source, ...]
    sure: Sure
    action: Action
    back: str
    level: str = ""
    need: Need = Need.NOTHING
    remedy: str = ""
    short: str = ""
    words: str = ""
    cause: str = ""
    counted: bool = False
