# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check that the machine is up."""

import pathlib
import typing

from gpu_selftest.check import Check, Level, Outcome, Result

CHECK: typing.Final = Check(
    "uptime", Level.QUICK, "the machine has been up for a second", unit="s", condemns=False
)


def run(root: pathlib.Path) -> Result:
    """Read for how long it has been up."""
    seconds = float((root / "proc/uptime").read_text().split()[0])
    outcome = Outcome.PASSED if seconds >= 1 else Outcome.FAILED
    return CHECK.result(outcome, f"{seconds:g} s", value=seconds, threshold="at least 1 s")
