# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a collector is told over cos-agent, by the schema that it is published with."""

import base64
import json
import lzma

import ops
import pydantic
import pytest
import yaml
from ops import testing

from relations import cos_agent

META = {"name": "gpu-ci-worker", "provides": {"cos-agent": {"interface": "cos_agent"}}}


class Config(pydantic.BaseModel):
    """What canonical/charmlibs asks for (interfaces/cos_agent/interface/v0/schema.py)."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    metrics_alert_rules: dict
    log_alert_rules: dict
    dashboards: list[str]
    metrics_scrape_jobs: list[dict]
    log_slots: list[str]


class Charm(ops.CharmBase):
    """Tells of the port that its test says."""

    port: int | None = 335

    def __init__(self, framework):
        super().__init__(framework)
        framework.observe(self.on.config_changed, self._publish)

    def _publish(self, _event):
        cos_agent.publish(self.model, self.port, None)


def run(port=335, **data):
    """What the unit's databag has after a hook."""
    context = testing.Context(
        type("Charm", (Charm,), {"port": port}), meta=META, app_name="worker"
    )
    relation = testing.Relation("cos-agent", local_unit_data=data)
    model = testing.Model(name='ci-of-"us"', uuid="0a" * 18)
    state = testing.State(relations=[relation], model=model)
    after = context.run(context.on.config_changed(), state)
    return {
        key: value
        for key, value in after.get_relation(relation.id).local_unit_data.items()
        if key not in ("egress-subnets", "ingress-address", "private-address")
    }


@pytest.fixture(scope="module")
def config():
    data = run()
    assert set(data) == {"config"}
    return json.loads(data["config"])


def dashboards(config):
    return [json.loads(lzma.decompress(base64.b64decode(one))) for one in config["dashboards"]]


def test_it_is_what_the_interface_asks_for(config):
    Config.model_validate(config)


def test_the_job_asks_on_this_machine(config):
    assert config["metrics_scrape_jobs"] == [
        {
            "job_name": "gpu-ci",
            "metrics_path": "/metrics",
            "static_configs": [{"targets": ["127.0.0.1:335"]}],
        }
    ]


def test_rules_are_of_this_application(config):
    (group,) = config["metrics_alert_rules"]["groups"]
    assert group["name"] == "ci_of__us__0a0a0a0a_worker_gpu_ci_worker"
    assert len(group["rules"]) >= 10
    matcher = (
        f'juju_model="ci-of-\\"us\\"",juju_model_uuid="{"0a" * 18}",juju_application="worker"'
    )
    for rule in group["rules"]:
        assert matcher in rule["expr"]
        assert rule["expr"].count("gpuci_") == rule["expr"].count(f"{{{matcher}")
        assert rule["labels"]["juju_application"] == "worker"
        assert rule["labels"]["juju_charm"] == "gpu-ci-worker"
        assert rule["labels"]["severity"]


def test_dashboards_can_be_told_from_other_charms(config):
    (dashboard,) = dashboards(config)
    assert len(dashboard["uid"]) == 40
    assert "charm: gpu-ci-worker" in dashboard["tags"]
    assert dashboard["title"]


def test_each_hook_writes_the_same():
    """What changes makes every collector begin anew."""
    assert run() == run()


def test_it_is_taken_back_where_there_are_no_metrics():
    assert run(port=None, config="old", other="x") == {"other": "x"}
    assert run(port=None) == {}


def test_without_a_collector_nothing_happens():
    context = testing.Context(Charm, meta=META)
    context.run(context.on.config_changed(), testing.State())


def test_the_charms_own_metadata_has_the_endpoint():
    root = cos_agent._SOURCES.parent
    endpoint = yaml.safe_load((root / "metadata.yaml").read_text())["provides"]["cos-agent"]
    assert (endpoint["interface"], endpoint["limit"]) == ("cos_agent", 1)
