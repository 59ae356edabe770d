# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The table of the toolkit's vulnerabilities; the rest is tested through allowed."""

import pytest

from gpu.inventory import Inventory, State
from plan import obstacles
from plan.state import Toolkit

CVES_OF = {
    "1.14.0": 10,
    "1.16.1": 10,
    "1.16.2": 8,
    "1.17.0": 7,
    "1.17.1": 4,
    "1.17.3": 4,
    "1.17.4": 3,
    "1.17.7": 3,
    "1.17.8": 1,
    "1.17.9": 1,
    "1.18.2": 1,
    "1.19.0": 1,
    "1.19": 1,
    "1.19.1": 0,
    "1.19.1-1": 0,
    "1.20.0": 0,
    "2.0.0": 0,
}


@pytest.mark.parametrize(("version", "count"), CVES_OF.items())
def test_a_version_has_the_vulnerabilities_that_were_mended_after_it(version, count):
    assert len(obstacles.advisories(version)) == count


@pytest.mark.parametrize(
    ("version", "added"),
    [
        ("1.16.1", {"CVE-2024-0132", "CVE-2024-0133"}),
        ("1.16.2", {"CVE-2024-0134"}),
        ("1.17.0", {"CVE-2024-0135", "CVE-2024-0136", "CVE-2024-0137"}),
        ("1.17.3", {"CVE-2025-23359"}),
        ("1.17.7", {"CVE-2025-23266", "CVE-2025-23267"}),
        ("1.19.0", {"CVE-2026-24260"}),
    ],
)
def test_the_last_version_with_a_vulnerability(version, added):
    *start, last = version.split(".")
    following = ".".join([*start, str(int(last) + 1)])
    if version == "1.16.2":
        following = "1.17.0"
    ids, rest = ({one.cve for one in obstacles.advisories(v)} for v in (version, following))
    assert ids - rest == added
    assert rest <= ids


def test_the_safe_version_has_none_and_the_table_names_each_once():
    assert obstacles.SAFE_TOOLKIT == "1.19.1"
    assert obstacles.advisories(obstacles.SAFE_TOOLKIT) == ()
    ids = [one.cve for one in obstacles.ADVISORIES]
    assert len(ids) == len(set(ids))
    assert all(0 < one.severity <= 10 for one in obstacles.ADVISORIES)


def test_status_names_the_gravest_and_counts_the_others():
    found = obstacles.of_toolkit(Toolkit("/usr/bin/nvidia-container-runtime", "1.17.7"))
    assert str(found) == (
        "nvidia-container-runtime 1.17.7 has known vulnerabilities (CVE-2025-23266 and 2 more): "
        "install nvidia-container-toolkit 1.19.1 or newer"
    )


@pytest.mark.parametrize("state", list(State))
def test_a_state_says_what_is_there_and_what_to_do(state):
    inventory = Inventory(state, detail="GPU 1: {x}")
    found = obstacles.of_state(inventory, "worker", "auto")
    if state is State.READY:
        assert found is None
        return
    assert found is not None
    assert found.what
    assert found.remedy
    assert "{" not in found.remedy
    assert str(found) == f"{found.what}: {found.remedy}"
