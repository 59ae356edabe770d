# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""scripts/deploy-lxd from nothing to a ready worker, with this charm's own hooks.

Juju is the lab's, LXD a stand-in that gives machines simulated cards (localhost.py).
"""

import os
import subprocess

import pytest

from tests.lab import localhost, walk
from tests.lab.session import ROOT, Lab, Progress

pytestmark = pytest.mark.skipif(
    "GPUCI_SOAK" not in os.environ, reason="a lab of its own, a minute and more: make soak"
)
SCRIPT = ROOT / "scripts/deploy-lxd"


@pytest.fixture
def host(machines_work, tmp_path):
    """Runs the script on a machine with Juju and LXD; its exit status and all that it printed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    localhost.install(folder)
    directory = tmp_path / "lab"
    path = f"{folder}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GPUCI_LAB_DIR": str(directory)}

    def run(*arguments):
        done = subprocess.run(
            [SCRIPT, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        return done.returncode, done.stdout

    yield run
    lab = Lab(directory, Progress())
    lab.controller.destroy()


def test_one_command_brings_a_ready_worker_and_a_second_run_changes_nothing(host):
    charm = str(walk.pack())
    status, said = host("--all-in-one", "--charm", charm, "--dry-run")
    assert status == 0, said
    assert f"juju deploy {charm} ci --config deployment-mode=all" in said
    status, said = host("--all-in-one", "--charm", charm, "--yes")
    assert status == 0, said
    for shown in (
        "done: lxc config device add",
        '"message": "Web and worker ready (GPU: 2x NVIDIA, self-test passed)"',
        "user admin, password ",
        "/api/v1/cli?arch=amd64&platform=linux",
    ):
        assert shown in said, said
    status, again = host("--all-in-one")
    assert status == 0, again
    assert "Nothing to do: everything is up." in again
    assert again.rpartition("Concourse: ")[2] == said.rpartition("Concourse: ")[2]
