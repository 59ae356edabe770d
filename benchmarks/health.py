# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Measure when a failing GPU is out of use, and the cost, on a worker of the lab."""

import json
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Ceiling, Options, Report, percentile, spread
from tests.lab import walk
from tests.lab.session import Lab, Progress
from tests.lab.site import Site
from tests.lab.watching import SERVICE, Watch

CARD = 1
# Juju's default from one update-status to the next, in seconds (update-status-hook-interval).
JUJU_INTERVAL = 300
# Each takes this many at most: with the restart before, some ten seconds to half a minute each.
MOST = {"event": 20, "poll": 20, "hang": 5, "wake": 10, "hook": 5}
JUJU_EXEC = "/usr/bin/juju-exec"
NOTE = "/run/bench-woken"
# Notes when it is called, in seconds since boot, and has the charm's own hook left out.
NOTES_A_WAKE = f"#!/bin/sh\ncut -d' ' -f1 /proc/uptime >>{NOTE}\n"
# What the processes of a service took of one processor meanwhile, in percent, and their memory, in
# MB: each page that several share is divided among them (PSS).
COST = """
import os, pathlib, subprocess, sys, time
def stats():
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    return found
def tree(found):
    own = {int(subprocess.check_output(["systemctl", "show", "-P", "MainPID", sys.argv[1]]))}
    while more := {pid for pid, (parent, _) in found.items() if parent in own} - own:
        own |= more
    return own
def ticks():
    found = stats()
    return sum(found[pid][1] for pid in tree(found))
before, began = ticks(), time.monotonic()
time.sleep(float(sys.argv[2]))
used = (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)
pss = 0
for pid in tree(stats()):
    for line in pathlib.Path("/proc", str(pid), "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            pss += int(line.split()[1])
print(f"[{100 * used}, {pss * 1024 / 1e6}]")
"""
SECONDS = 60


def run(options: Options) -> list[Report]:
    """Measure in a lab of its own."""
    report = Report("The GPU health service")
    with tempfile.TemporaryDirectory() as folder:
        say = Progress()
        lab = Lab(Path(folder) / "lab", say)
        try:
            walk.up(lab, say)
            site = Site(lab)
            site.configure(selftest_on_start="false")
            _fill(report, _Bench(site, options.n))
        finally:
            lab.controller.destroy()
    return [report]


class _Bench:
    def __init__(self, site: Site, n: int) -> None:
        self.site, self.n = site, n
        self.watch = Watch(site)

    def times(self, kind: str, *commands: tuple[str, ...]) -> list[float]:
        """Seconds from a fault to the refusal of leases, again and again."""
        found = []
        for number in range(min(self.n, MOST[kind])):
            self.watch.mend()
            # At any moment between two polls.
            time.sleep(2 + number * 15 / max(1, min(self.n, MOST[kind])))
            found.append(self.watch.faults(CARD, *commands))
        return found

    def wakes(self) -> list[float]:
        """Seconds from a fault to the charm's wake, which is then left out."""
        found, machine = [], self.site.machine()
        real = self.site.sh(f"readlink {JUJU_EXEC}").strip()
        self.site.sh(f"rm -f {JUJU_EXEC}")
        machine.write(JUJU_EXEC, NOTES_A_WAKE, 0o755)
        try:
            for _ in range(min(self.n, MOST["wake"])):
                self.watch.mend()
                time.sleep(3)
                self.site.sh(f"rm -f {NOTE}")
                began = float(self.site.sh("cut -d' ' -f1 /proc/uptime"))
                self.watch.faults(CARD, ("xid", str(CARD), "79", "--only", "nvml"))
                self.watch.until(lambda: self.site.sh(f"cat {NOTE} 2>&-; true"))
                found.append(float(self.site.sh(f"head -n 1 {NOTE}")) - began)
        finally:
            self.site.sh(f"ln -sfn {real} {JUJU_EXEC}")
        return found

    def hooks(self) -> list[float]:
        """Seconds of a hook that finds nothing to do, as without the service."""
        found = []
        for _ in range(min(self.n, MOST["hook"])):
            began = time.monotonic()
            self.site.lab.model.update_status("worker/0")
            self.site.lab.settle()
            found.append(time.monotonic() - began)
        return found

    def cost(self) -> tuple[float, float]:
        """Percent of one processor, and MB."""
        argv = ["/usr/bin/python3", "-c", COST, SERVICE, str(SECONDS)]
        cpu, memory = json.loads(self.site.machine().run(argv, timeout=SECONDS + 60).stdout)
        return cpu, memory


def _fill(report: Report, bench: _Bench) -> None:
    hooks = bench.hooks()
    bench.watch.mend()
    time.sleep(20)  # its start is not what it costs
    costs = {"no job has a GPU": bench.cost()}
    task = bench.site.start_task(f"sleep {SECONDS + 30}", params={"GPU_COUNT": "1"})
    time.sleep(5)
    costs["a job has a GPU"] = bench.cost()
    task.communicate(timeout=SECONDS + 120)
    event = ("xid", str(CARD), "79", "--only", "nvml")
    arms = {
        "an event of NVML's": bench.times("event", event),
        "a poll alone": bench.times("poll", ("set", str(CARD), "field-230=1")),
        "the driver hangs": bench.times("hang", ("hang",)),
        "the charm is woken (event)": bench.wakes(),
    }
    bench.watch.mend()
    # On average a hook comes half an interval after the fault.
    baseline = JUJU_INTERVAL / 2 + statistics.median(hooks)
    report.blocks += [_text(bench, hooks, baseline), _times(arms, baseline), _costs(costs)]
    for name, most in (
        ("an event of NVML's", 5),
        ("a poll alone", 30),
        ("the driver hangs", 30),
        ("the charm is woken (event)", 30),
    ):
        report.ceilings.append(Ceiling(f"{name}, maximum in s", max(arms[name]), most))
    for what, which, most in (("% of one processor", 0, 0.5), ("memory in MB (PSS)", 1, 40)):
        report.ceilings.append(Ceiling(what, max(cost[which] for cost in costs.values()), most))


def _text(bench: _Bench, hooks: list[float], baseline: float) -> str:
    return (
        "A worker of the lab with two simulated GPUs. A fault is caused at a random moment "
        "between two polls. The time runs until the record exists that makes the GPU runtime "
        "refuse leases. The baseline is a check without this service: Juju's update-status, every "
        f"{JUJU_INTERVAL} s, and a hook of {statistics.median(hooks):.1f} s (median of "
        f"{len(hooks)}, measured in the same run): {baseline:.0f} s on average. The cost is that "
        f"of all processes of {SERVICE} over {SECONDS} s."
    )


def _times(arms: dict[str, list[float]], baseline: float) -> str:
    lines = ["| seen by | n | median, s | 10th to 90th percentile | maximum | to the baseline |"]
    lines.append("|---|---|---|---|---|---|")
    for name, took in arms.items():
        median = percentile(took, 50)
        lines.append(
            f"| {name} | {len(took)} | {median:.1f} | {spread(took, '.1f')} | {max(took):.1f} | "
            f"**{median / baseline:.3f}** |"
        )
    return "\n".join(lines)


def _costs(costs: dict[str, tuple[float, float]]) -> str:
    lines = ["| while | % of one processor | MB (PSS) |", "|---|---|---|"]
    lines += [f"| {name} | {cpu:.2f} | {memory:.1f} |" for name, (cpu, memory) in costs.items()]
    return "\n".join(lines)
