# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The worker is restarted again and again under short tasks: none of them is lost, nor a line.

200 restarts in `make soak`, else a few. With GPUCI_WRITE=1 docs/reference/performance.md gets
what came of it; the real Concourse takes half an hour and more.
"""

import dataclasses
import itertools
import os
import random
import re
import threading
import time

from benchmarks import measure, page
from tests.lab import concourse

SOAK = "GPUCI_SOAK" in os.environ
RESTARTS = int(os.environ.get("GPUCI_RESTARTS", "200" if SOAK else "3"))
SEED = int(os.environ.get("GPUCI_SEED", random.SystemRandom().randrange(10**6)))
JOBS, TASKS = 3, 4
# A promise: no task stands still for longer. What it prints, it prints every tenth of a second.
PIPELINE = "lab-storm"
LEVEL = "INFO"
HELD_SECONDS, EVERY = 20.0, 0.1
CODE = "/var/lib/juju/agents/unit-worker-0/charm"
RESTART = """
cd {code}
PYTHONPATH={code}/src:{code}/lib:{code}/venv /usr/bin/python3 -c '
import logging, sys
from ci.concourse.restart import lossless as restart
from ci.concourse.worker import worker
logging.basicConfig(level=getattr(logging, "{level}"), stream=sys.stdout, format="%(message)s")
restart.worker(worker.SERVICE, worker.VOLUMES, lambda text: print("progress", text))
'
"""
TASK = """
number=0
while [ $number -lt $LINES_WANTED ]; do
  number=$((number + 1))
  echo "$TASK_NAME line $number of $LINES_WANTED at $(cut -d' ' -f1 /proc/uptime)"
  sleep 0.1
done
"""
# A worker looks for containers that can go 30 s after its start and every 30 s: never, in a storm.
SWEPT, SWEEP_SECONDS = 20, 40
MORE_CONTAINERS = """
cd /etc/systemd/system
mkdir -p concourse-worker.service.d
printf '[Service]\\nEnvironment=CONCOURSE_CONTAINERD_MAX_CONTAINERS=1000\\n' \\
  >concourse-worker.service.d/storm.conf
systemctl daemon-reload
"""
LINE = re.compile(r"(t\d+) line (\d+) of (\d+) at ([\d.]+)")


@dataclasses.dataclass
class Outcome:
    """What became of the builds.

    Attributes:
        lost: builds that did not succeed, each with what it said.
        checks_lost: the same of checks. One that begins in the tenth of a second that it takes web
            to notice the worker's end is; it is made again by itself.
        missing: lines that tasks printed and their builds do not show.
        held: the longest that a task stood still, in seconds.
        restarts: how long each restart took, in seconds.
    """

    builds: int = 0
    tasks: int = 0
    checks: int = 0
    lost: list[str] = dataclasses.field(default_factory=list)
    checks_lost: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    held: float = 0.0
    restarts: list[float] = dataclasses.field(default_factory=list)

    def told(self):
        return (
            f"{len(self.restarts)} restarts, {self.builds} builds with {self.tasks} tasks, "
            f"{self.checks} checks: {len(self.lost)} builds and {len(self.checks_lost)} checks "
            f"lost, {len(self.missing)} tasks with lines missing, a task held for "
            f"{self.held:.1f} s at most (seed {SEED})"
        )

    def report(self):
        """The section of docs/reference/performance.md."""
        times = sorted(self.restarts)
        middle, last = times[len(times) // 2], times[-1]
        about = (
            "By the real Concourse, in the lab. Three jobs of short tasks (0.3 to 3 s) at once, a "
            "check of a resource every two seconds, and one restart of the worker after the "
            f"other. Tasks print a line every {EVERY} s; one stands still from a line to the "
            "next. A restart is the whole of it: until rest, the process, web's attaching."
        )
        counts = f"{self.builds} | {self.tasks} | {self.checks} | {len(self.checks_lost)}"
        rows = [
            "| restarts | median, s | maximum, s | builds | tasks | checks | checks lost |",
            "|---|---|---|---|---|---|---|",
            f"| {len(times)} | {middle:.1f} | {last:.1f} | {counts} |",
        ]
        return measure.Report(
            title="A restart of the worker under short tasks",
            blocks=[about, "\n".join(rows)],
            ceilings=[
                measure.Ceiling("builds lost", len(self.lost), 0),
                measure.Ceiling("tasks of which a line is lost", len(self.missing), 0),
                measure.Ceiling("a task stands still, maximum in s", self.held, HELD_SECONDS),
            ],
        )


class Storm:
    """Builds one after the other, checks beside them, and restarts."""

    def __init__(self, site):
        self.site, self.fly = site, site.fly
        self.over = threading.Event()
        self.outcome = Outcome()

    def pipeline(self):
        """Jobs of short tasks, one after the other; every now and then one has a GPU."""
        chance = random.Random(SEED)

        def task(number):
            params = {"TASK_NAME": f"t{number}", "LINES_WANTED": str(chance.randrange(3, 30))}
            params["GPU_COUNT"] = "1" if number % TASKS == 1 else "0"
            run = {"path": "sh", "args": ["-c", TASK]}
            config = {"platform": "linux", **self.fly.root, "params": params, "run": run}
            return {"task": f"t{number}", "tags": ["gpu"], "config": config}

        thing = {"name": "thing", "type": "mock", "tags": ["gpu"], "check_every": "10s"}
        thing["source"] = {"force_version": str(time.time_ns())}
        get = {"get": "thing", "tags": ["gpu"]}
        jobs = [
            {"name": f"job{job}", "plan": [get, *map(task, range(TASKS * job, TASKS * (job + 1)))]}
            for job in range(JOBS)
        ]
        return {"resources": [thing], "jobs": jobs}

    def work(self, job):
        while not self.over.is_set():
            self.judge(self.fly.run("trigger-job", "-j", f"{PIPELINE}/{job}", "-w", timeout=600))

    def judge(self, done):
        outcome = self.outcome
        outcome.builds += 1
        if done.returncode:
            self.lose(done, outcome.lost)
        printed, wanted = {}, {}
        for name, number, of, at in LINE.findall(done.stdout):
            printed.setdefault(name, []).append((int(number), float(at)))
            wanted[name] = int(of)
        outcome.tasks += len(wanted)
        for name, lines in printed.items():
            if [number for number, _ in lines] != [*range(1, wanted[name] + 1)]:
                outcome.missing.append(f"{name}: {lines} of {wanted[name]}")
            times = [at for _, at in lines]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            outcome.held = max([outcome.held, *(gap - EVERY for gap in gaps)])

    def check(self):
        while not self.over.wait(2):
            done = self.fly.run("check-resource", "-r", f"{PIPELINE}/thing", timeout=300)
            self.outcome.checks += 1
            if done.returncode:
                self.lose(done, self.outcome.checks_lost)

    def lose(self, done, among):
        said = f"{done.args}: {done.stdout}{done.stderr}"
        among.append(said)
        print(f"LOST {said}", flush=True)

    def restart(self):
        begun = time.monotonic()
        said = self.site.sh(RESTART.format(code=CODE, level=LEVEL))
        self.outcome.restarts.append(time.monotonic() - begun)
        return said

    def rage(self, restarts):
        self.fly.job("storm", self.pipeline())
        workers = [threading.Thread(target=self.work, args=(f"job{job}",)) for job in range(JOBS)]
        if concourse.is_real():
            workers.append(threading.Thread(target=self.check))
        for worker in workers:
            worker.start()
        chance = random.Random(SEED)
        try:
            for number in range(1, restarts + 1):
                time.sleep(chance.uniform(0.5, 4) if number % SWEPT else SWEEP_SECONDS)
                said = self.restart()
                print(
                    f"{said}{self.outcome.restarts[-1]:.1f} s; {self.outcome.told()}", flush=True
                )
        finally:
            self.over.set()
            for worker in workers:
                worker.join()


def test_restarts_under_short_tasks_lose_nothing(site):
    # With a GPU for each task unasked, web would let no third one in while two run.
    site.configure(gpus_per_task="0")
    site.tags()
    site.sh(MORE_CONTAINERS)
    storm = Storm(site)
    try:
        storm.rage(RESTARTS)
    finally:
        site.sh("rm -r /etc/systemd/system/concourse-worker.service.d; systemctl daemon-reload")
        site.configure(reset=("gpus-per-task",))
    told = storm.outcome.told()
    print(told)
    if "GPUCI_WRITE" in os.environ:
        page.renew([storm.outcome.report()], [f"seed {SEED}"])
    assert storm.outcome.lost == [], told
    assert storm.outcome.missing == [], told
    assert storm.outcome.held <= HELD_SECONDS, told
    assert storm.outcome.tasks, told
