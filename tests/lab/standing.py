# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A task that tells, line by line, whether it stood still and whether anything of it was lost."""

import itertools
import re

LINES = 60
# `start_task` reads ahead of the line that it waits for.
TASK = f"""
from=$(cut -d' ' -f1 /proc/uptime)
sleep 1
echo "from $from"
for number in $(seq {LINES}); do
  echo "line $number at $(cut -d' ' -f1 /proc/uptime)"
  sleep 0.1
done
"""


def longest_pause(output: str) -> float:
    """The longest from its start or a line to the next, in seconds; no line may be missing."""
    lines = re.findall(r"line (\d+) at ([\d.]+)", output)
    assert [int(number) for number, _ in lines] == [*range(1, LINES + 1)], output
    begun = re.findall(r"from ([\d.]+)", output)
    times = [float(at) for at in (*begun, *(at for _, at in lines))]
    return max(after - before for before, after in itertools.pairwise(times))
