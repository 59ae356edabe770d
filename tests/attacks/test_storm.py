# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A short storm of attacks among honest tasks; tests/soak has the long one."""

from tests.attacks import storm

SECONDS = 10


def test_a_storm_of_attacks_among_honest_tasks(attacker):
    """Attackers do whatever these tests have, at random and at once, while others work.

    No honest task must come to harm, no GPU be open to two, and none be lost at the end.
    """
    storm.assert_no_harm(attacker, SECONDS, seed=1)
