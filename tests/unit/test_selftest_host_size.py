# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine's processors and memory against what is asked for; a container's limits count."""

import os

import pytest

from gpu_selftest.check import Level, Outcome
from gpu_selftest.quick import host_size
from gpu_selftest.settings import Settings


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Says what a machine of these processors and files comes to for these minimums."""

    def judge(cpus=4, wanted=None, **files):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)))
        for name, text in files.items():
            path = tmp_path / FILES[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        settings = Settings("gpu-workers/3", **(wanted or {}))
        results = host_size.run(settings, tmp_path)
        assert [one.check for one in results] == ["host-cpus", "host-memory"]
        assert all(one.level is Level.QUICK and one.condemns for one in results)
        return results

    return judge


FILES = {
    "meminfo": "proc/meminfo",
    "cpu_max": "sys/fs/cgroup/cpu.max",
    "quota": "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "period": "sys/fs/cgroup/cpu/cpu.cfs_period_us",
    "memory_max": "sys/fs/cgroup/memory.max",
    "limit": "sys/fs/cgroup/memory/memory.limit_in_bytes",
    "container": "run/systemd/container",
}


def meminfo(gib):
    return f"MemTotal:       {int(gib * (1 << 20))} kB\nMemFree:  1 kB\n"


def test_without_a_minimum_nothing_is_asked(machine):
    for result in machine():
        assert (result.outcome, result.gpu) == (Outcome.SKIPPED, "")
    assert [one.text for one in machine()] == [
        "minimums has no cpus", "minimums has no memory",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cpus", "files", "found"),
    [
        (4, {}, 4),
        (5, {}, 5),
        (8, {"cpu_max": "max 100000\n"}, 8),
        (8, {"cpu_max": "400000 100000\n"}, 4),
        (8, {"quota": "-1\n", "period": "100000\n"}, 8),
        (8, {"quota": "400000\n", "period": "100000\n"}, 4),
        (8, {"cpu_max": "900000 100000\n"}, 8),
    ],
)
def test_enough_processors(machine, cpus, files, found):
    result = machine(cpus, {"min_cpus": 4}, **files)[0]
    assert (result.outcome, result.value) == (Outcome.PASSED, found)
    assert (result.text, result.threshold) == (f"{found} CPUs", "at least 4")


@pytest.mark.parametrize(
    ("cpus", "files", "found", "less"),
    [
        (3, {}, "3 CPUs", "cpus=3"),
        (1, {}, "1 CPU", "cpus=1"),
        (8, {"cpu_max": "399000 100000\n"}, "3.99 CPUs", "cpus=3"),
        (8, {"cpu_max": "50000 100000\n"}, "0.5 CPUs", ""),
        (8, {"quota": "200000\n", "period": "100000\n"}, "2 CPUs", "cpus=2"),
    ],
)
def test_too_few_processors(machine, cpus, files, found, less):
    result = machine(cpus, {"min_cpus": 4}, **files)[0]
    assert result.outcome is Outcome.FAILED
    assert result.text == f"too few CPUs: {found}, less than the minimum, 4"
    assert result.remedy == (
        f"use a machine with more CPUs, or lower the minimum by `juju config gpu-workers "
        f"minimums={less}`; then juju run gpu-workers/3 gpu-selftest"
    )


# What Linux tells of machines that are sold with so much.
@pytest.mark.parametrize(
    ("told", "sold"),
    [(0.94, 1), (1.9, 2), (3.7, 4), (7.6, 8), (15.4, 16), (15.6, 16), (30.8, 32), (62.7, 64),
     (98.2, 100), (125.5, 128), (236.0, 240), (503.5, 512), (2015.0, 2048)],
)  # fmt: skip
def test_memory_is_counted_as_it_is_sold(machine, told, sold):
    result = machine(wanted={"min_memory_gib": sold}, meminfo=meminfo(told))[1]
    assert (result.outcome, result.value) == (Outcome.PASSED, round(told, 1))
    assert (result.text, result.threshold) == (f"{told:.1f} GiB", f"at least {sold}")


@pytest.mark.parametrize(("told", "wanted"), [(14.7, 16), (29.5, 32), (117.9, 128), (236.0, 256)])
def test_the_next_smaller_size_is_too_small(machine, told, wanted):
    result = machine(wanted={"min_memory_gib": wanted}, meminfo=meminfo(told))[1]
    assert result.outcome is Outcome.FAILED
    assert result.text == f"too little memory: {told} GiB, less than the minimum, {wanted} GiB"
    less = int(result.remedy.partition("minimums=memory=")[2].partition("GiB`")[0])
    # What the remedy says helps.
    helped = machine(wanted={"min_memory_gib": less}, meminfo=meminfo(told))[1]
    assert (helped.outcome, less >= int(told)) == (Outcome.PASSED, True)


@pytest.mark.parametrize(
    ("files", "gib"),
    [
        ({"memory_max": "max\n"}, 62.7),
        ({"memory_max": f"{8 << 30}\n"}, 8.0),
        ({"limit": f"{8 << 30}\n"}, 8.0),
        ({"limit": "9223372036854771712\n"}, 62.7),
    ],
)
def test_a_containers_limit_counts(machine, files, gib):
    files |= {"meminfo": meminfo(62.7), "container": "lxc\n"}
    result = machine(wanted={"min_memory_gib": 64}, **files)[1]
    assert result.value == gib
    assert (result.outcome is Outcome.FAILED) == (gib == 8.0)
    if gib == 8.0:
        assert result.remedy.startswith(
            "raise the container's limits on its host, or lower the minimum by "
        )


def test_memory_that_is_not_told_is_no_memory_that_is_missing(machine):
    result = machine(wanted={"min_memory_gib": 1}, meminfo="")[1]
    assert result.outcome is Outcome.NOT_RUN
