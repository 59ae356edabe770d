# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Docker's own service beside Concourse: its containerd, its daemon.json, and both as before."""

import json

import pytest

from tests.functional import engine_machine, selftest_machine

pytestmark = [
    *selftest_machine.NEEDS,
    pytest.mark.skipif(not engine_machine.HAS_ENGINES, reason="there is no dockerd"),
]

# As Debian's package installs it, with a configuration that touches no network.
INSTALL = """
set -e
cd /srv/engines
for name in usr/sbin/dockerd usr/bin/docker usr/bin/docker-init usr/bin/tini-static; do
    cp "$name" "/$name"
done
cp lib/systemd/system/docker.* /usr/lib/systemd/system
groupadd -f docker
mkdir -p /etc/docker
printf '{\\n  "bridge": "none",\\n  "iptables": false\\n}\\n' >/etc/docker/daemon.json
systemctl daemon-reload
systemctl start docker
"""
TRACES = """
cat /etc/docker/*
find /etc/docker /etc/systemd/system /opt -printf '%p %m %l\\n' | sort
find /var/lib/gpu-ci -type f || :
"""
REGISTER = """
from gpu_agent.engines import registry as registration
from gpu_agent.runtime import install
from gpu_agent.engines.engine import EnginesPlan
from gpu_agent.runtime.settings import GpuPlan
install.apply(GpuPlan((), ""))
plan = EnginesPlan(("docker",), default=("docker",), nvidia=False, socket_taken={taken})
print(registration.ensure(plan), registration.ensure(plan))
"""
REMOVE = """
from gpu_agent.engines import registry as registration
from gpu_agent.runtime import install
print(registration.remove(), registration.remove())
install.remove()
"""


@pytest.fixture(scope="module")
def host():
    with selftest_machine.started("engines", {"/srv/engines": engine_machine.ENGINES}) as host:
        host.sh(INSTALL)
        yield host


def command(host):
    return host.sh("tr '\\0' ' ' </proc/$(systemctl show -P MainPID docker)/cmdline").stdout


def test_docker_has_a_containerd_of_its_own_and_the_unit_leaves_no_trace(host):
    before = host.sh(TRACES).stdout
    assert "--containerd=" in command(host)
    assert host.run(REGISTER.format(taken=True)).split() == ["True", "False"]
    assert "--containerd=" not in command(host)
    shown = host.sh("systemctl show -P LoadState -P ActiveState containerd").stdout.split()
    assert shown == ["masked", "inactive"]
    info = json.loads(host.sh("docker info -f '{{json .}}'").stdout)
    assert (info["DefaultRuntime"], info["Runtimes"]["gpu-ci"]["path"]) == (
        "gpu-ci", engine_machine.FRONT,
    )  # fmt: skip
    # It does so at a boot, too.
    host.sh("systemctl restart docker")
    assert "gpu-ci" in host.sh("docker info -f '{{.DefaultRuntime}}'").stdout
    assert host.run(REMOVE).split() == ["True", "False"]
    assert host.sh("docker info -f '{{.DefaultRuntime}}'").stdout.strip() == "runc"
    assert host.sh(TRACES).stdout == before
    host.sh("systemctl restart docker")
    assert "--containerd=" in command(host)


def test_without_a_ci_system_docker_keeps_the_distributions_containerd(host):
    before = host.sh(TRACES).stdout
    host.sh("tar -C / -c bin/busybox | docker import - box")
    run = "docker run --rm --network none box /bin/busybox echo ran"
    assert host.run(REGISTER.format(taken=False)).split() == ["True", "False"]
    assert "--containerd=" in command(host)
    assert host.sh("systemctl is-active containerd").stdout.strip() == "active"
    assert "gpu-ci" in host.sh("docker info -f '{{.DefaultRuntime}}'").stdout
    assert host.sh(run).stdout == "ran\n"
    refused = host.sh(run.replace("--rm", "--rm -e GPU_COUNT=1"), check=False)
    assert "gpus-disabled" in refused.stderr, refused
    host.sh("systemctl restart containerd docker")
    assert host.sh(run).stdout == "ran\n"
    assert host.run(REMOVE).split() == ["True", "False"]
    assert host.sh(run).stdout == "ran\n"
    host.sh("docker image rm box")
    assert host.sh(TRACES).stdout == before
