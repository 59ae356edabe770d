# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Docker's unit with a containerd of its own, and as its package has it afterwards."""

import pytest

from gpu_agent.engines.docker.containerd_unit import ContainerdUnit
from gpu_agent.engines.engine import EngineError
from machine import systemd


def unit_as(monkeypatch, tmp_path, command, *, masked=False):
    calls = []
    said = {
        "LoadState": "loaded", "ActiveState": "active",
        "ExecStart": f"{{ path=/usr/sbin/dockerd ; argv[]={command} ; ignore_errors=no }}",
    }  # fmt: skip
    others = {"LoadState": "masked" if masked else "loaded"}

    def show(unit, *names):
        return {name: (said if unit == "docker.service" else others)[name] for name in names}

    monkeypatch.setattr(systemd, "show", show)
    for name in ("ensure_drop_in", "ensure_masked", "ensure_running", "remove_drop_in", "unmask"):
        monkeypatch.setattr(
            systemd,
            name,
            lambda *words, _name=name, **_: calls.append((_name, *words)),
        )
    return ContainerdUnit(tmp_path / "engines.json", tmp_path / "running"), calls


PACKAGED = "/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $DOCKER_OPTS"


def test_docker_gets_a_containerd_of_its_own(monkeypatch, tmp_path):
    unit, calls = unit_as(monkeypatch, tmp_path, PACKAGED)
    assert unit.ensure()
    line = "[Service]\nExecStart=\nExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_OPTS\n"
    assert calls == [
        ("ensure_drop_in", "docker.service", "gpu-ci.conf", line),
        ("ensure_masked", "containerd.service"),
        ("ensure_running", "docker.service"),
    ]
    calls.clear()
    assert unit.remove()
    assert calls == [
        ("remove_drop_in", "docker.service", "gpu-ci.conf"), ("unmask", "containerd.service")
    ]  # fmt: skip
    assert not unit.remove()


def test_what_the_operator_masked_stays_masked(monkeypatch, tmp_path):
    unit, calls = unit_as(monkeypatch, tmp_path, PACKAGED, masked=True)
    assert unit.ensure()
    calls.clear()
    assert unit.remove()
    assert calls == [("remove_drop_in", "docker.service", "gpu-ci.conf")]


def test_a_docker_that_has_its_own_is_left_alone(monkeypatch, tmp_path):
    unit, calls = unit_as(monkeypatch, tmp_path, "/usr/bin/dockerd -H fd://")
    assert not unit.ensure()
    assert not unit.remove()
    assert calls == []


def test_no_container_is_lost_by_that(monkeypatch, tmp_path):
    unit, calls = unit_as(monkeypatch, tmp_path, PACKAGED)
    for name in ("concourse", "moby", "k8s.io"):
        (tmp_path / "running" / name / "4f0c").mkdir(parents=True)
    with pytest.raises(EngineError, match="containers of Kubernetes and Docker run"):
        unit.ensure()
    assert calls == []
