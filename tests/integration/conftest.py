# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""These tests need a Juju controller: without one they are skipped, or fail if REQUIRE_JUJU=1."""

import contextlib
import os

import jubilant
import pytest

from tests.integration import needs
from tests.integration.site import Site

# Its packages are in an environment of its own: make integration36.
collect_ignore = ["juju36"]

MISSING = needs.what_is_missing()


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
        yield Site(juju, needs.charms()[0], home, machines.split(",") if machines else [])
