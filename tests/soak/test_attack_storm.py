# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The long storm of attacks among honest tasks, through the lab.

GPUCI_STORM_MINUTES says for how long, half an hour unless it is set; GPUCI_STORM_SEED repeats one.
"""

import os
import time

import pytest

from tests.attacks import storm

if "GPUCI_SOAK" not in os.environ:
    pytest.skip("`make soak` runs it", allow_module_level=True)
MINUTES = float(os.environ.get("GPUCI_STORM_MINUTES", "30"))


def test_half_an_hour_of_attacks_among_honest_tasks(attacker):
    seed = int(os.environ.get("GPUCI_STORM_SEED") or time.time())
    raged = storm.assert_no_harm(attacker, MINUTES * 60, seed)
    print(f"seed {seed}: {raged.attacks} attacks, {len(raged.held)} GPUs held by honest tasks")
