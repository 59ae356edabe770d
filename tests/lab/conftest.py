# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the lab's own tests need: root, systemd-nspawn, and a directory for a lab of their own."""

import os
import pathlib
import shutil

import pytest

from tests.lab import concourse, shellcharm, walk
from tests.lab.juju.controller import Controller
from tests.lab.juju.model import Model
from tests.lab.park import Park
from tests.lab.session import Lab, Progress
from tests.lab.site import Site


def reason_to_skip() -> str:
    """Why no machine can run here, or nothing."""
    if os.geteuid() != 0:
        return "machines need root"
    for program in ("systemd-nspawn", "nsenter", "unshare", "ip", "unzip"):
        if not shutil.which(program):
            return f"{program} is not installed: scripts/setup lab"
    return ""


@pytest.fixture(scope="session")
def machines_work() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)


@pytest.fixture
def park(machines_work, tmp_path: pathlib.Path):
    park = Park(tmp_path / "lab")
    yield park
    park.destroy()


@pytest.fixture
def model(machines_work, tmp_path: pathlib.Path):
    """An empty model; failed hooks are retried at once."""
    controller = Controller(tmp_path / "lab", retry_seconds=0.01)
    yield Model(controller)
    controller.destroy()


@pytest.fixture
def deploy(model: Model, tmp_path: pathlib.Path):
    """Deploy a shell charm with hooks as an application; does not settle."""

    def deploy(app: str, hooks: dict[str, str] | None = None, **options):
        charm = shellcharm.pack(tmp_path / f"{app}.charm", hooks)
        model.deploy(charm, app, **options)

    return deploy


@pytest.fixture(scope="session")
def walked(machines_work, tmp_path_factory: pytest.TempPathFactory):
    """A lab after `lab up`: web, worker with two GPUs, postgresql. Each test leaves it so."""
    say = Progress()
    lab = Lab(tmp_path_factory.mktemp("walk"), say)
    try:
        walk.up(lab, say)
        yield lab
    finally:
        lab.controller.destroy()


def pytest_report_header() -> list[str]:
    """Which Concourse and NVIDIA runtime these tests run with."""
    kinds = {True: "the real one", False: "a stand-in"}
    runtime = bool(os.environ.get("GPUCI_NVIDIA_RUNTIME"))
    return [
        f"Concourse in the lab: {kinds[concourse.is_real()]}",
        f"nvidia-container-runtime in the lab: {kinds[runtime]}",
    ]


@pytest.fixture(scope="session")
def site(walked: Lab) -> Site:
    """The same lab in the words of its tests."""
    return Site(walked)
