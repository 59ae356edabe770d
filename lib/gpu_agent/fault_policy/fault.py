# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a row of the table of faults says. Pure: types and their words only."""

import dataclasses
import enum
import typing

from gpu_agent.model.observations import Source


class Action(enum.Enum):
    """What the watch does about a fault."""

    OUT = "takes the GPU out of use"
    HOLD = "gives the GPU to no further job"
    ALL = "gives no GPU to a further job, and leaves the jobs that run"
    TEST = "has the GPU tested when nobody uses it"
    TELL = "tells the job that has the GPU"
    METRIC = "counts it in the metrics"
    OPERATOR = "leaves the GPU's return to the operator"
    STOP = "takes out no further GPU for that cause, and says so in status"


class Sure(enum.Enum):
    """How far a fault can be believed."""

    ONCE = "at once"
    LOOKS = "after three looks in a row, 10 s or more apart"
    LASTING = "after 10 min without a break"
    MISSES = "after two calls in a row that did not return"
    HISTORY = "by what came before"


class Need(enum.IntEnum):
    """What a GPU needs before it can pass a test: the more, the higher."""

    NOTHING = 0
    RESET = 1
    REBOOT = 2
    REPAIR = 3


LEVELS: typing.Final = ("quick", "isolation", "compute", "burn-in", "")
"""Of the self-test, from the least on; each includes those before. Empty: only the operator."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One row of the table.

    Attributes:
        name: unique; in decisions, records and metrics.
        title: what it is, for people.
        sources: who tells; the kernel's log never alone.
        sure: when it is believed.
        action: what follows.
        back: when that is over, in words.
        level: the self-test's level that must pass then; empty: none will do, or none is asked.
        need: what the GPU needs before that.
        remedy: what the operator does; `{uuid}`, `{index}`, `{model}` and `{address}` are the
            GPU's.
        short: what stands in status, before the `:` of a reason.
        words: what a job is told of its GPU; empty: nothing.
        cause: what several GPUs may have in common that have it at once; empty: nothing.
        counted: whether it is one of the five quarantines after which only the operator helps.
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
