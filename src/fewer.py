# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A worker that has lost GPUs says so to Concourse before the self-test, which takes its time.

What is left was tested together with what is gone, and no task may come here for that.
"""

import collections.abc

import drain
from ci.concourse import worker
from plan.parts import Plan, WorkerPlan
from plan.state import UnitState


def ensure(
    state: UnitState, wanted: Plan, progress: collections.abc.Callable[[str], None]
) -> None:
    """Have the worker offer what is left, where GPUs that tasks were given are gone.

    Raises:
        machine.process.CommandError: if systemd can't start it.
    """
    left = {gpu.uuid for gpu in wanted.choice.gpus}
    fewer = bool(left) and left < {*state.handed_out}
    if fewer and isinstance(wanted.worker, WorkerPlan) and not drain.keeps_down():
        worker.apply(wanted.worker, progress)
