# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the lab's own tests need beside a lab that is up: machines and models of their own."""

import pathlib

import pytest

from tests.lab import shellcharm
from tests.lab.juju.controller import Controller
from tests.lab.juju.model import Model
from tests.lab.park import Park


@pytest.fixture(scope="module")
def untested(site):
    """Nothing tests the GPUs or takes one out, for tests of what else comes with their changes."""
    site.configure(selftest_on_start="false", gpu_health="off")
    yield
    site.configure(selftest_on_start="true", reset=("gpu-health",))


@pytest.fixture(scope="module")
def watched(site):
    """The watch has the GPUs tested, and nobody else."""
    site.configure(selftest_on_start="false")
    yield
    site.configure(selftest_on_start="true")


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
