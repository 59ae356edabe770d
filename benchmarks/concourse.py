# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a GPU adds to the start of a step under the real Concourse, in the lab."""

import re
import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import Ceiling, Failed, Options, Report, spread
from tests.functional.containerd_worker import GIVEN_RUNTIME
from tests.lab import concourse, outfit, walk
from tests.lab.session import Lab, Progress

TAGS = ["gpu"]
IN_ONE_BUILD = 20  # pairs
# The process itself says when, in seconds since boot with two decimals (proc_uptime(5)).
SAY_WHEN = 'read at idle </proc/uptime; echo "at $at $GPU_COUNT"; sleep 0.2'
LASTS = 200.0  # ms; the last words of a process that ends at once may be lost
SAID = re.compile(r"^at ([0-9.]+) (\d)$", re.MULTILINE)


def run(options: Options) -> list[Report]:
    """Measure where the real Concourse is given."""
    report = Report("A step of the real Concourse")
    if not concourse.is_real():
        report.blocks.append(
            "Not measured: the real Concourse was not given (GPUCI_CONCOURSE_TARBALL)."
        )
        return [report]
    with tempfile.TemporaryDirectory() as folder:
        say = Progress()
        lab = Lab(Path(folder) / "lab", say)
        try:
            walk.up(lab, say)
            _fill(report, _pairs(concourse.Fly(lab), options), Path(lab.setting("concourse")).name)
        finally:
            lab.controller.destroy()
    return [report]


def _pairs(fly: concourse.Fly, options: Options) -> list[tuple[float, float]]:
    """Milliseconds to a step's process, without and with a GPU, of steps beside each other."""
    pairs: list[tuple[float, float]] = []
    while len(pairs) < options.n:
        counts = ["0"]  # what comes before the first is the build's start, and is not counted
        for _ in range(min(IN_ONE_BUILD, options.n - len(pairs))):
            counts += options.chance.sample(["0", "1"], 2)
        pipeline = {"jobs": [{"name": "start", "plan": [*map(_task, counts)]}]}
        done = fly.run(*fly.job("start", pipeline))
        said = SAID.findall(done.stdout.replace("\r", ""))
        if done.returncode or [count for _, count in said] != counts:
            raise Failed(
                f"the build ended with {done.returncode}, its tasks said {said}, not {counts}: "
                f"{done.stdout}{done.stderr}"
            )
        moments = [float(at) * 1000 for at, _ in said]
        took = [
            (count, later - before - LASTS)
            for count, before, later in zip(counts[1:], moments, moments[1:], strict=False)
        ]
        for first, second in zip(took[::2], took[1::2], strict=True):
            (_, without), (_, with_one) = sorted((first, second))
            pairs.append((without, with_one))
    return pairs


def _task(count: str) -> dict:
    config = {
        "platform": "linux",
        "rootfs_uri": f"raw://{outfit.ROOTFS}",
        "run": {"path": "sh", "args": ["-c", SAY_WHEN]},
    }
    return {"task": "say-when", "tags": TAGS, "params": {"GPU_COUNT": count}, "config": config}


def _fill(report: Report, pairs: list[tuple[float, float]], release: str) -> None:
    runtime = "the real" if GIVEN_RUNTIME else "a stand-in for the"
    more = [with_one - without for without, with_one in pairs]
    rows = {
        "without a GPU": [without for without, _ in pairs],
        "with a GPU": [with_one for _, with_one in pairs],
        "difference of the two of a pair": more,
    }
    report.blocks.append(
        f"In the lab, by {release} and {runtime} nvidia-container-runtime. One job runs the same "
        "short task many times, half with GPU_COUNT=1 and half with GPU_COUNT=0, in pairs of "
        "random order. Each process says when it starts, to 10 ms, and ends 0.2 s later. The time "
        "from one to the next, less 0.2 s, is what web, worker, containerd, our GPU runtime and "
        "the runtimes need for a step. The NVIDIA runtime's own part shows above, as the "
        "difference between its create and runc's. "
        f"{len(pairs)} pairs."
    )
    table = ["| task | median, ms | 10th to 90th percentile |", "|---|---|---|"]
    table += [
        f"| {name} | {statistics.median(took):.0f} | {spread(took, '.0f')} |"
        for name, took in rows.items()
    ]
    report.blocks.append("\n".join(table))
    report.ceilings.append(
        Ceiling("a GPU adds to a step's start, median in ms", statistics.median(more), 150)
    )
