# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check with promtool which alerts fire if a worker keeps its present metrics."""

import json
import pathlib
import re
import subprocess

from tests.functional.prometheus import program

ROOT = pathlib.Path(__file__).parents[2]
RULES = ROOT / "src/prometheus_alert_rules/gpus.rules"
# Longer than the alerts on quarantine and driver wait, in minutes.
MINUTES = 5
_SAMPLE = re.compile(r"(?P<series>[a-z_]+(\{.*\})?) (?P<value>\S+)")


def check(folder: pathlib.Path, page: str, expected: dict[str, int]) -> None:
    """Check that so many of each alert fire; without promtool the test is skipped from here on.

    Args:
        folder: for promtool's test.
        page: metrics as Prometheus reads them.
        expected: how many of each alert, by its name.

    Raises:
        AssertionError: another number of an alert fires.
    """
    matches = [_SAMPLE.fullmatch(line) for line in page.splitlines() if line[:1] != "#"]
    series = [
        {"series": found["series"], "values": f"{found['value']}x{MINUTES}"}
        for found in matches
        if found
    ]
    counted = [
        {
            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
            "eval_time": f"{MINUTES}m",
            "exp_samples": [{"labels": "{}", "value": count}] if count else [],
        }
        for name, count in expected.items()
    ]
    one = {"interval": "1m", "input_series": series, "promql_expr_test": counted}
    whole = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [one]}
    file = folder / "alerts.json"
    file.write_text(json.dumps(whole))  # which is YAML too
    done = subprocess.run(
        [program("promtool"), "test", "rules", file], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
