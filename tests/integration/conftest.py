# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""These tests need a Juju controller: without one they are skipped, or fail if REQUIRE_JUJU=1."""

import importlib.util
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def what_is_missing() -> str:
    """Why no test can run here, as a sentence; empty when all can."""
    juju = shutil.which("juju")
    if not juju:
        return "there is no juju command on this machine"
    who = subprocess.run([juju, "whoami"], check=False, capture_output=True, text=True, timeout=30)
    if who.returncode != 0:
        return f"juju has no controller here: {who.stderr.strip()}"
    if not importlib.util.find_spec("pytest_operator"):
        return "pytest-operator is not installed here: run make integration"
    if not list(ROOT.glob("gpu-ci-worker_*.charm")):
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
def charm() -> pathlib.Path:
    (path,) = ROOT.glob("gpu-ci-worker_*.charm")
    return path


@pytest.fixture(scope="session")
def concourse(tmp_path_factory) -> pathlib.Path:
    """What to attach as the release: a tarball at hand, else nothing: the charm downloads one."""
    if given := os.environ.get("GPUCI_CONCOURSE_TARBALL"):
        return pathlib.Path(given)
    empty = tmp_path_factory.mktemp("resource") / "concourse.tgz"
    empty.touch()
    return empty
