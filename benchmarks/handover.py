# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How long a GPU lies idle between the death of its holder and the next holder's start."""

import itertools
import json
import os
import signal
import statistics
import time
from collections.abc import Callable

from benchmarks.containers import Container
from benchmarks.leases import lines, shared_folder
from benchmarks.measure import Ceiling, Failed, Options, Report, Times, interleaved, spread
from benchmarks.place import Wrapper, concourse_spec, entered, gpus
from tests.functional.containerd_worker import Worker

SECONDS = "s"
SLEEP = "/scratch/hold sleep 1000"
# A child that left its session outlives the step's process, and has the GPU open.
WITH_CHILD = "/scratch/hold sh -c 'busybox setsid sleep 1000 & exec sleep 1000'"


def run(worker: Worker, options: Options) -> list[Report]:
    """Measure each way in which a holder dies while another task waits for its GPU."""
    spec = concourse_spec(worker, "task")
    with entered(worker):
        folder = shared_folder(worker)
        wrapper = Wrapper("handover", gpus(1))
        deaths = {
            "its process is killed (SIGKILL)": (SLEEP, _kill),
            "its process is killed, a setsid child stays": (WITH_CHILD, _kill),
            "aborted: its container is killed and deleted": (SLEEP, Container.end),
        }
        fewer = Options(max(1, options.n // 3), options.chance)
        arms = {
            name: _handover(wrapper, spec, line, death, options)
            for name, (line, death) in deaths.items()
        }
        samples = interleaved(arms, fewer)
        clashes = lines(folder / "clashes")
    report = Report("From one holder to the next")
    report.blocks.append(
        "One GPU, a task that holds it, and a task whose create waits for it. The time runs from "
        "the holder's death, at a random moment between two checks of the waiting create, until "
        f"that create has returned, with runc's own work. {fewer.n} of each, by real runc. "
        "The next holder then takes a lock that every process of the last one would still have: "
        f"**{len(clashes)} of {3 * (fewer.n + 1)} found it taken**."
    )
    rows = ["| death | median, s | 10th to 90th percentile | maximum |", "|---|---|---|---|"]
    for name in deaths:
        took = samples.times[SECONDS, name]
        middle = f"{statistics.median(took):.2f} | {spread(took, '.2f')}"
        rows.append(f"| {name} | {middle} | {max(took):.2f} |")
        report.ceilings.append(Ceiling(f"hand-over, {name}, maximum in s", max(took), 2))
    report.blocks.append("\n".join(rows))
    report.ceilings.append(Ceiling("GPUs handed over while in use", len(clashes), 0))
    return [report]


def _kill(holder: Container) -> None:
    os.kill(holder.pid("task"), signal.SIGKILL)
    holder.wait("task")


def _handover(
    wrapper: Wrapper, spec: dict, line: str, death: Callable[[Container], None], options: Options
) -> Callable[[], Times]:
    numbers = itertools.count()

    def one() -> Times:
        name = f"handover-{id(numbers):x}-{next(numbers)}"
        holder = Container(wrapper.front, f"{name}-first", spec)
        holder.create()
        holder.start()
        holder.exec(line)
        following = Container(wrapper.front, f"{name}-second", spec)
        creating = following.begin_create()
        _until_it_waits(wrapper, following)
        time.sleep(options.chance.uniform(0, 0.5))
        began = time.monotonic()
        death(holder)
        _, status = os.waitpid(creating, 0)
        took = time.monotonic() - began
        if status:
            raise Failed(following.log.read_text())
        following.start()
        following.exec("/scratch/hold sleep 0")
        if status := following.wait("task"):
            raise Failed(f"hold ended with {status}")
        following.end()
        if holder.bundle.exists():
            holder.end()
        return {SECONDS: took}

    return one


def _until_it_waits(wrapper: Wrapper, following: Container) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        table = json.loads((wrapper.store / "leases.json").read_text())
        if any(waiter["container"] == following.handle for waiter in table["waiters"]):
            return
        time.sleep(0.01)
    raise Failed(f"{following.handle} does not wait")
