# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a call of the runtime costs: by runc itself, by our wrapper, by one of bash and jq."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.containers import Container
from benchmarks.measure import Ceiling, Options, Report, Samples, Times, interleaved
from benchmarks.place import RUNC, Wrapper, classical_wrapper, concourse_spec, entered, gpus, uuid
from tests.functional.containerd_worker import GIVEN_RUNTIME, RUNTIME, Worker

DIRECT, AGAIN, OURS, BASH = "runc", "runc again", "ours", "bash + jq"
NVIDIA = "nvidia-container-runtime"
GET, NONE, GPU = "get", "task, GPU_COUNT=0", "task with a GPU"
TAKES_OVER = "task that takes over a GPU"
HANDED_ON = ["start", "state", "kill", "delete", "delete --force"]
OFTEN = 4
ARMS = itertools.count()
CALLS = ["create", "exec", "a step's calls"]


def run(worker: Worker, options: Options) -> list[Report]:
    """Measure; a second report where the real nvidia-container-runtime is given."""
    specs = {
        GET: concourse_spec(worker, "get"),
        NONE: concourse_spec(worker, "task", "GPU_COUNT=0"),
        GPU: concourse_spec(worker, "task"),
    }
    with entered(worker):
        ours, takes_over = Wrapper("runtime", gpus(2)), Wrapper("takes-over", gpus(1))
        runtimes = {DIRECT: RUNC, OURS: ours.front, BASH: classical_wrapper()}
        arms = {
            f"{kind} by {arm}": life(runtime, spec, ours.give_back)
            for kind, spec in specs.items()
            for arm, runtime in runtimes.items()
        }
        arms[TAKES_OVER] = life(takes_over.front, specs[GPU])
        report = _report(interleaved(arms, options))
        _often(report, {**runtimes, AGAIN: RUNC}, specs[GET], options)
        reports = [report]
        if GIVEN_RUNTIME:
            reports.append(_with_nvidia(specs[GPU], options))
    return reports


def life(
    runtime: Path, spec: dict, then: Callable[[], None] = int, **variables: str
) -> Callable[[], Times]:
    """An arm: the whole life of one container after the other by `runtime`; then `then`."""
    handles = _handles()

    def one() -> Times:
        times = Container(runtime, next(handles), spec, **variables).life()
        then()
        return times

    return one


def short_life(runtime: Path, spec: dict) -> Callable[[], Times]:
    """An arm: one container after the other that is made and removed."""
    handles = _handles()

    def one() -> Times:
        container = Container(runtime, next(handles), spec)
        took = container.create()
        container.end()
        return {"create": took}

    return one


def _handles() -> Iterator[str]:
    number = next(ARMS)
    return (f"bench-{number}-{container}" for container in itertools.count())


def _report(samples: Samples) -> Report:
    report = Report("Calls of the runtime")
    report.blocks.append(
        "Each call is timed from its start to its end. `config.json` has 27 kB, with Concourse's "
        "mounts and user namespace and a seccomp profile. The next runtime after ours is runc "
        "too, so the difference is ours only. *bash + jq* is "
        "`benchmarks/classical-wrapper`: it edits the same two files with one jq each, and "
        "decides nothing. The task with a GPU gets a free one: the GPU health service has ended "
        "the lease of the previous container."
    )
    for kind in (GET, NONE, GPU):
        names = [f"{kind} by {arm}" for arm in (DIRECT, OURS, BASH)]
        report.blocks.append(samples.table(kind, CALLS, names).replace(f"{kind} by ", ""))
    processes = sum(path.name.isdecimal() for path in Path("/proc").iterdir())
    of_runc = samples.median("create", f"{GPU} by {DIRECT}")
    taking = samples.median("create", TAKES_OVER)
    look = taking - samples.median("create", f"{GPU} by {OURS}")
    report.blocks.append(
        "If the GPU health service has not ended that lease yet, the create ends it, and checks "
        f"which processes have the GPU open. That create takes **{taking / of_runc:.2f}** "
        f"times as long as runc's, with {processes} processes on the machine."
    )
    for arm, call in itertools.product((DIRECT, OURS, BASH), HANDED_ON):
        samples.pool(call, [f"{kind} by {arm}" for kind in (GET, NONE, GPU)], arm)
    handed_on = samples.table("handed on, all three", HANDED_ON, [DIRECT, OURS, BASH])
    report.blocks.append(handed_on)

    def ratio(kind: str, call: str, baseline: str) -> float:
        return samples.ratio(call, f"{kind} by {OURS}", f"{kind} by {baseline}")

    report.ceilings = [
        Ceiling("create with a GPU, to runc", ratio(GPU, "create", DIRECT), 1.65),
        Ceiling("look per 100 processes, to runc's create", look / processes * 100 / of_runc, 1.5),
        *(
            Ceiling(f"{call}, to runc", samples.ratio(call, OURS, DIRECT), 1.3)
            for call in HANDED_ON
        ),
        *(
            Ceiling(f"{call}, to bash + jq", samples.ratio(call, OURS, BASH), 1)
            for call in HANDED_ON
        ),
        *(
            Ceiling(f"{call} with a GPU, to bash + jq", ratio(GPU, call, BASH), 1)
            for call in CALLS
        ),
    ]
    return report


def _often(report: Report, runtimes: dict[str, Path], spec: dict, options: Options) -> None:
    """The tightest ceiling, measured more often; both arms of runc are its baseline."""
    often = Options(OFTEN * options.n, options.chance)
    names = [DIRECT, OURS, AGAIN]
    samples = interleaved({name: short_life(runtimes[name], spec) for name in names}, often)
    report.blocks.append(
        f"The create of a get once more, {often.n} times, since little is added to it. *{AGAIN}* "
        "is runc against itself, which shows the noise."
    )
    report.blocks.append(samples.table(GET, ["create"], names))
    samples.pool("create", [DIRECT, AGAIN], "both")
    ratio = samples.ratio("create", OURS, "both")
    report.ceilings.insert(0, Ceiling("create of a get, to runc", ratio, 1.06))


def _with_nvidia(spec: dict, options: Options) -> Report:
    """Against that runtime called directly, told the same GPU by the same variables."""
    ours = Wrapper("nvidia", gpus(2), nvidia_runtime=RUNTIME)
    told = [*spec["process"]["env"], f"NVIDIA_VISIBLE_DEVICES={uuid(0)}"]
    direct = {**spec, "process": {**spec["process"], "env": told}}
    arms = {
        NVIDIA: life(Path(RUNTIME), direct, XDG_CONFIG_HOME="/etc/gpu-ci"),
        OURS: life(ours.front, spec),
    }
    samples = interleaved(arms, options)
    report = Report("Calls of the runtime, with the real nvidia-container-runtime")
    report.blocks.append(
        "A task with a GPU, by the real nvidia-container-runtime on a simulated GPU: called "
        "directly for every call, and by our GPU runtime, which needs it only for `create` and "
        "passes the other calls to runc."
    )
    report.blocks.append(samples.table(GPU, [*CALLS, *HANDED_ON], [NVIDIA, OURS]))
    return report
