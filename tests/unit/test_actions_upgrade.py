# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""upgrade-driver at the charm's door: what it hands on, and what follows."""

import pytest
from ops import testing

from actions import driver_upgrade as action
from actions.driver_upgrade import Request, UpgradeError
from tests.unit.situations import state, tsa

BRANCH = Request("unit/0", "auto", "580-server", 0, 7200)


@pytest.fixture
def asked(monkeypatch):
    """What was asked of the upgrade, each with whether it was a dry run."""
    asked = []

    def upgrade(request, drainer, log):
        asked.append((request, False))
        log("1 of 6: taking 2 GPUs out of use")
        if request.branch == "595-server":
            raise UpgradeError("The new driver failed", {"from": "580", "to": "595"})
        return {"self-test": "passed"}

    def preview(request):
        asked.append((request, True))
        return {"jobs": "none"}

    monkeypatch.setattr(action, "upgrade", upgrade)
    monkeypatch.setattr(action, "preview", preview)
    return asked


def run(context, **params):
    before = state(relations=[tsa()], enable_gpu=True)
    context.run(context.on.action("upgrade-driver", params=params), before)
    return dict(context.action_results)


@pytest.mark.parametrize(
    ("params", "asked_for", "dry"),
    [
        ({}, Request("unit/0", timeout=7200), False),
        ({"dry-run": True}, Request("unit/0", timeout=7200), True),
        (
            {"branch": "580-server", "wait": "0s"},
            BRANCH,
            False,
        ),
    ],
)
def test_its_parameters_are_handed_on(context, rooms, asked, params, asked_for, dry):
    shown = run(context, **params)
    assert asked == [(asked_for, dry)]
    assert shown == ({"jobs": "none"} if dry else {"self-test": "passed"})
    assert rooms.worker is not None, "tags and status follow at once"
    assert context.action_logs == ([] if dry else ["1 of 6: taking 2 GPUs out of use"])


def test_it_fails_in_words_and_tells_what_it_knows(context, rooms, asked):
    with pytest.raises(testing.ActionFailed, match="The new driver failed"):
        run(context, branch="595-server")
    assert context.action_results == {"from": "580", "to": "595"}
    assert rooms.worker is not None
