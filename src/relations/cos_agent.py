# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Publishes metrics endpoints, alerts and a dashboard to a collector beside this unit.

The interface is cos_agent, of opentelemetry-collector and grafana-agent: the unit's databag
has one key, JSON as canonical/charmlibs says (interfaces/cos_agent/interface/v0/schema.py). The
collector is a subordinate, so it asks on this machine's 127.0.0.1.
"""

import base64
import hashlib
import json
import lzma
import pathlib
import re
import typing

import ops
import yaml

ENDPOINT: typing.Final = "cos-agent"

_KEY: typing.Final = "config"
_CHARM: typing.Final = "gpu-ci-worker"
# Of each job: its alert rules, and its dashboards.
_JOBS: typing.Final = {"gpu-ci": "gpus", "concourse-web": "web"}
_SOURCES: typing.Final = pathlib.Path(__file__).resolve().parents[1]
# A metric of ours in a query, with its selector's opening brace where it has one.
_METRIC: typing.Final = re.compile(r"\b((?:gpuci|concourse)_[a-z_]+)\b(\{)?")


def publish(model: ops.Model, gpus: int | None, web: int | None) -> None:
    """Tell the collector of the metrics; where there are none it asks for nothing.

    Args:
        model: this unit's.
        gpus: port of 127.0.0.1 where the health watch serves them; None: nowhere.
        web: the same of Concourse's web.
    """
    ports = zip(_JOBS, (gpus, web), strict=True)
    served = {job: port for job, port in ports if port}
    for relation in model.relations[ENDPOINT]:
        data = relation.data[model.unit]
        if served:
            data[_KEY] = json.dumps(_config(model, served), sort_keys=True)
        elif _KEY in data:
            del data[_KEY]


def _config(model: ops.Model, served: dict[str, int]) -> dict[str, object]:
    topology = {
        "juju_model": model.name,
        "juju_model_uuid": model.uuid,
        "juju_application": model.app.name,
        "juju_charm": _CHARM,
    }
    about = [_JOBS[job] for job in served]
    return {
        "metrics_alert_rules": {"groups": [g for one in about for g in _groups(topology, one)]},
        "log_alert_rules": {},
        "dashboards": [board for one in about for board in _dashboards(one)],
        "metrics_scrape_jobs": [_job(name, port) for name, port in served.items()],
        "log_slots": [],
    }


def _job(name: str, port: int) -> dict[str, object]:
    target = {"targets": [f"127.0.0.1:{port}"]}
    return {"job_name": name, "metrics_path": "/metrics", "static_configs": [target]}


def _groups(topology: dict[str, str], about: str) -> list[dict[str, typing.Any]]:
    """The alert rules, for this application alone: others of this charm bring their own."""
    groups: list[dict[str, typing.Any]] = []
    for path in sorted(_SOURCES.glob(f"prometheus_alert_rules/{about}.rules")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            name = f"{topology['juju_model']}_{topology['juju_model_uuid'][:8]}_"
            name += f"{topology['juju_application']}_{group['name']}"
            rules = [_of(rule, topology) for rule in group["rules"]]
            groups.append({"name": re.sub(r"[^A-Za-z0-9_]", "_", name), "rules": rules})
    return groups


def _of(rule: dict[str, typing.Any], topology: dict[str, str]) -> dict[str, typing.Any]:
    # The collector gives all samples these labels but the charm's name.
    names = ("juju_model", "juju_model_uuid", "juju_application")
    ours = ",".join(f"{name}={json.dumps(topology[name])}" for name in names)
    query = _METRIC.sub(
        lambda match: f"{match[1]}{{{ours}{',' if match[2] else '}'}", rule["expr"]
    )
    return {**rule, "expr": query, "labels": {**rule["labels"], **topology}}


def _dashboards(about: str) -> list[str]:
    """The dashboards, each as the interface wants it: LZMA, in base64."""
    encoded: list[str] = []
    for path in sorted(_SOURCES.glob(f"grafana_dashboards/{about}.json")):
        dashboard: dict[str, typing.Any] = json.loads(path.read_text())
        # Of 40 characters: the same of each unit, and no other charm's.
        dashboard["uid"] = hashlib.sha256(f"{_CHARM} {path.name}".encode()).hexdigest()[:40]
        dashboard["tags"] = [*dashboard.get("tags", []), f"charm: {_CHARM}"]
        packed = lzma.compress(json.dumps(dashboard, sort_keys=True).encode())
        encoded.append(base64.b64encode(packed).decode())
    return encoded
