# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The documented example of minimums: what just fits it passes, what is smaller fails."""

import dataclasses
import os
import re
import shlex

import pytest

from gpu_agent.gpu.vendors.nvidia.xid import Log
from gpu_selftest.check import Outcome
from gpu_selftest.quick import gpu_checks
from options.table import Minimums
from tests.unit.host_site import Site
from tests.unit.situations import GPUS, ROOT, parse
from tests.unit.test_selftest_gpu_checks import HEALTHY

PAGE = (ROOT / "docs/how-to/minimums.md").read_text()
CHECKS = ["driver-version", "host-cpus", "host-memory", "memory", "compute-capability"]
# What NVIDIA's driver and Linux tell of a machine of 4 processors, 16 GB and a GPU of 8 GB.
FITS = {
    "cpus": 4, "memory_kb": 16_123_000, "gpu_mib": 8_119, "capability": (7, 0),
    "driver": "535.54.03",
}  # fmt: skip


def minimums():
    """What the page's first command comes to, as the charm reads it."""
    command = shlex.split(re.findall(r"^    (juju config .*)$", PAGE, re.MULTILINE)[0])
    assert command[:3] == ["juju", "config", "worker"]
    given = dict(one.split("=", 1) for one in command[3:])
    options = parse(**{name.replace("-", "_"): value for name, value in given.items()})
    assert options.wrong == ()
    return options.minimums


@pytest.fixture
def judge(tmp_path, monkeypatch):
    """Says how each check of a minimum ends on a machine like FITS, with these changes."""

    def judge(**changes):
        has, asked = FITS | changes, minimums()
        gpu = dataclasses.replace(GPUS[0], memory_mib=has["gpu_mib"])
        site = Site(tmp_path, (gpu,))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(has["cpus"])))
        site.put("proc/meminfo", f"MemTotal: {has['memory_kb']:>15} kB\n")
        site.inventory = dataclasses.replace(site.inventory, driver=has["driver"])
        site.settings = dataclasses.replace(
            site.settings,
            min_cpus=asked.cpus,
            min_memory_gib=asked.memory_gib,
            min_gpu_memory_gib=asked.gpu_memory_gib,
            min_compute_capability=asked.compute_capability,
            min_driver_version=asked.driver_version,
        )
        capability, memory = has["capability"], has["gpu_mib"]
        told = dataclasses.replace(HEALTHY, compute_capability=capability, memory_mib=memory)
        found = site.run() + gpu_checks.run(site.settings, {gpu.uuid: told}, Log(), (gpu,))
        return {one.check: one.outcome for one in found if one.check in CHECKS}

    return judge


def test_the_example_is_of_the_thresholds_that_it_tells():
    assert minimums() == Minimums(4, 16, 8, "7.0", "535")


def test_a_machine_that_just_fits_passes(judge):
    assert judge() == dict.fromkeys(CHECKS, Outcome.PASSED)


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("host-cpus", {"cpus": 3}),
        ("host-memory", {"memory_kb": 15_200_000}),
        ("memory", {"gpu_mib": 6_144}),
        ("compute-capability", {"capability": (6, 1)}),
        ("driver-version", {"driver": "530.41.03"}),
    ],
)
def test_one_that_is_smaller_fails_by_that_alone(judge, check, change):
    assert judge(**change) == dict.fromkeys(CHECKS, Outcome.PASSED) | {check: Outcome.FAILED}


def test_the_page_takes_back_what_it_asks():
    reset = re.search(r"--reset (\S+)$", PAGE, re.MULTILINE).group(1)
    assert reset == "minimums"
