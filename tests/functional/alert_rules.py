# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Alert rules as a collector gets them, and promtool's tests of them."""

import dataclasses
import json
import subprocess
import types

import yaml

from relations import cos_agent
from tests.functional.prometheus import program

TOPOLOGY = {"juju_model": "ci", "juju_model_uuid": "f" * 36, "juju_application": "worker"}


@dataclasses.dataclass(frozen=True)
class Case:
    """An alert, and what makes it fire.

    Attributes:
        alert: its name.
        fires: series, each a metric, labels and promtool's values, one a minute.
        does_not: the same for what is not to make it fire.
        minutes: when it is looked at.
    """

    alert: str
    fires: list
    does_not: list
    minutes: int = 30


def published(gpus=335, web=None):
    """What a unit with these ports says of its alerts."""
    data = {}
    unit = object()
    relation = types.SimpleNamespace(data={unit: data})
    app = types.SimpleNamespace(name=TOPOLOGY["juju_application"])
    model = types.SimpleNamespace(
        relations={"cos-agent": [relation]}, unit=unit, app=app,
        name=TOPOLOGY["juju_model"], uuid=TOPOLOGY["juju_model_uuid"],
    )  # fmt: skip
    cos_agent.publish(model, gpus, web)
    return json.loads(data["config"])["metrics_alert_rules"]


def promtool(*arguments):
    done = subprocess.run(
        [program("promtool"), *arguments], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def _labels(pairs):
    return ",".join(f"{name}={json.dumps(value)}" for name, value in pairs.items())


def rule_test(series, minutes, alert, count):
    """One of promtool's tests: how often an alert fires at that minute."""
    return {
        "interval": "1m",
        "input_series": [
            {"series": f"{name}{{{_labels(pairs)}}}", "values": values}
            for name, pairs, values in series
        ],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": "{}", "value": count}] if count else [],
            }
        ],
    }


def run_tests(rules, tests):
    """What promtool says of these tests, and whether it takes them."""
    file = rules.with_name("tests.yaml")
    file.write_text(
        yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests})
    )
    return promtool("test", "rules", file)


def both_ways(cases):
    """Each case where it fires, and where it does not."""
    return [
        rule_test(series, case.minutes, case.alert, count)
        for case in cases
        for series, count in ((case.fires, 1), (case.does_not, 0))
    ]
