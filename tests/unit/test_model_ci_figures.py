# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The figures of a CI system come back as they were written, and nothing else comes through."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_agent.model import ci_figures
from gpu_agent.model.ci_figures import CiFigures, Requests

FULL = CiFigures(1000.5, {"idle": 2, "busy": 1}, 3, fault=True, requests=Requests(5000, 40, 17))


@pytest.mark.parametrize(
    "figures", [FULL, dataclasses.replace(FULL, waiting=None, requests=None, runners={})]
)
def test_what_is_written_is_read(figures):
    assert ci_figures.parse(ci_figures.as_text(figures)) == figures


def changed(**values):
    return json.dumps({**json.loads(ci_figures.as_text(FULL)), **values})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        changed(version=2),
        changed(more=1),
        changed(at=None),
        changed(at=float("nan")),
        changed(runners={"idle": "2"}),
        changed(runners=[1]),
        changed(waiting="3"),
        changed(fault=1),
        changed(requests={"limit": 1}),
        changed(requests=[5000, 40, 17]),
    ],
)
def test_what_has_another_form_is_refused(text):
    with pytest.raises(ValueError, match="no figures of a CI system"):
        ci_figures.parse(text)


@given(st.text() | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_nothing_else_than_a_value_error_comes_of_it(text):
    with pytest.raises(ValueError, match="no figures"):
        ci_figures.parse(text)
