# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The toolkit by version: its vulnerabilities, what it breaks, which to have."""

import pytest

from gpu_agent.diagnosis import toolkit_versions as toolkit_policy

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
    assert len(toolkit_policy.advisories(version)) == count


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
    ids, rest = ({one.cve for one in toolkit_policy.advisories(v)} for v in (version, following))
    assert ids - rest == added
    assert rest <= ids


def test_the_safe_version_has_none_and_the_table_names_each_once():
    assert toolkit_policy.SAFE == "1.19.1"
    assert toolkit_policy.advisories(toolkit_policy.SAFE) == ()
    ids = [one.cve for one in toolkit_policy.ADVISORIES]
    assert len(ids) == len(set(ids))
    assert all(0 < one.severity <= 10 for one in toolkit_policy.ADVISORIES)
    assert all(one.lets for one in toolkit_policy.ADVISORIES)


def test_the_default_is_tested_and_safe():
    assert toolkit_policy.KNOWN_GOOD == "1.20.0-1"
    assert toolkit_policy.advisories(toolkit_policy.KNOWN_GOOD) == ()
    assert not toolkit_policy.is_untested(toolkit_policy.KNOWN_GOOD)
    assert not toolkit_policy.is_too_old(toolkit_policy.KNOWN_GOOD)


@pytest.mark.parametrize(
    ("version", "too_old", "untested"),
    [
        ("0.20.0", True, False),
        ("1.9.9", True, False),
        ("1.12.1-1", True, False),
        ("1.13.0", False, False),
        ("1.17.8-1", False, False),
        ("1.20.0-2", False, False),
        ("1.20.1-1", False, True),
        ("1.100.0", False, True),
        ("2.0.0", False, True),
    ],
)
def test_versions_out_of_the_tested_range(version, too_old, untested):
    found = toolkit_policy.is_too_old(version), toolkit_policy.is_untested(version)
    assert found == (too_old, untested)


@pytest.mark.parametrize(
    ("version", "words", "there"),
    [
        ("1.12.1-1", "annotation-prefixes", True),
        ("1.13.0-1", "annotation-prefixes", False),
        ("1.16.2-1", "IMEX", False),
        ("1.17.0-1", "IMEX", True),
        ("1.17.2-1", "IMEX", False),
        ("1.17.9-1", "is legacy", True),
        ("1.18.0-1", "is legacy", False),
        ("1.17.9-1", "DEVICES=none gives all", False),
        ("1.18.0-1", "DEVICES=none gives all", True),
        ("1.18.1-1", "DEVICES=none gives all", True),
        ("1.18.2-1", "DEVICES=none gives all", False),
        ("1.19.1-1", "named twice", False),
        ("1.20.0-1", "named twice", True),
    ],
)
def test_what_a_version_breaks(version, words, there):
    assert any(words in one.breaks for one in toolkit_policy.faults(version)) == there
