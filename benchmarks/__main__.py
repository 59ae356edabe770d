# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Measure GPU runtime and health service against baselines of the same run. Needs root."""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks import concourse, containerd, fairness, handover, health, leases, page, runtime
from benchmarks.measure import Options, Report
from benchmarks.place import started
from tests.functional.containerd_worker import Worker

IN_A_WORKER: dict[str, Callable[[Worker, Options], list[Report]]] = {
    "runtime": runtime.run,
    "containerd": containerd.run,
    "leases": leases.run,
    "handover": handover.run,
    "fairness": fairness.run,
}
NAMES = [*IN_A_WORKER, "concourse", "health"]


def main() -> int:
    """Run what the command line names; exit status 1 where --check finds a figure too high."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; all without any")
    parser.add_argument("--n", type=int, default=60, help="measurements of each arm (60)")
    parser.add_argument("--seed", type=int, help="decides every order (by chance)")
    parser.add_argument("--check", action="store_true", help="fail where a ceiling is not held")
    parser.add_argument("--write", action="store_true", help=f"write {page.PAGE.name}")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    options = Options(arguments.n, random.Random(seed))
    conditions = [f"n = {options.n} and seed {seed}, unless a table says otherwise"]
    conditions.append(f"Load of the machine: {page.load()} before the first measurement")
    print("\n".join(conditions), flush=True)
    reports = []
    for report in _run(arguments.names or NAMES, options):
        print(f"\n{page.text(report)}", flush=True)
        reports.append(report)
    conditions[-1] += f", {page.load()} after the last, of which about 1 is its own"
    if arguments.write:
        write = page.renew if arguments.names else page.write
        write(reports, conditions)
    too_high = [one for report in reports for one in report.ceilings if not one.holds]
    for one in too_high:
        print(f"too high: {one.what}: {one.value:.2f}, at most {one.ceiling:g}")
    return int(arguments.check and bool(too_high))


def _run(names: list[str], options: Options) -> Iterator[Report]:
    chosen = [name for name in IN_A_WORKER if name in names]
    if chosen:
        with started() as worker:
            for name in chosen:
                began = time.monotonic()
                yield from IN_A_WORKER[name](worker, options)
                print(f"{name} took {time.monotonic() - began:.0f} s")
    if "concourse" in names:
        yield from concourse.run(options)
    if "health" in names:
        yield from health.run(options)


if __name__ == "__main__":
    sys.exit(main())
