# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Installing and removing the wrapper for real, in a namespace with its own /etc and /opt."""

import os
import sys

import pytest

from tests.functional.containerd_worker import (
    LAUNCHER,
    NEEDS,
    ROOT,
    RUNTIME,
    UUIDS,
    worker_in_a_namespace,
)

pytestmark = NEEDS
OURS = "/opt/gpu-ci /etc/gpu-ci /run/gpu-ci /usr/local/bin/runc-gpu-wrapper"

# Each place to be killed at in `make soak`, each third in the short form.
STRIDE = "1" if "GPUCI_SOAK" in os.environ else "3"
# Installs again and again, each time killed one side effect later (or STRIDE), then to the end.
# Says how many places that were; fails where the front is there and what it needs is not.
KILLED = """
import os, subprocess, sys
from gpu_agent.model.inventory import Gpu
from gpu_runtime import policy
from gpu_agent import paths
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from tests.killing import killed_at

gpu = Gpu(0, sys.argv[1], "nvidia", "L4", 23034, "0000:01:00.0", 0)
plan = GpuPlan((gpu,), sys.argv[2])
places = [paths.HOME, paths.CONFIG, paths.LINK]

def snapshot():
    found = {}
    for place in places:
        for path in [place, *place.rglob("*")]:
            if path.is_symlink():
                found[path] = path.readlink()
            elif path.suffix != ".pyc":
                found[path] = path.stat().st_mode, path.is_file() and path.read_bytes()
    return found

def usable():
    if paths.FRONT.exists():
        assert policy.read(str(paths.POLICY)).devices[0].id == sys.argv[1]
        assert (paths.BACK_END / "__main__.py").is_file()
        assert (paths.CONFIG / "nvidia-container-runtime" / "config.toml").is_file()
        subprocess.run([paths.FRONT, "--version"], check=True, stdout=subprocess.DEVNULL)

install.remove()
install.apply(plan)
expected = snapshot()
for before, work, after in (
    (install.remove, lambda: install.apply(plan), expected),
    (lambda: install.apply(plan), install.remove, None),
):
    step = 0
    while True:
        step += int(sys.argv[3])
        before()
        alive = not killed_at(step, work)
        usable()
        work()
        if after is None:
            assert not any(os.path.lexists(place) for place in places)
        else:
            assert snapshot() == after, step
        if alive:
            break
    print(step)
"""


@pytest.fixture(scope="module")
def host():
    with worker_in_a_namespace() as worker:
        yield worker


@pytest.fixture
def worker(host):
    host.charm()
    host.charm(1)
    return host


def listing(worker):
    line = f"find {OURS} -printf '%p %i %T@ %C@ %m %l\\n' | sort"
    return worker.inside("sh", "-c", line).stdout


def test_a_second_apply_changes_nothing(worker):
    before = listing(worker)
    assert worker.charm(1) == "False"
    assert listing(worker) == before
    assert LAUNCHER in before


def test_a_removal_takes_all(worker):
    assert worker.charm() == "True"
    assert listing(worker) == ""
    assert worker.charm() == "False"


def test_other_gpus_change_the_policy_alone(worker):
    before = set(listing(worker).splitlines())
    assert worker.charm(0, 1) == "True"
    changed = {line.split()[0] for line in set(listing(worker).splitlines()) - before}
    assert changed == {"/etc/gpu-ci", "/etc/gpu-ci/policy.json"}


def test_the_version_before_is_kept_and_older_ones_are_not(worker):
    lib = "/opt/gpu-ci/lib"
    worker.inside("mkdir", "-p", f"{lib}/0000000000000000/gpuci", f"{lib}/1111111111111111/gpuci")
    worker.inside("ln", "-sfn", "1111111111111111/gpuci", f"{lib}/gpuci")
    assert worker.charm(1) == "True"
    current = worker.inside("readlink", f"{lib}/gpuci").stdout.strip()
    folders = worker.inside("ls", lib).stdout.split()
    assert sorted(folders) == sorted(["1111111111111111", current.split("/")[0], "gpuci"])
    assert worker.inside("ls", f"{lib}/gpuci/__pycache__").stdout.count("task_call.") == 1


def test_the_packaged_configuration_stays_as_it_is(worker):
    path = "/etc/nvidia-container-runtime/config.toml"
    worker.inside("mkdir", "-p", path.rpartition("/")[0])
    worker.inside("sh", "-c", f"echo '[nvidia-container-cli] # mine' >{path}")
    assert worker.charm(1) == "True"
    private = worker.inside("cat", "/etc/gpu-ci/nvidia-container-runtime/config.toml").stdout
    assert "[nvidia-container-cli] # mine" in private
    assert worker.inside("cat", path).stdout == "[nvidia-container-cli] # mine\n"


def test_killed_at_any_step_it_works_and_ends_in_the_same(worker):
    path = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib:{ROOT}", "PATH": os.environ["PATH"]}
    done = worker.inside(sys.executable, "-c", KILLED, UUIDS[0], RUNTIME, STRIDE, env=path)
    assert done.returncode == 0, done.stderr
    installing, removing = map(int, done.stdout.split())
    assert installing > 40
    assert removing > 20
