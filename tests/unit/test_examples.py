# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The example pipelines ask for tags that this charm's workers have, and for GPUs they can get."""

import pytest
import yaml

from gpu.inventory import Vendor
from plan.gpus import choose
from plan.tags import of_gpus
from tests.unit.situations import ROOT, gpu, situation, sliced

EXAMPLES = sorted((ROOT / "examples").glob("*.yml"))
T4 = {"model": "Tesla T4", "memory_mib": 15360}
MI300X = {"vendor": Vendor.AMD, "model": "AMD Instinct MI300X", "memory_mib": 196592, "minor": -1}
# Machines as there are many; `cuda` is the driver's.
WORKERS = [
    situation(gpu(0, **T4), cuda="12.4"),
    situation(gpu(0), gpu(1)),
    situation(*map(gpu, range(8)), cuda="12.8"),
    situation(sliced(0, *["1g.10gb"] * 7), cuda="13.1"),
    situation(*(gpu(n, **MI300X) for n in range(8)), vendor=Vendor.AMD, cuda=""),
]


def tags(worker):
    return set(of_gpus(worker, choose(worker)))


def steps(example):
    return [step for job in example["jobs"] for step in job["plan"]]


def faults(example):
    """Steps and resources that no worker takes, or that ask for GPUs without saying so by tag."""
    found = []
    for step in [*steps(example), *example.get("resources", ())]:
        asked = set(step.get("tags", ()))
        fit = [worker for worker in WORKERS if asked <= tags(worker)]
        if not fit:
            found.append(f"no worker has {sorted(asked)}")
        count = str(step.get("params", {}).get("GPU_COUNT", ""))
        if count.isdecimal() and int(count) > 1 and f"gpu-count>={count}" not in asked:
            found.append(f"asks for {count} GPUs and not for a worker with so many")
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_step_finds_a_worker(path):
    assert faults(yaml.safe_load(path.read_text())) == []


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        ({"tags": ["gpu", "gpu-memory>=17GiB"]}, "no worker has"),
        ({"tags": ["gpu", "gpu-count >= 2"]}, "no worker has"),
        ({"tags": ["gpu", "cuda>=12.10"]}, "no worker has"),
        ({"tags": ["gpu", "gpu-type=amd", "cuda>=12.0"]}, "no worker has"),
        ({"tags": ["gpu"], "params": {"GPU_COUNT": "2"}}, "asks for 2 GPUs"),
    ],
)
def test_a_step_that_would_wait_for_ever_is_noticed(step, fault):
    (found,) = faults({"jobs": [{"plan": [step]}]})
    assert found.startswith(fault)


def test_one_example_shows_the_ladders_with_a_count_and_attempts():
    example = yaml.safe_load((ROOT / "examples/multi-gpu.yml").read_text())
    (train,) = [step for step in steps(example) if step.get("attempts")]
    assert train["params"]["GPU_COUNT"] == "2"
    begins = {tag.partition(">=")[0] for tag in train["tags"] if ">=" in tag}
    assert begins == {"gpu-count", "gpu-memory", "cuda"}
    fit = [worker for worker in WORKERS if set(train["tags"]) <= tags(worker)]
    assert fit == WORKERS[1:3]
