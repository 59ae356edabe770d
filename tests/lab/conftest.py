# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Fixtures of the lab's own tests: machines and models of their own."""

import pathlib

import pytest

from tests.lab import shellcharm
from tests.lab.juju.controller import Controller
from tests.lab.juju.model import Model
from tests.lab.park import Park


@pytest.fixture(scope="module")
def untested(site):
    """Disable all tests of GPUs, for tests of other effects of their changes."""
    site.configure(selftest_on_start="false", gpu_health="disabled")
    yield
    site.configure(selftest_on_start="true", reset=("gpu-health",))


@pytest.fixture(scope="module")
def watched(site):
    """Let only the GPU health service start tests of GPUs."""
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
