# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the charm does with a further option; test_trial_ci.py runs it.

It runs with the modules of a copy of this tree, in which the option is declared.
"""

from ops import testing

from tests.unit.situations import OUTSIDE, parse, refused, state


def test_its_value_is_read_and_a_wrong_one_is_refused():
    assert parse().trial_speed == "slow"
    assert parse(trial_speed="fast").trial_speed == "fast"
    assert refused(trial_speed="?") == "trial-speed '?' is not allowed: use slow or fast"


def test_juju_has_it(context, rooms):
    before = state(trial_speed="?", **OUTSIDE)
    after = context.run(context.on.config_changed(), before)
    assert after.unit_status == testing.BlockedStatus(
        "trial-speed '?' is not allowed: use slow or fast"
    )
