# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Without a controller of Juju 3.6 the test is skipped, or fails if REQUIRE_JUJU36=1."""

import os

import pytest

from tests.integration import needs


@pytest.fixture(scope="session")
def lacking():
    """Skip the test for a reason, or fail if REQUIRE_JUJU36=1."""

    def lacking(reason):
        if os.environ.get("REQUIRE_JUJU36") == "1":
            pytest.fail(f"REQUIRE_JUJU36=1, but {reason}", pytrace=False)
        pytest.skip(reason)

    return lacking


@pytest.fixture(scope="session", autouse=True)
def controller(lacking):
    """See that there is a controller, before pytest-operator's fixture asks it for a model."""
    if missing := needs.what_is_missing_for_juju_36():
        lacking(missing)
