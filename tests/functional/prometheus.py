# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Debian's Prometheus and promtool, as scripts/setup unpacks them into .prometheus/."""

import pathlib
import shutil

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def program(name):
    """Path of `prometheus` or `promtool`; skips the test where there is none."""
    unpacked = ROOT / ".prometheus/usr/bin" / name
    found = str(unpacked) if unpacked.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"there is no {name}: scripts/setup test could not download it")
    return found
