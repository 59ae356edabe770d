# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How long a task that needs many GPUs waits while small ones keep coming, and what idles then."""

import dataclasses
import datetime
import functools
import itertools
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.containers import Container
from benchmarks.leases import GPUS, asking, lines, shared_folder, together
from benchmarks.measure import Ceiling, Failed, Options, Report
from benchmarks.place import Wrapper, concourse_spec, entered, gpus
from gpu_runtime.lease_scheduler import LONGEST_PASSED_OVER, MOST_OVERTAKINGS
from tests.functional.containerd_worker import Worker

WAIT = 2 * GPUS  # small tasks at a time, beside those that run
LARGE, NEEDS = "large", 4
LONG, SHORT = 10, 2  # s, a small task; what is promised is promised of long ones
ENOUGH = 6  # task lengths; then nobody waits any more
TWO_LOOKS = 1.0  # s, of those who wait
BY_RULE = "{} s"
OFF = {"MOST_OVERTAKINGS": 10**9, "LONGEST_PASSED_OVER": 10**9}


@dataclasses.dataclass(frozen=True)
class Stay:
    """A task with GPUs. Moments are in seconds since 1970.

    Attributes:
        task: what it is called in its round.
        gpus: their ids; none where it waited in vain.
        called: when its create was called.
        leased: when it was decided that it gets them, or none.
        created: when its create was over.
        ended: when its step was; `created` where there was none.
    """

    task: str
    gpus: tuple[str, ...]
    called: float
    leased: float
    created: float
    ended: float


@dataclasses.dataclass(frozen=True)
class Round:
    """What one round showed.

    Attributes:
        length: of a small task, in seconds.
        stays: of all tasks.
        over: when no more tasks came, in seconds since 1970.
    """

    length: float
    stays: Sequence[Stay]
    over: float

    @property
    def large(self) -> Stay:
        return next(stay for stay in self.stays if stay.task == LARGE)

    @property
    def ratio(self) -> float:
        """How many task lengths the create of the large one took."""
        return (self.large.created - self.large.called) / self.length

    @property
    def overtakings(self) -> list[float]:
        """When those that came later than the large one, and were served before it, were."""
        return sorted(
            stay.leased
            for stay in self.stays
            if self.large.called < stay.called and stay.leased < self.large.leased
        )

    def idle(self) -> list[tuple[float, float]]:
        """How long a GPU was nobody's after it was somebody's, each time: kept for the large one,
        and else, in seconds; up to the end for what nobody had any more.
        """
        gaps: list[tuple[float, float]] = []
        free_since: dict[str, float] = {}
        for stay in sorted(self.stays, key=lambda stay: stay.leased):
            gaps += [(free_since[gpu], stay.leased) for gpu in stay.gpus if gpu in free_since]
            free_since |= dict.fromkeys(stay.gpus, stay.ended)
        gaps += [(since, self.over) for since in free_since.values() if since < self.over]
        return [self._kept_and_else(start, end) for start, end in gaps]

    def _kept_and_else(self, start: float, end: float) -> tuple[float, float]:
        large = self.large
        if not large.gpus:
            return 0, end - start
        owed = [large.called + LONGEST_PASSED_OVER, *self.overtakings[MOST_OVERTAKINGS - 1 :]]
        kept = max(0, min(end, large.leased) - max(start, min(owed)))
        return kept, end - start - kept


class Stream:
    """Small tasks one after the other, more than there are GPUs, and one that needs several.

    Args:
        wrapper: is called for all of them.
        spec: of all of them, but for GPU_COUNT.
        length: of a small task, in seconds.
        scratch: what all containers see as /scratch.
        queue: whether the large one comes when small ones wait already; else they come after it.
    """

    def __init__(
        self, wrapper: Wrapper, spec: dict, length: float, scratch: Path, *, queue: bool = False
    ) -> None:
        self._wrapper = wrapper
        self._spec = spec
        self._length = length
        self._queue = queue
        self._round = 0
        self._notes = wrapper.folder / "notes"
        self._over = wrapper.folder / "over"
        self._go = scratch / "go"

    def run(self) -> Round:
        self._round += 1
        for path in (self._notes, self._over, self._go):
            path.unlink(missing_ok=True)
        small = [functools.partial(self._small, lane) for lane in range(GPUS + WAIT)]
        together([*small, self._large])
        made = self._wrapper.decisions()
        decided = {line["container"]: line for line in made if line["kind"] == "task"}
        notes = map(json.loads, lines(self._notes))
        stays = [_stay(note, decided[self._handle(note["task"])]) for note in notes]
        return Round(self._length, stays, self._over.stat().st_mtime)

    def _handle(self, task: str) -> str:
        return f"{task}-{id(self):x}-{self._round}"

    def _small(self, lane: int) -> None:
        """One small task after the other.

        The first ones last until the large one comes, and then end in turn, and not all at once.
        """
        first = lane < GPUS
        if not first:
            self._until(waiting=0 if self._queue else 1)
        for turn in itertools.count():
            if self._over.exists():
                return
            line = f"sleep {self._length}"
            if first and not turn:
                part = (lane + 1) / GPUS * self._length
                line = f"sh -c 'until [ -e /scratch/go ]; do sleep 0.05; done; sleep {part}'"
            if not self._task(f"small-{lane}-{turn}", 1, line):
                raise Failed(f"small-{lane}-{turn} waited in vain")

    def _large(self) -> None:
        """The one that needs several GPUs, and a while for small ones to take them again."""
        try:
            self._until(waiting=WAIT if self._queue else 0)
            self._go.touch()
            if self._task(LARGE, NEEDS, f"sleep {self._length}"):
                time.sleep(2 * TWO_LOOKS)
        finally:
            self._go.touch()
            self._over.touch()

    def _until(self, *, waiting: int) -> None:
        """Until each GPU has a step that runs, and so many wait."""
        path = self._wrapper.store / "leases.json"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not self._over.exists():
            table = json.loads(path.read_text()) if path.exists() else {"holders": {}}
            # Those of the last round have no bundle any more.
            running = sum(
                holder["execs"] and Path(holder["bundle"]).exists()
                for holder in table["holders"].values()
            )
            if running >= GPUS and len(table["waiters"]) >= waiting:
                return
            time.sleep(0.02)
        raise Failed(f"there are not {GPUS} that run and {waiting} that wait")

    def _task(self, task: str, count: int, line: str) -> bool:
        """Run one; whether it got its GPUs in time."""
        handle, spec = self._handle(task), asking(self._spec, count)
        container = Container(self._wrapper.front, handle, spec)
        note = {"task": task, "called": time.time()}
        _, status = os.waitpid(container.begin_create(), 0)
        note["created"] = note["ended"] = time.time()
        if status:
            said = container.log.read_text()
            if "wait-timeout: " not in said:
                raise Failed(said)
            container.forget()
        else:
            container.start()
            # Who still waited when all was over makes way at once.
            container.exec(f"/scratch/hold {'sleep 0' if self._over.exists() else line}")
            if code := container.wait("task"):
                raise Failed(f"hold ended with {code}")
            note["ended"] = time.time()
            container.end()
        with self._notes.open("a") as notes:
            notes.write(f"{json.dumps(note)}\n")
        return not status


def run(worker: Worker, options: Options) -> list[Report]:
    """Measure with the rule that keeps GPUs for whoever was overtaken, and without it."""
    spec = concourse_spec(worker, "task")
    few = max(1, options.n // 30)
    with entered(worker):
        folder = shared_folder(worker)
        wrapper = Wrapper("fair", gpus(GPUS), wait_timeout=ENOUGH * LONG)
        off = Wrapper("unfair", gpus(GPUS), rule=OFF, wait_timeout=ENOUGH * SHORT)
        arms = {
            BY_RULE.format(LONG): (Stream(wrapper, spec, LONG, folder), few),
            BY_RULE.format(SHORT): (Stream(wrapper, spec, SHORT, folder), 2 * few),
            f"{SHORT} s, {WAIT} have waited longer": (
                Stream(wrapper, spec, SHORT, folder, queue=True),
                few,
            ),
            f"{SHORT} s, without the rule": (Stream(off, spec, SHORT, folder), few),
        }
        turns = [name for name, (_, rounds) in arms.items() for _ in range(rounds)]
        rounds: dict[str, list[Round]] = {name: [] for name in arms}
        for name in options.chance.sample(turns, len(turns)):
            rounds[name].append(arms[name][0].run())
        clashes = lines(folder / "clashes")
    if clashes:
        raise Failed(f"GPUs were held twice: {clashes}")
    return [report(rounds)]


def report(arms: Mapping[str, Sequence[Round]]) -> Report:
    """What the rounds showed, by arm; the long tasks' arm is there, and others may be."""
    found = Report("A large task among small ones")
    found.blocks.append(
        f"{GPUS} GPUs under a full stream of tasks that need one each, by real runc: {GPUS} run, "
        f"{WAIT} more wait, and when one ends, another comes. A task with GPU_COUNT={NEEDS} "
        f"comes when all GPUs are in use, and right after it the {WAIT}. Its create is timed from "
        "the call to the return, in lengths of a small task. The rule: after "
        f"{MOST_OVERTAKINGS} overtakings or {LONGEST_PASSED_OVER} s, free GPUs are kept for it. "
        f"The promise is measured with small tasks of {LONG} s. Those of {SHORT} s give "
        "more rounds with as many overtakings. Their ratio is a bit higher and has no ceiling: "
        "the half second between two checks of a waiting task, and the creates themselves, weigh "
        f"{LONG // SHORT} times as much there. Tasks that have waited longer come first: {WAIT} "
        f"are {WAIT // GPUS} task lengths more. *Without the rule*, the baseline, is the same GPU "
        f"runtime with both limits out of reach; a wait ends there after {ENOUGH} task lengths."
    )
    heading = (
        "| small tasks | rounds | the large one starts after, median | maximum | overtaken by | "
        "longest that a GPU was kept for it, s | longest that one was idle else, s |"
    )
    rows = [_row(name, rounds) for name, rounds in arms.items()]
    found.blocks.append("\n".join([heading, "|---" * 7 + "|", *rows]))
    promised = arms[BY_RULE.format(LONG)]
    by_rule = [*promised, *arms.get(BY_RULE.format(SHORT), ())]
    idle = [gap for one in by_rule for _, gap in one.idle() if gap > TWO_LOOKS]
    found.ceilings = [
        Ceiling(
            f"{NEEDS} GPUs among tasks with one of {LONG} s, longest wait in task lengths",
            max(one.ratio for one in promised),
            2,
        ),
        Ceiling(f"GPUs idle for more than {TWO_LOOKS:g} s that were not kept", len(idle), 0),
    ]
    return found


def _row(name: str, rounds: Sequence[Round]) -> str:
    ratios = [one.ratio for one in rounds]
    in_vain = sum(not one.large.gpus for one in rounds)
    longest = f"{max(ratios):.2f}" + (f", {in_vain} in vain" if in_vain else "")
    gaps = [gap for one in rounds for gap in one.idle()]
    kept, idle = max(kept for kept, _ in gaps), max(idle for _, idle in gaps)
    overtaken = max(len(one.overtakings) for one in rounds)
    return (
        f"| {name} | {len(rounds)} | {statistics.median(ratios):.2f} | {longest} | {overtaken} | "
        f"{kept:.1f} | {idle:.1f} |"
    )


def _stay(note: dict, decision: dict) -> Stay:
    leased = datetime.datetime.fromisoformat(decision["time"].replace("Z", "+00:00"))
    return Stay(gpus=tuple(decision["granted"]), leased=leased.timestamp(), **note)
