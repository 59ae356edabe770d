# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Leases under load: nobody shares a GPU, and a decision stays quick whatever the store holds."""

import functools
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.containers import Container
from benchmarks.measure import (
    Ceiling,
    Failed,
    Options,
    Report,
    Times,
    interleaved,
    percentile,
)
from benchmarks.place import (
    Wrapper,
    become_subreaper,
    concourse_spec,
    entered,
    gpus,
)
from tests.functional.containerd_worker import Worker

TASKS = 64
GPUS = 8
DEAD = 200
NOTHING = Path("/bin/true")
GONE = str((1 << 22) + 1)  # no process has that id (linux/threads.h, PID_MAX_LIMIT)
FEW, MANY = "8 GPUs", "128 MIG devices"


def run(worker: Worker, options: Options) -> list[Report]:
    """Many tasks at once, then the cost of a decision."""
    report = Report("Leases")
    spec = concourse_spec(worker, "task")
    with entered(worker):
        _many(worker, spec, options, report)
        _decisions(spec, options, report)
    return [report]


def shared_folder(worker: Worker) -> Path:
    """What all containers see as /scratch, with nothing in it but the program `hold`."""
    folder = worker.folder / "scratch"
    shutil.rmtree(folder)
    (folder / "held").mkdir(parents=True)
    for path in (folder, folder / "held"):
        path.chmod(0o777)  # the containers' root is nobody here
    build = ["gcc", "-static", "-O2", "-Wall", "-Wextra", "-Werror", "-o", folder / "hold"]
    subprocess.run([*build, Path(__file__).with_name("hold.c")], check=True, timeout=60)
    return folder


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def together(lives: list[Callable[[], None]]) -> None:
    """Run each in a process of its own, all at once.

    Raises:
        Failed: one of them did; it has said why.
    """
    running = set()
    for life in lives:
        pid = os.fork()
        if not pid:
            os._exit(_status(life))
        running.add(pid)
    failed = 0
    while running:
        pid, status = os.wait()
        if pid in running:
            running.remove(pid)
            failed += bool(status)
    if failed:
        raise Failed(f"{failed} of {len(lives)} failed")


def _status(life: Callable[[], None]) -> int:
    become_subreaper()
    try:
        life()
    except (Failed, OSError) as error:
        print(error, flush=True)
        return 1
    return 0


def _many(worker: Worker, spec: dict, options: Options, report: Report) -> None:
    folder = shared_folder(worker)
    wrapper = Wrapper("many", gpus(GPUS))
    began = time.monotonic()
    rounds, tasks = max(1, options.n // 20), min(TASKS, 16 * options.n)
    asked = []
    for number in range(rounds):
        counts = [options.chance.choice((1, 1, 1, 2, 4)) for _ in range(tasks)]
        asked += counts
        lives = []
        for place, count in enumerate(counts):
            line = f"/scratch/hold sleep 0.{options.chance.randrange(10, 50)}"
            handle = f"many-{number}-{place}"
            lives.append(functools.partial(_step, wrapper, handle, asking(spec, count), line))
        together(lives)
    took = time.monotonic() - began
    ran = sorted(lines(folder / "ran"))
    if ran != sorted(f"{count} {count}" for count in asked):
        raise Failed(f"asked for {sorted(asked)}, saw {ran}")
    clashes = lines(folder / "clashes")
    made = [line for line in wrapper.decisions() if line["kind"] == "task"]
    decided = [line["decided_ms"] for line in made]
    waited = [line["waited_ms"] / 1000 for line in made]
    report.blocks.append(
        f"{tasks} tasks at once that request 1, 2 or 4 of {GPUS} GPUs, {rounds} times, by real "
        "runc. In each container the step takes a lock for each of its GPUs. The lock lasts as "
        "long as the step's processes, and the step reports each lock that was already taken: "
        f"**{len(clashes)} of {sum(asked)} GPUs were held twice**. {took / rounds:.0f} s a round; "
        f"a task waited {percentile(waited, 50):.1f} s at the median and {max(waited):.1f} s at "
        f"most; the decision that granted took {percentile(decided, 50):.1f} ms at the median and "
        f"{percentile(decided, 99):.1f} ms at the 99th percentile, all of them at once on this "
        "machine's processors."
    )
    report.ceilings.append(Ceiling("GPUs held twice", len(clashes), 0))


def _step(wrapper: Wrapper, handle: str, spec: dict, line: str) -> None:
    """One task from its create to its delete, with `line` as its step."""
    container = Container(wrapper.front, handle, spec)
    container.create()
    container.start()
    container.exec(line)
    if status := container.wait("task"):
        raise Failed(f"{line} ended with {status}")
    container.end()


def asking(spec: dict, count: int) -> dict:
    """The spec of a task that asks for so many GPUs."""
    env = [*spec["process"]["env"], f"GPU_COUNT={count}"]
    return {**spec, "process": {**spec["process"], "env": env}}


def _decisions(spec: dict, options: Options, report: Report) -> None:
    """Creates by our wrapper alone: /bin/true stands where runc would begin."""
    dead = min(DEAD, 20 * options.n)
    with_dead = f"{FEW}, {dead} dead"
    stores = {
        FEW: _used(Wrapper("eight", gpus(GPUS), runc=NOTHING), spec, GPUS),
        with_dead: _used(Wrapper("dead", gpus(GPUS), runc=NOTHING), spec, GPUS + dead),
        MANY: _used(Wrapper("mig", gpus(16, mig=8), runc=NOTHING), spec, 128),
        "shared": _used(Wrapper("all", gpus(8), runc=NOTHING, allocation="shared"), spec, GPUS),
    }
    arms = {name: _create(wrapper, spec) for name, wrapper in stores.items()}
    samples = interleaved(arms, options)
    decided = [took for name in stores for took in samples.times["decision", name]]
    p99 = percentile(decided, 99)
    report.blocks.append(
        "The time of a create up to the start of the real runc, and the part of the decision "
        "(from the request for the lock to the written lease). All devices are held by containers "
        "whose processes are gone, so each decision must find that out and take one from its "
        f"holder. *{dead} dead*: as many earlier containers, whose bundles remain as after "
        "failed builds."
    )
    report.blocks.append(samples.table("from one store", ["create", "decision"], list(stores)))
    report.blocks.append(f"All {len(decided)} decisions: 99th percentile {p99:.1f} ms.")
    report.ceilings += [
        Ceiling("decision, 99th percentile in ms", p99, 50),
        Ceiling(f"create, {with_dead}, to {FEW}", samples.ratio("create", with_dead, FEW), 1.1),
        Ceiling(f"create, {MANY}, to {FEW}", samples.ratio("create", MANY, FEW), 2),
    ]


def _used(wrapper: Wrapper, spec: dict, count: int) -> Wrapper:
    """It, after so many creates; their processes are gone and their bundles are still there."""
    for number in range(count):
        container = _beside(wrapper, f"was-{number}", spec)
        container.create()
        (container.bundle / "init.pid").write_text(GONE)
    wrapper.decisions()
    return wrapper


def _beside(wrapper: Wrapper, name: str, spec: dict) -> Container:
    """A container among those of its store alone."""
    bundles = wrapper.folder / "bundles"
    return Container(wrapper.front, f"{wrapper.folder.name}-{name}", spec, bundles)


def _create(wrapper: Wrapper, spec: dict) -> Callable[[], Times]:
    numbers = itertools.count()

    def one() -> Times:
        container = _beside(wrapper, f"now-{next(numbers)}", spec)
        took = container.create()
        container.forget()
        (decision,) = wrapper.decisions()
        return {"create": took, "decision": decision["decided_ms"]}

    return one
