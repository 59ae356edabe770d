# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The policy as the charm writes it and the back end reads it; the launcher."""

import json

import pytest

from gpu_agent import paths
from gpu_agent import paths as wrapper
from gpu_agent.runtime import install, runc
from gpu_agent.runtime.settings import GpuPlan, TaskFolders
from gpu_runtime import policy
from tests.unit.situations import RUNTIME, gpu, sliced
from tests.unit.wrapper_rig import TASKS

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
    made = GpuPlan(cards, RUNTIME, driver="535.183.01", cuda="12.2", tasks=TASKS)
    model = "NVIDIA A100-SXM4-80GB"
    assert json.loads(install.policy_text(made)) == {
        "version": 3,
        "tasks": {"parent": "/tmp/build/", "others": ["get", "put", "run"]},
        "allocation": "exclusive",
        "gpus_per_task": 1,
        "wait_timeout": 240,
        "hijack_limit": 1800,
        "privileged_tasks": "no-gpu",
        "vendor": "nvidia",
        "grant": {"ids": ["GPU-", "MIG-"], "pci_vendor": "0x10de", "by_runtime": True},
        "nvidia_runtime": RUNTIME,
        "config_home": "/etc/gpu-ci",
        "driver": "535.183.01",
        "cuda": "12.2",
        "cordons": [
            "/run/gpu-ci/cordons",
            "/var/lib/gpu-ci/quarantine",
            "/var/lib/gpu-ci/closed",
        ],
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
    folders = [str(path) for path in (paths.EXTERNAL, paths.QUARANTINE, paths.CLOSED)]
    assert found.unavailable_folders == folders
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
        ("amd", "GPU-0123456789abcdef"),
        ("amd", "PCI-0000:03:00.0"),
        ("intel", "PCI-0000:03:00.0"),
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


@pytest.mark.parametrize("tasks", [TASKS, TaskFolders(), TaskFolders("/srv/ci.d/x/")])
def test_the_back_end_reads_how_tasks_are_known(tmp_path, tasks):
    path = tmp_path / "policy.json"
    for gpus in ((gpu(0),), ()):
        path.write_text(install.policy_text(GpuPlan(gpus, RUNTIME, tasks=tasks)))
        found = policy.File(str(path)).tasks
        assert found.parent == tasks.parent
        assert found.others == tuple(f"{tasks.parent}{name}/" for name in tasks.others)


def test_the_front_looks_for_the_parts_of_a_tasks_folder():
    between = r'([^"\]|\\.)*'
    assert install.pattern(TASKS) == f'tmp/{between}build/({between}/)?[0-9a-f]{{8}}["/]'
    assert install.pattern(TaskFolders("/a.b/")) == rf'a\.b/({between}/)?[0-9a-f]{{8}}["/]'


@pytest.mark.parametrize(
    "tasks",
    [TaskFolders(""), TaskFolders("/"), TaskFolders("/'/"), TaskFolders("/x/", ("e55deab7",))],
)
def test_nothing_is_installed_for_folders_that_cannot_be(monkeypatch, tmp_path, tasks):
    monkeypatch.setattr(wrapper, "HOME", tmp_path / "home")
    with pytest.raises(ValueError, match="folder of tasks is"):
        install.apply(GpuPlan((), "", tasks=tasks))
    with pytest.raises(ValueError, match="folder of tasks is"):
        install.pattern(tasks)
    assert list(tmp_path.iterdir()) == []


def test_which_runc_makes_containers(tmp_path):
    def tasks(chosen):
        return runc.for_tasks(chosen, tmp_path)

    def engines(fallback):
        return runc.for_engines(fallback, tmp_path)

    first, second = "/usr/bin/runc", "/usr/sbin/runc"
    assert (tasks("/ci/runc"), tasks("")) == ("/ci/runc", first)
    assert (engines("/ci/runc"), engines("")) == ("/ci/runc", first)
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "usr/sbin/runc").touch()
    assert (tasks("/ci/runc"), tasks("")) == ("/ci/runc", second)
    assert engines("/ci/runc") == second, "that of its engines"
