# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""These tests need a Juju controller: without one they are skipped, or fail if REQUIRE_JUJU=1."""

import contextlib
import os
import pathlib
import shutil
import subprocess

import jubilant
import pytest

from tests.integration.site import Site

ROOT = pathlib.Path(__file__).resolve().parents[2]


def charms() -> list[pathlib.Path]:
    """The charm to test: GPUCI_CHARM, else the packed one."""
    if given := os.environ.get("GPUCI_CHARM"):
        return [pathlib.Path(given).resolve()]
    return list(ROOT.glob("gpu-ci-worker_*.charm"))


def what_is_missing() -> str:
    """Why no test can run here, as a sentence; empty when all can."""
    juju = shutil.which("juju")
    if not juju:
        return "there is no juju command on this machine"
    who = subprocess.run([juju, "whoami"], check=False, capture_output=True, text=True, timeout=30)
    if who.returncode != 0:
        return f"juju has no controller here: {who.stderr.strip()}"
    if len(charms()) != 1:
        return "there is no packed charm: run make pack"
    return ""


MISSING = what_is_missing()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    if not MISSING:
        return
    if os.environ.get("REQUIRE_JUJU") == "1":
        pytest.fail(f"REQUIRE_JUJU=1, but {MISSING}", pytrace=False)
    pytest.skip(MISSING)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The model: GPUCI_JUJU_MODEL, which stays, or one of the tests' own."""
    given = os.environ.get("GPUCI_JUJU_MODEL")
    machines = os.environ.get("GPUCI_JUJU_MACHINES", "")
    own = contextlib.nullcontext(jubilant.Juju(model=given)) if given else jubilant.temp_model()
    with own as juju:
        home = tmp_path_factory.mktemp("integration")
        yield Site(juju, charms()[0], home, machines.split(",") if machines else [])
