# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Each alert on Concourse's web by promtool: it fires, and it does not where nothing is wrong."""

import pathlib
import re

import pytest
import yaml

from tests.functional.alert_rules import TOPOLOGY, Case, both_ways, promtool, published, run_tests

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "src/prometheus_alert_rules/web.rules"
UNIT = {"instance": "i", **TOPOLOGY, "juju_unit": "web/0"}
# As atc/metric/emitter/prometheus.go of Concourse 8.3 names metrics and their labels.
LABELS = {
    "concourse_workers_registered": {"state"},
    "concourse_steps_waiting": {"platform", "teamId", "teamName", "type", "workerTags"},
    "concourse_steps_wait_duration_bucket": {
        *("platform", "teamId", "teamName", "type", "workerTags"),
    },
}
STEP = {
    **UNIT, "platform": "linux", "teamId": "1", "teamName": "main", "type": "task",
    "workerTags": "gpu",
}  # fmt: skip


def workers(state, values):
    return "concourse_workers_registered", {**UNIT, "state": state}, values


def waiting(values, **labels):
    return "concourse_steps_waiting", {**STEP, **labels}, values


def waited(more, **labels):
    """The buckets of waits (atc/metric/emitter/prometheus.go) that took from 10 to 30 min.

    A task more waits so long at each of `more` minutes out of sixty.
    """
    most = f"0+{more}x60"
    buckets = {"10": "0x60", "600": "0x60", "1800": most, "3600": most, "+Inf": most}
    return [
        ("concourse_steps_wait_duration_bucket", {**STEP, "le": le, **labels}, values)
        for le, values in buckets.items()
    ]


CASES = [
    Case(
        "ConcourseWorkersStalled",
        [workers("stalled", "0x10 1x50"), workers("running", "2x60")],
        # A worker that is restarted, and one that is landed on purpose.
        [
            workers("stalled", "0x15 1x8 0x50"),
            workers("landed", "1x60"),
            workers("running", "0x60"),
        ],
    ),
    Case(
        "ConcourseStepsWaiting",
        # Two kinds of steps of one team with the same tags are one alert.
        [waiting("0x5 3x60"), waiting("0x5 1x60", type="get")],
        # They are served before half an hour is over, again and again.
        [waiting("3x25 0x1 3x25 0x9")],
        minutes=45,
    ),
    Case(
        "ConcourseGpuTasksWaitLong",
        # Two teams are one queue.
        [
            *waited(1, workerTags="ours_gpu-count>=2"),
            *waited(1, workerTags="ours_gpu-count>=2", teamName="b", teamId="2"),
        ],
        # Steps of others wait long, and so do gets; tasks with a GPU's tags wait for a minute.
        [
            *waited(3, workerTags="big-disk"),
            *waited(3, type="get"),
            *(
                (name, {**labels, "workerTags": "gpu"}, "0+3x60" if labels["le"] != "10" else more)
                for name, labels, more in waited(3)
            ),
        ],
        minutes=55,
    ),
]


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(published(gpus=None, web=9391)))
    return path


def test_promtool_accepts_them_as_they_are_and_as_a_collector_gets_them(rules):
    for path in (RULES, rules):
        code, said = promtool("check", "rules", path)
        assert code == 0, said
        assert f"{len(CASES)} rules found" in said


def test_each_alert_fires_and_none_does_where_nothing_is_wrong(rules):
    code, said = run_tests(rules, both_ways(CASES))
    assert code == 0, said


def test_each_has_its_case_and_says_what_to_do():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [case.alert for case in CASES]
    for rule in group["rules"]:
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        (name,) = re.findall(r"concourse_[a-z_]+", rule["expr"])
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        dropped = set(re.findall(r"\w+", "".join(re.findall(r"without \((.*?)\)", rule["expr"]))))
        assert used <= LABELS[name] - dropped | {"juju_application", "instance"}
