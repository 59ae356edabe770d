# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the self-test does with a further check; test_trial_ci.py runs it.

It runs with the modules of a copy of this tree, in which the check is one of the machine's.
"""

import pytest

from gpu_selftest.quick import host_checks
from tests.unit.host_site import Site


@pytest.fixture
def site(tmp_path):
    # The site itself runs the test when it is set up.
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/uptime").write_text("7.5 3.0\n")
    return Site(tmp_path)


@pytest.mark.parametrize(("uptime", "outcome"), [("7.5 3.0", "passed"), ("0.5 0.1", "failed")])
def test_the_report_has_it(site, uptime, outcome):
    site.put("proc/uptime", uptime)
    (found,) = [one for one in site.run() if one.check == "uptime"]
    assert (found.outcome.value, found.value) == (outcome, float(uptime.split()[0]))


def test_it_is_one_of_the_machines_checks():
    assert "uptime" in {one.id for one in host_checks.CHECKS}
