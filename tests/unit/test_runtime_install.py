# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The policy as the charm writes it and the back end reads it; the launcher."""

import json
import subprocess

import pytest

from gpu_agent import paths
from gpu_agent import paths as wrapper
from gpu_agent.model.inventory import Vendor
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from gpu_runtime import policy
from machine import templates
from tests.unit.situations import RUNTIME, gpu, sliced

NODES = ("/dev/kfd", "/dev/dri/renderD128")


def read(tmp_path, *gpus, **given):
    path = tmp_path / "policy.json"
    path.write_text(install.policy_text(GpuPlan(gpus, **{"nvidia_runtime": RUNTIME, **given})))
    found = policy.read(str(path))
    assert found is not None
    return found


def devices(found):
    return [(device.index, device.id, device.gpu, device.model) for device in found.devices]


def test_the_policy_word_for_word():
    cards = gpu(0, arch="8.0", brand="nvidia"), sliced(3, "1g.10gb", "1g.10gb")
    made = GpuPlan(cards, RUNTIME, driver="535.183.01", cuda="12.2")
    model = "NVIDIA A100-SXM4-80GB"
    assert json.loads(install.policy_text(made)) == {
        "version": 3,
        "allocation": "exclusive",
        "gpus_per_task": 1,
        "wait_timeout": 240,
        "hijack_limit": 1800,
        "privileged_tasks": "no-gpu",
        "vendor": "nvidia",
        "nvidia_runtime": RUNTIME,
        "config_home": "/etc/gpu-ci",
        "driver": "535.183.01",
        "cuda": "12.2",
        "cordons": ["/run/gpu-ci/cordons", "/var/lib/gpu-ci/quarantine"],
        "gpus": [
            {
                "index": 0,
                "uuid": "GPU-0",
                "model": model,
                "devices": ["GPU-0"],
                "nodes": [],
                "minor": 0,
                "arch": "8.0",
                "brand": "nvidia",
            },
            {
                "index": 3,
                "uuid": "GPU-3",
                "model": model,
                "devices": ["MIG-3-0", "MIG-3-1"],
                "nodes": [],
                "minor": 3,
                "arch": "",
                "brand": "",
            },
        ],
    }


def test_the_back_end_reads_what_the_charm_writes(tmp_path):
    cards = gpu(0, arch="8.0", brand="nvidia"), sliced(3, "1g.10gb", "1g.10gb")
    found = read(tmp_path, *cards, driver="535.183.01", cuda="12.2")
    assert (found.driver, found.cuda) == ("535.183.01", "12.2")
    assert [(one.arch, one.brand) for one in found.devices[:2]] == [("8.0", "nvidia"), ("", "")]
    assert (found.nvidia_runtime, found.config_home) == (RUNTIME, "/etc/gpu-ci")
    assert (found.exclusive, found.gpus_per_task, found.wait_timeout) == (True, 1, 240)
    assert (found.hijack_limit, found.privileged) == (1800, False)
    assert [device.watched for device in found.devices] == [["/dev/nvidia0"], [], []]
    assert found.unavailable_folders == [str(wrapper.EXTERNAL), str(paths.QUARANTINE)]
    assert devices(found) == [
        (0, "GPU-0", "GPU-0", "NVIDIA A100-SXM4-80GB"),
        (3, "MIG-3-0", "GPU-3", "NVIDIA A100-SXM4-80GB"),
        (3, "MIG-3-1", "GPU-3", "NVIDIA A100-SXM4-80GB"),
    ]


def test_what_the_operator_chose_arrives(tmp_path):
    found = read(
        tmp_path,
        gpu(0),
        allocation="shared",
        gpus_per_task=0,
        wait_timeout=0,
        hijack_limit=0,
        privileged_tasks="gpu",
    )
    assert (found.exclusive, found.gpus_per_task, found.wait_timeout) == (False, 0, 0)
    assert found.hijack_limit == 0
    assert found.privileged


@pytest.mark.parametrize(
    ("vendor", "uuid"),
    [
        (Vendor.AMD, "GPU-0123456789abcdef"),
        (Vendor.AMD, "PCI-0000:03:00.0"),
        (Vendor.INTEL, "PCI-0000:03:00.0"),
    ],
)
def test_gpus_of_other_vendors_come_with_their_nodes(tmp_path, vendor, uuid):
    card = gpu(0, vendor=vendor, uuid=uuid, model="a model", nodes=NODES, minor=-1)
    found = read(tmp_path, card, nvidia_runtime="")
    assert devices(found) == [(0, uuid, uuid, "a model")]
    assert [device.nodes for device in found.devices] == [list(NODES)]
    assert [device.watched for device in found.devices] == [list(NODES)]
    assert not found.vendor.by_runtime


def test_a_device_is_handed_out_once(tmp_path):
    assert [device.id for device in read(tmp_path, gpu(0), gpu(0)).devices] == ["GPU-0"]


@pytest.mark.parametrize(
    ("before", "after"),
    [("/usr/bin:/bin", "/opt/gpu-ci/bin:/usr/bin:/bin"), ("", "/opt/gpu-ci/bin")],
)
def test_the_launcher_becomes_containerd_and_puts_our_runc_first(tmp_path, before, after):
    containerd = tmp_path / "containerd"
    containerd.write_text('#!/bin/sh\necho $$ "$PATH" "$@"\n')
    containerd.chmod(0o755)
    launcher = tmp_path / "launcher"
    launcher.write_text(
        templates.render(
            paths.TEMPLATES, "containerd-launcher", bin="/opt/gpu-ci/bin", containerd=containerd
        )
    )
    launcher.chmod(0o755)
    with subprocess.Popen(
        [launcher, "--config", "a b"], env={"PATH": before}, stdout=subprocess.PIPE
    ) as process:
        said, _ = process.communicate(timeout=30)
    assert said.decode() == f"{process.pid} {after} --config a b\n"


@pytest.mark.parametrize("has", ["", '[timeouts]\n  "io.containerd.timeout.shim.load" = "1m"\n'])
def test_the_launcher_gives_shims_time_to_answer_once(tmp_path, has):
    launcher, config = tmp_path / "launcher", tmp_path / "a b.toml"
    text = templates.render(
        paths.TEMPLATES, "containerd-launcher", bin="/opt/gpu-ci/bin", containerd="/bin/true"
    )
    launcher.write_text(text)
    launcher.chmod(0o755)
    config.write_text(f'version = 2\n[debug]\n  format = "json"\n{has}')
    before = config.read_text()
    for _ in range(2):
        command = [launcher, "--address=/x", f"--config={config}", f"--config={tmp_path}/none"]
        done = subprocess.run(command, capture_output=True, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    added = '\n[timeouts]\n"io.containerd.timeout.shim.load" = "30s"\n'
    assert config.read_text() == before + ("" if has else added)
    assert not (tmp_path / "none").exists()
