# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""docs/reference/performance.md: what the benchmarks found, with the machine and the date."""

import dataclasses
import datetime
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Ceiling, Report

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "performance.md"
INTRODUCTION = """\
# Performance

The cost of the GPU runtime and the GPU health service. `make bench` measures it and writes this
page. With arguments it only prints: `make bench BENCH_ARGS="runtime --n 200"` measures one part
more often, `--write` in addition replaces that part here, and `--check` fails if a figure is
above its ceiling.

How to read it:

- Compare ratios, not milliseconds. The baseline, in the first column, was measured in the same
  run, on the same machine. The arms took turns in random order, and each figure is a median.
- In brackets: 10th to 90th percentile; for a ratio, those of the ratios within one turn.
- A create without a GPU costs the start of a shell and one grep, 1.7 ms on this machine. If
  runc's own create takes less than 30 ms, that is more than its ceiling of 6 %.
- A decision reads and writes the table of all holders, so it takes longer the more devices are
  held. A job waits for the create, of which the decision is a small part.
- Containers have volumes of their own, as in Concourse; a create checks the volumes of the
  others.
- GPUs are simulated. The driver and the NVIDIA runtime need additional time for a physical GPU.

Measured on:
"""


def machine() -> str:
    """The machine in a line, with the versions that matter."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    parts = [
        f"{os.cpu_count()} x {cpu.group(1).strip() if cpu else platform.machine()}",
        f"{memory:.0f} GiB",
        platform.freedesktop_os_release()["PRETTY_NAME"],
        f"Linux {platform.release()}",
        f"cgroup {'v2' if unified else 'v1'}",
        *(
            _first_line(*command)
            for command in (
                ("runc", "--version"),
                ("containerd", "--version"),
                ("/usr/bin/python3", "--version"),
                ("bash", "--version"),
                ("jq", "--version"),
            )
        ),
    ]
    return ", ".join(parts)


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()[0]


def load() -> str:
    """How busy the machine is."""
    return f"{os.getloadavg()[0]:.1f}"


def text(report: Report) -> str:
    """One report with its figures and their ceilings."""
    blocks = [f"## {report.title}", *report.blocks]
    if report.ceilings:
        blocks.append("\n".join(["| promised | is | at most |", "|---|---|---|"] + [
            f"| {one.what} | {_figure(one)} | {one.ceiling:g} |" for one in report.ceilings
        ]))  # fmt: skip
    return "\n\n".join(blocks) + "\n"


def _figure(ceiling: Ceiling) -> str:
    figure = f"{ceiling.value:.2f}" if ceiling.value < 10 else f"{ceiling.value:.0f}"
    return figure if ceiling.holds else f"**{figure}, too high**"


def write(reports: Sequence[Report], conditions: Sequence[str]) -> None:
    """The whole page."""
    how = "\n".join(f"- {line}" for line in _where(conditions))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join([INTRODUCTION, how, "", *map(text, reports)]))


def renew(reports: Sequence[Report], conditions: Sequence[str]) -> None:
    """The sections of these reports, each with where it was measured; the others stay."""
    head, *sections = re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE)
    kept = {section.partition("\n")[0]: section for section in sections}
    for report in reports:
        where = f"Measured on {'; '.join(_where(conditions))}."
        whole = dataclasses.replace(report, blocks=[*report.blocks, where])
        kept[f"## {report.title}"] = text(whole)
    PAGE.write_text(head + "\n".join(section.rstrip("\n") + "\n" for section in kept.values()))


def _where(conditions: Sequence[str]) -> list[str]:
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    return [f"{today}, {machine()}", *conditions]
