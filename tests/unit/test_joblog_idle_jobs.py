# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A GPU is unused where each look shows that, and never where something can't be told."""

import pytest

from gpu_agent.model.card import Figures
from gpu_agent.reporting.joblog.idle_jobs import PATIENCE, Idle, is_used

IDLE = {"busy": 0, "memory_used_mib": 4, "memory_total_mib": 81920, "pids": ()}


@pytest.mark.parametrize(
    ("figures", "on_the_machine", "in_a_container"),
    [
        (IDLE, False, False),
        ({**IDLE, "pids": (7,)}, True, True),
        ({**IDLE, "busy": 1}, True, True),
        ({**IDLE, "busy": 1, "pids": None}, True, True),
        ({**IDLE, "busy": None, "pids": (7,)}, True, True),
        ({**IDLE, "pids": None}, False, False),
        # A context takes memory; who has it is not told everywhere.
        ({**IDLE, "memory_used_mib": 500}, False, None),
        ({**IDLE, "memory_used_mib": 500, "pids": None}, None, None),
        ({**IDLE, "memory_used_mib": None}, False, None),
        ({**IDLE, "memory_used_mib": None, "pids": None}, None, None),
        ({**IDLE, "busy": None}, None, None),
        ({}, None, None),
        ({"failure": "GPU is lost"}, None, None),
    ],
)
def test_what_a_look_says(figures, on_the_machine, in_a_container):
    assert is_used(Figures(**figures), sees_all=True) is on_the_machine
    assert is_used(Figures(**figures), sees_all=False) is in_a_container


def looks(*said, every=15.0, idle=None):
    idle = idle or Idle()
    at = idle.last
    for used in said:
        at += every
        idle.look(at, used=used)
    return idle


def test_a_gpu_that_no_look_finds_in_use_is_unused_for_that_long():
    assert looks(*[False] * 40).seconds == 39 * 15 < PATIENCE
    assert looks(*[False] * 41).seconds == PATIENCE


def test_one_that_was_used_once_is_never_unused():
    assert looks(*[True], *[False] * 100).seconds == 0
    assert looks(*[False] * 30, *[True], *[False] * 100).seconds == 0


def test_what_nobody_saw_does_not_count():
    assert looks(*[False] * 39, None, *[False] * 39).seconds == 38 * 15
    assert looks(*[False] * 39, None).seconds == 0
    gap = looks(*[False] * 39)
    gap.look(gap.last + 61, used=False)
    assert gap.seconds == 0
    assert looks(*[False] * 38, idle=gap).seconds == 38 * 15
