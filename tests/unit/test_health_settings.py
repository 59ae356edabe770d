# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the charm tells the watch comes back as it was, and nothing else comes through."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_agent.health import settings
from gpu_agent.health.settings import Settings
from gpu_agent.model.card import Card

CARD = Card("GPU-0", 0, "0000:01:00.0", "A100-SXM4-80GB", ("GPU-0",))
FULL = Settings(
    "worker/0",
    "/srv/dispatch",
    mode="observe",
    cards=(CARD, Card("GPU-1", 1, "0000:02:00.0", "T4", ("MIG-a", "MIG-b"))),
    driver="580.95.05",
    unavailable_folders=("/run/cordons", "/var/lib/quarantine"),
    job_names=("-S", "-m", "ci.names"),
    log_reader="Reader",
    ci_figures="/run/ci/figures.json",
)


def test_what_is_written_is_read():
    for one in (FULL, Settings("a/1", "/d")):
        assert settings.parse(settings.as_text(one)) == one


def test_an_earlier_revisions_name_of_the_mode_is_read():
    assert settings.parse(changed(mode="on")) == dataclasses.replace(FULL, mode="enabled")


def changed(**values):
    return json.dumps({**json.loads(settings.as_text(FULL)), **values})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        changed(version=2),
        changed(mode="off"),
        changed(cards=[{}]),
        changed(cards=[{"uuid": 1}]),
        changed(cards="GPU-0"),
        changed(unavailable_folders=[1]),
        changed(job_names=[1]),
        changed(job_names=None),
        changed(ci_figures=None),
        changed(max_quarantined="50"),
        changed(max_quarantined=True),
        changed(metrics_port=1.5),
        changed(poll_seconds=None),
        changed(more=1),
        b"\xff\xfe",
    ],
)
def test_what_is_none_is_refused(text):
    with pytest.raises(ValueError, match="not settings of the GPU health"):
        settings.parse(text)


def test_the_file_of_the_revision_before_is_read():
    found = json.loads(settings.as_text(FULL))
    del found["job_names"], found["log_reader"], found["ci_figures"]
    found["cordons"] = found.pop("unavailable_folders")
    found["quarantine"] = "/var/lib/gpu-ci/quarantine"
    assert settings.parse(json.dumps(found)) == dataclasses.replace(
        FULL, job_names=(), log_reader="", ci_figures=""
    )


@given(st.binary() | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_nothing_else_than_a_value_error_comes_of_it(text):
    with pytest.raises(ValueError, match="not settings"):
        settings.parse(text)
