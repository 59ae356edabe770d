# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Versions as drivers, toolkits, CUDA and Concourse write them."""

import itertools

import pytest

from gpu_agent.model import versions


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("580.65.06", (580, 65, 6)),
        ("535", (535,)),
        ("13.0", (13, 0)),
        ("1.17.8-1", (1, 17, 8, 1)),
        ("8.3.0-rc.2+abc", (8, 3, 0, 2)),
        ("v20261121170000", (20261121170000,)),
        ("unknown", ()),
        ("", ()),
    ],
)
def test_numbers_are_told_in_their_order(version, numbers):
    assert versions.numbers(version) == numbers


def test_they_compare_as_versions_do():
    order = ["", "7.9.1", "7.10", "8.2.5", "8.3", "8.3.0", "8.10.0", "470.256.02", "1000"]
    read = [versions.numbers(version) for version in order]
    assert all(before < after for before, after in itertools.pairwise(read))


def test_what_no_integer_can_hold_is_read_all_the_same():
    assert versions.numbers("9" * 5000)
