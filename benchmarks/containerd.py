# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a step costs through containerd and its shim."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.containers import ENVIRONMENT
from benchmarks.measure import Ceiling, Options, Report, Times, interleaved, spawned
from benchmarks.place import (
    RUNC,
    SCRATCH,
    Wrapper,
    classical_wrapper,
    concourse_spec,
    entered,
    make_root,
)
from benchmarks.place import gpus as gpus_of_policy
from tests.functional.containerd_worker import Worker

DIRECT, OURS, BASH = "runc", "ours", "bash + jq"
GET, GPU = "get", "task with a GPU"
STEP = "a step"


def run(worker: Worker, options: Options) -> list[Report]:
    """Measure steps of both kinds by each runtime."""
    specs = {GET: concourse_spec(worker, "get"), GPU: concourse_spec(worker, "task")}
    with entered(worker):
        ours = Wrapper("containerd", gpus_of_policy(2))
        runtimes = {DIRECT: RUNC, OURS: ours.front, BASH: classical_wrapper()}
        arms = {
            f"{kind} by {arm}": _step(worker.folder / "sock", runtime, spec)
            for kind, spec in specs.items()
            for arm, runtime in runtimes.items()
        }
        samples = interleaved(arms, options)
    report = Report("A step through containerd")
    report.blocks.append(
        "`ctr run --detach`, `ctr task exec`, `ctr task kill`, `ctr task delete` and "
        "`ctr container delete` together, for the same containers, with containerd and its shim "
        "doing the rest. `--runc-binary` chooses the runtime."
    )
    for kind, ceiling in ((GET, 1.10), (GPU, 1.30)):
        names = [f"{kind} by {arm}" for arm in runtimes]
        table = samples.table(kind, [STEP], names)
        report.blocks.append(table.replace(f"{kind} by ", ""))
        ratio = samples.ratio(STEP, f"{kind} by {OURS}", f"{kind} by {DIRECT}")
        report.ceilings.append(Ceiling(f"a step through containerd, {kind}", ratio, ceiling))
    return [report]


def _step(socket: Path, runtime: Path, spec: dict) -> Callable[[], Times]:
    numbers = itertools.count()
    ctr = ["/usr/bin/ctr", "-a", socket, "-n", "concourse"]

    def one() -> Times:
        handle = f"step-{id(numbers):x}-{next(numbers)}"
        volume = make_root(spec, handle)
        path = SCRATCH / "step.json"
        path.write_text(json.dumps(spec).replace("HANDLE", handle))
        config = ["--runc-binary", runtime, "--config", path]
        calls = [
            [*ctr, "run", "--detach", "--null-io", *config, handle],
            [*ctr, "task", "exec", "--exec-id", "task", handle, "/bin/sh", "-c", "exit 0"],
            [*ctr, "task", "kill", "-s", "KILL", handle],
            [*ctr, "task", "delete", "-f", handle],
            [*ctr, "container", "delete", handle],
        ]
        took = sum(spawned(call, ENVIRONMENT) for call in calls)
        shutil.rmtree(volume)
        return {STEP: took}

    return one
