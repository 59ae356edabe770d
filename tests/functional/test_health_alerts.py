# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Each alert rule by promtool: it fires, and it does not where nothing is wrong."""

import pathlib
import re

import pytest
import yaml

from gpu_agent.reporting.metrics import definitions as exporter
from gpu_agent.reporting.metrics import refusal_reasons as refusals
from tests.functional.alert_rules import (
    TOPOLOGY,
    Case,
    both_ways,
    promtool,
    published,
    rule_test,
    run_tests,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "src/prometheus_alert_rules/gpus.rules"

UNIT = {"instance": "i", **TOPOLOGY, "juju_unit": "worker/0"}
GPU = {"gpu": "0", "uuid": "GPU-a", "model": "A100", **UNIT}
OTHER = {**GPU, "gpu": "1", "uuid": "GPU-b"}


def reason(name, values):
    return "gpuci_gpu_clock_reason", {**GPU, "reason": name}, values


def bucket(most, values):
    return "gpuci_lease_wait_seconds_bucket", {**UNIT, "le": most}, values


def unavailable(gpu, **values):
    return [
        (f"gpuci_gpu_{kind}", gpu, values.get(kind, "0x60"))
        for kind in ("quarantined", "cordoned", "external", "unusable")
    ]


INFO = ("gpuci_health_info", {**UNIT, "version": "1", "mode": "enabled"})
CASES = [
    Case(
        "GpuQuarantined",
        [("gpuci_gpu_quarantine_info", {**GPU, "cause": "xid-79"}, "_x29 1x5")],
        [("gpuci_gpu_quarantined", GPU, "0x60")],
    ),
    Case(
        "GpuPoolShort",
        [
            *unavailable(GPU, quarantined="1x60"),
            *unavailable(OTHER, external="1x60"),
        ],
        [
            *unavailable(GPU, cordoned="1x60"),
            *unavailable(OTHER),
        ],
    ),
    Case(
        "GpuDriverHangs",
        [("gpuci_driver_hung", UNIT, "0x20 1x20")],
        [("gpuci_driver_hung", UNIT, "0x29 1x20")],  # for less than a minute
    ),
    Case(
        "GpuBreakerTripped",
        [("gpuci_breaker_tripped", UNIT, "1x60")],
        [("gpuci_breaker_tripped", UNIT, "0x60")],
    ),
    Case(
        "GpuHealthDown",
        [(*INFO, "1x10 stale")],
        # A refresh: another version, from one scrape to the next.
        [(*INFO, "1x10 stale"), (INFO[0], {**INFO[1], "version": "2"}, "_x10 1x60")],
    ),
    Case(
        "GpuFiguresStale",
        [("gpuci_last_good_poll_age_seconds", UNIT, "15x20 61+60x20")],
        [
            ("gpuci_last_good_poll_age_seconds", UNIT, "30x60"),
            ("gpuci_health_turn_age_seconds", UNIT, "15x60"),
        ],
    ),
    Case(
        "GpuUncorrectedMemoryErrors",
        [("gpuci_gpu_ecc_uncorrected_total", GPU, "0x10 2x30")],
        # Old ones, and none since: the driver was loaded anew meanwhile.
        [("gpuci_gpu_ecc_uncorrected_total", GPU, "7x10 0x30")],
    ),
    Case(
        "GpuRemapPending",
        [("gpuci_gpu_remap_pending", GPU, "1x60")],
        [("gpuci_gpu_remap_pending", GPU, "0x25 1x20")],
    ),
    Case(
        "GpuHardwareThrottled",
        [reason("power-brake", "1x60"), reason("idle", "0x60")],
        [reason("software-power-cap", "1x60"), reason("hardware-thermal", "0 1x2 0 1x3 0x60")],
    ),
    Case(
        "GpuWaitsLong",
        [bucket("120", "0x60"), bucket("240", "0+2x60"), bucket("+Inf", "0+2x60")],
        [bucket("120", "0+2x60"), bucket("240", "0+2x60"), bucket("+Inf", "0+2x60")],
        minutes=50,
    ),
    Case(
        "GpuTasksRefused",
        [("gpuci_refusals_total", {**UNIT, "reason": "busy"}, "0x10 4x50")],
        [
            ("gpuci_refusals_total", {**UNIT, "reason": "wrong-count"}, "0+9x60"),
            ("gpuci_refusals_total", {**UNIT, "reason": "busy"}, "0x10 1x50"),
        ],
    ),
    Case(
        "GpuLeasedAndIdle",
        [("gpuci_gpu_leased", GPU, "1x90"), ("gpuci_gpu_busy_ratio", GPU, "0x90")],
        [
            ("gpuci_gpu_leased", GPU, "1x90"),
            ("gpuci_gpu_busy_ratio", GPU, "0x60 0.9 0x29"),
            ("gpuci_gpu_leased", OTHER, "0x20 1x70"),
            ("gpuci_gpu_busy_ratio", OTHER, "0x90"),
        ],
        minutes=75,
    ),
    Case(
        "RunnersCannotBegin",
        [("gpuci_runner_fault", UNIT, "0x5 1x40")],
        [("gpuci_runner_fault", UNIT, "0x5 1x13 0 1x40")],
    ),
    Case(
        "RunnerRequestsLow",
        [
            ("gpuci_ci_requests_limit", UNIT, "5000x60"),
            ("gpuci_ci_requests_remaining", UNIT, "5000-200x60"),
        ],
        [
            ("gpuci_ci_requests_limit", UNIT, "5000x60"),
            # A new hour begins.
            ("gpuci_ci_requests_remaining", UNIT, "1000x20 900x2 5000x40"),
        ],
    ),
]  # fmt: skip


@pytest.fixture
def rules(tmp_path):
    """The rules as a collector gets them."""
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(published()))
    return path


def test_promtool_accepts_the_rules(rules):
    """As the file has them, for a Prometheus of one's own, and as a collector gets them."""
    for path in (RULES, rules):
        code, said = promtool("check", "rules", path)
        assert code == 0, said
        assert f"{len(CASES)} rules found" in said


def test_each_alert_fires_and_none_does_where_nothing_is_wrong(rules):
    code, said = run_tests(rules, both_ways(CASES))
    assert code == 0, said


def test_the_tests_would_notice(rules):
    case = CASES[0]
    assert run_tests(rules, [rule_test(case.does_not, case.minutes, case.alert, 1)])[0] == 1


def file_rules():
    return yaml.safe_load(RULES.read_text())["groups"][0]["rules"]


def test_each_alert_has_its_case():
    assert [rule["alert"] for rule in file_rules()] == [case.alert for case in CASES]


def test_each_alert_says_what_is_and_what_to_do():
    for rule in file_rules():
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert "instance" in rule["annotations"]["summary"], rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_alerts_rest_on_metrics_and_labels_that_there_are():
    """A label that the query's samples lack would be empty in the sentence."""
    known = {metric.name: metric for metric in exporter.TABLE}
    for rule in file_rules():
        names = re.findall(r"gpuci_[a-z_]+", rule["expr"])
        metrics = [known[name.removesuffix("_bucket")] for name in names]
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        dropped = set(re.findall(r"\w+", " ".join(re.findall(r"without \((.*?)\)", rule["expr"]))))
        has = set(metrics[0].labels) - dropped
        has |= {"juju_unit", "juju_application", "instance"}
        assert used <= has, rule["alert"]
    text = RULES.read_text()
    reasons = {name for found in re.findall(r'reason=~"(.*?)"', text) for name in found.split("|")}
    named = {one.name for one in refusals.REASONS} | {refusals.OTHER} | set(exporter.CLOCK_REASONS)
    assert reasons <= named


def test_a_collector_gets_rules_for_this_application_alone(rules):
    """Others of this charm in the same Prometheus bring their own."""
    case = CASES[0]
    foreign = {"juju_application": "other"}
    series = [(name, {**pairs, **foreign}, values) for name, pairs, values in case.fires]
    code, said = run_tests(rules, [rule_test(series, case.minutes, case.alert, 0)])
    assert code == 0, said
