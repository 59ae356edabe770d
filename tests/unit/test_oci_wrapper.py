# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The policy as the charm writes it and the back end reads it; the launcher."""

import subprocess

import pytest

from gpu.inventory import Gpu, MigDevice, Vendor
from gpuci import policy
from machine import templates
from oci import wrapper
from plan import GpuPlan

RUNTIME = "/usr/bin/nvidia-container-runtime"


def gpu(index, **changes):
    return Gpu(
        **{
            "index": index,
            "uuid": f"GPU-{index}",
            "vendor": Vendor.NVIDIA,
            "model": "NVIDIA A100-SXM4-80GB",
            "memory_mib": 81920,
            "pci_address": f"0000:0{index}:00.0",
            "minor": index,
            **changes,
        }
    )


def read(tmp_path, *gpus):
    path = tmp_path / "policy.json"
    path.write_text(wrapper.policy_text(GpuPlan(gpus, RUNTIME)))
    return policy.read(str(path))


def test_the_back_end_reads_what_the_charm_writes(tmp_path):
    mig = (MigDevice("MIG-a", "1g.10gb"), MigDevice("MIG-b", "1g.10gb"))
    found = read(tmp_path, gpu(0), gpu(3, mig_enabled=True, mig=mig))
    assert found is not None
    assert (found.nvidia_runtime, found.config_home) == (RUNTIME, "/etc/gpu-ci")
    assert [(device.index, device.uuid, device.model) for device in found.devices] == [
        (0, "GPU-0", "NVIDIA A100-SXM4-80GB"),
        (3, "MIG-a", "NVIDIA A100-SXM4-80GB"),
        (3, "MIG-b", "NVIDIA A100-SXM4-80GB"),
    ]


def test_a_device_is_handed_out_once(tmp_path):
    found = read(tmp_path, gpu(0), gpu(0))
    assert found is not None
    assert [device.uuid for device in found.devices] == ["GPU-0"]


def test_a_plan_without_gpus_is_no_promise(tmp_path):
    assert read(tmp_path) is None


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
        templates.render("containerd-launcher", bin="/opt/gpu-ci/bin", containerd=containerd)
    )
    launcher.chmod(0o755)
    with subprocess.Popen(
        [launcher, "--config", "a b"], env={"PATH": before}, stdout=subprocess.PIPE
    ) as process:
        said, _ = process.communicate(timeout=30)
    assert said.decode() == f"{process.pid} {after} --config a b\n"
