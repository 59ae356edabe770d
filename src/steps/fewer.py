# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A worker that has lost GPUs says so to Concourse before the self-test, which takes its time.

What is left was tested together with what is gone, and no task may come here for that. What came
is tested first; until then status alone tells of it.
"""

import collections.abc

from ci.concourse.plan.model import WorkerPlan
from ci.concourse.worker import worker
from lifecycle import drain
from lifecycle import part_runner as attempts
from options.part import Part
from plan import gpus
from plan.labels import NO_GPU_USABLE
from plan.model import Plan
from plan.state import UnitState


def ensure(
    state: UnitState, wanted: Plan, progress: collections.abc.Callable[[str], None]
) -> UnitState:
    """Have the worker offer what is left, where GPUs that tasks were given are gone.

    Status says at once which came and went.

    Returns:
        The state, with what failed.
    """
    said = gpus.change(state, wanted.choice)
    if said:
        progress(said)
    left = {gpu.uuid for gpu in wanted.choice.gpus}
    fewer = bool(left) and left < {*state.handed_out} and not drain.keeps_down()
    # Where all were gone, what is here now has come.
    if fewer and isinstance(wanted.worker, WorkerPlan) and not worker.has_tag(NO_GPU_USABLE):

        def say(line: str) -> None:
            progress(f"{said}; {line}")

        _, state = attempts.make(state, Part.WORKER, worker.apply, wanted.worker, say)
    return state
