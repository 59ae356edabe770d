# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A task that tells, line by line, whether it stood still and whether anything of it was lost."""

import itertools
import re

from tests.lab import outfit
from tests.lab.builds import Build
from tests.lab.site import BEGIN_SECONDS, Site

# In the root file system that all tasks of a machine share.
GO = "/tmp/go-standing"
TASK = f"""
number=0
until [ -e {GO} ]; do
  number=$((number + 1))
  echo "line $number at $(cut -d' ' -f1 /proc/uptime)"
  sleep 0.2
done
echo "$number lines at $(cut -d' ' -f1 /proc/uptime)"
"""


def begin(site: Site, gpus: str = "1", unit: str = "worker/0") -> Build:
    """Start the task on a unit's worker, and wait until it has begun; `end` lets it end."""
    site.sh(f"rm -f {outfit.ROOTFS}{GO}", unit)
    build = Build(site.fly, *site.fly.task(["sh", "-c", TASK], ["gpu"], {"GPU_COUNT": gpus}))
    build.line("line 1 ", BEGIN_SECONDS)
    return build


def end(site: Site, unit: str = "worker/0") -> None:
    """Let it end once it goes on."""
    site.sh(f"touch {outfit.ROOTFS}{GO}", unit)


def longest_pause(output: str) -> float:
    """The longest from a line to the next, in seconds; no line may be missing."""
    lines = re.findall(r"line (\d+) at ([\d.]+)", output)
    ((count, ended),) = re.findall(r"(\d+) lines at ([\d.]+)", output)
    assert [int(number) for number, _ in lines] == [*range(1, int(count) + 1)], output
    times = [float(at) for at in (*(at for _, at in lines), ended)]
    return max(after - before for before, after in itertools.pairwise(times))
