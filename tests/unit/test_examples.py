# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The example pipelines ask for tags that this charm's workers have, and for GPUs they can get."""

import os
import subprocess
import tarfile

import pytest
import yaml

from plan.gpus import choose
from plan.labels import of_gpus
from tests.unit.situations import ROOT, gpu, situation, sliced

TARBALL = os.environ.get("GPUCI_CONCOURSE_TARBALL", "")
EXAMPLES = sorted((ROOT / "examples").glob("*.yml"))
T4 = {"model": "Tesla T4", "memory_mib": 15360}
# The smallest that they are to run on: a laptop's GPU of 4 GiB behind LXD, with Ubuntu's driver.
LAPTOP = situation(
    gpu(0, model="NVIDIA RTX A500 Laptop GPU", memory_mib=4096), driver="580.95.05", cuda="13.0"
)
MI300X = {"vendor": "amd", "model": "AMD Instinct MI300X", "memory_mib": 196592, "minor": -1}
# Machines as there are many; `cuda` is the driver's.
WORKERS = [
    situation(gpu(0, **T4), cuda="12.4"),
    situation(gpu(0), gpu(1)),
    situation(*map(gpu, range(8)), cuda="12.8"),
    situation(sliced(0, *["1g.10gb"] * 7), cuda="13.1"),
    situation(*(gpu(n, **MI300X) for n in range(8)), vendor="amd", cuda=""),
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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_all_but_the_one_for_several_gpus_run_on_one_of_4_gib(path):
    for step in steps(yaml.safe_load(path.read_text())):
        fits = set(step.get("tags", ())) <= tags(LAPTOP)
        count = int(step.get("params", {}).get("GPU_COUNT", "1"))
        assert (fits and count <= 1) or path.name == "multi-gpu.yml"


@pytest.mark.skipif(not TARBALL, reason="GPUCI_CONCOURSE_TARBALL is not set")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_concourses_own_fly_takes_it(path, tmp_path):
    with tarfile.open(TARBALL) as release:
        inner = release.extractfile("concourse/fly-assets/fly-linux-amd64.tgz")
        with tarfile.open(fileobj=inner) as archive:
            (tmp_path / "fly").write_bytes(archive.extractfile("fly").read())
    (tmp_path / "fly").chmod(0o755)
    done = subprocess.run(
        [tmp_path / "fly", "validate-pipeline", "--strict", "-c", path],
        env={"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "looks good\n"), done.stderr


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
