# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's door: a collector is told of the metrics where they are served, and of none else."""

import dataclasses
import json

import pytest
from ops import testing

from tests.unit.situations import database, state


def told(context, before, event="config_changed", **data):
    """What the unit says over cos-agent after a hook."""
    relation = testing.Relation("cos-agent", local_unit_data=data)
    before = dataclasses.replace(before, relations=[*before.relations, relation])
    after = context.run(getattr(context.on, event)(), before)
    found = after.get_relation(relation.id).local_unit_data
    return json.loads(found["config"]) if "config" in found else None


def targets(config):
    (job,) = config["metrics_scrape_jobs"]
    return job["static_configs"][0]["targets"]


@pytest.mark.parametrize("event", ["config_changed", "update_status", "upgrade_charm"])
def test_a_worker_with_gpus_says_where_its_metrics_are(context, rooms, event):
    config = told(context, state(enable_gpu=True), event)
    assert targets(config) == ["127.0.0.1:335"]
    assert config["metrics_alert_rules"]["groups"]
    assert config["dashboards"]


def test_another_port(context, rooms):
    assert targets(told(context, state(enable_gpu=True, gpu_metrics_port=9999))) == [
        "127.0.0.1:9999"
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"enable_gpu": False},
        {"enable_gpu": True, "gpu_health": "disabled"},
        {"enable_gpu": True, "gpu_metrics_port": 0},
    ],
    ids=["no GPUs", "no watch", "no port"],
)
def test_what_is_served_no_more_is_taken_back(context, rooms, options):
    assert told(context, state(**options), config="old") is None


def test_a_web_says_where_its_metrics_are(context, rooms):
    config = told(context, state("web", [database()]))
    assert targets(config) == ["127.0.0.1:9391"]
    (group,) = config["metrics_alert_rules"]["groups"]
    assert {rule["alert"] for rule in group["rules"]} == {
        "ConcourseGpuTasksWaitLong",
        "ConcourseStepsWaiting",
        "ConcourseWorkersStalled",
    }
    assert all('concourse_workers_registered{juju_model="' in rule["expr"]
               or 'concourse_steps_waiting{juju_model="' in rule["expr"]
               or 'concourse_steps_wait_duration_bucket{juju_model="' in rule["expr"]
               for rule in group["rules"])  # fmt: skip
    assert config["dashboards"] == []
    assert told(context, state("web", [database()], web_metrics_port=0), config="old") is None


def test_one_machine_with_both_tells_of_both(context, rooms):
    config = told(context, state("all", enable_gpu=True))
    found = {
        job["job_name"]: job["static_configs"][0]["targets"]
        for job in config["metrics_scrape_jobs"]
    }
    assert found == {"gpu-ci": ["127.0.0.1:335"], "concourse-web": ["127.0.0.1:9391"]}
    assert len(config["metrics_alert_rules"]["groups"]) == 2


def test_a_bad_option_changes_nothing(context, rooms):
    """A typo is not taken for off."""
    assert told(context, state(enable_gpu=True, gpu_health="of"), config="7") == 7
