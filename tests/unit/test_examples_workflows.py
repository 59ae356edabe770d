# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The example workflows ask for labels that runners have, and fail without what they ask for."""

import subprocess

import pytest
import yaml

from ci.runners import labels
from ci.runners.labels import Common, Facts
from tests.unit.situations import ROOT

EXAMPLES = sorted((ROOT / "examples/github").glob("*.yml"))
A100 = Facts("nvidia", "a100-sxm4-80gb", 80)
MACHINE = Common("x86_64", cuda="13.0", driver="580.95.05")
# By the number of their GPUs.
RUNNERS = {count: {*labels.of(MACHINE, [A100] * count)} for count in range(9)}
SMI = (
    "#!/bin/sh\ntest -n '{gpus}' || exit 9\nprintf 'GPU %s: NVIDIA A100 (UUID: GPU-1)\\n' {gpus}\n"
)


def jobs(path):
    return yaml.safe_load(path.read_text())["jobs"].values()


JOBS = [
    pytest.param(job, id=f"{path.stem}-{n}")
    for path in EXAMPLES
    for n, job in enumerate(jobs(path))
]


def fitting(job):
    """The numbers of GPUs of the runners that a service gives this job to."""
    return [count for count, offered in RUNNERS.items() if {*job["runs-on"]} <= offered]


def first_step(job, folder, gpus):
    """Run a job's first step where nvidia-smi lists these GPUs; None: it is not installed."""
    if gpus is not None:
        program = folder / "nvidia-smi"
        program.write_text(SMI.format(gpus=" ".join(map(str, range(gpus)))))
        program.chmod(0o755)
    # As GitHub and Gitea do where a step names no shell; Gitea's runner has pipefail too.
    for shell in (["-e"], ["--noprofile", "--norc", "-e", "-o", "pipefail"]):
        yield subprocess.run(
            ["/bin/bash", *shell, "-c", job["steps"][0]["run"]],
            env={"PATH": f"{folder}:/usr/bin:/bin"},
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip


def test_there_are_examples():
    assert [path.stem for path in EXAMPLES] == ["gpu-smoke", "matrix", "torch"]


@pytest.mark.parametrize("job", JOBS)
def test_a_job_finds_a_runner_with_a_gpu_and_none_without(job):
    assert 1 in fitting(job)
    assert 0 not in fitting(job)
    assert labels.count({*job["runs-on"]}, 1) == 1
    # Only this label is a promise of exactly one.
    assert (fitting(job) == [1]) == ("gpu-count-1" in job["runs-on"])


@pytest.mark.parametrize("label", ["gpu-count>=1", "gpu-type=nvidia", "x86_64", "nvidia"])
def test_a_label_that_no_runner_has_is_noticed(label):
    assert fitting({"runs-on": ["self-hosted", label]}) == []


@pytest.mark.parametrize("job", JOBS)
def test_a_job_says_what_is_wrong_without_a_gpu(job, tmp_path):
    for gpus in (None, 0):
        for done in first_step(job, tmp_path, gpus):
            assert done.returncode == 1
            assert "::error::no GPU" in done.stdout or "::error::0 GPUs" in done.stdout


@pytest.mark.parametrize("job", JOBS)
def test_a_job_goes_on_with_its_gpu(job, tmp_path):
    for done in first_step(job, tmp_path, 1):
        assert (done.returncode, "error" in done.stdout) == (0, False)


def test_a_part_of_the_matrix_refuses_a_second_gpu(tmp_path):
    (job,) = jobs(ROOT / "examples/github/matrix.yml")
    for done in first_step(job, tmp_path, 2):
        assert (done.returncode, done.stdout) == (1, "::error::2 GPUs instead of 1 in this job\n")


def test_a_fork_does_not_run_the_smoke_test_unasked():
    (job,) = jobs(ROOT / "examples/github/gpu-smoke.yml")
    assert job["if"] == "vars.ENABLE_GPU_SMOKE == 'true'"


def test_the_program_in_an_example_is_one():
    (job,) = jobs(ROOT / "examples/github/torch.yml")
    _, marked, rest = job["steps"][-1]["run"].partition("<<'END'\n")
    program, end, after = rest.partition("\nEND\n")
    assert (bool(marked), bool(end), after) == (True, True, "")
    compile(program, "torch.yml", "exec")
