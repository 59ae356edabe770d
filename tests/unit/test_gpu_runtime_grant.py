# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a task asks for, and how a grant is worded."""

import json
import os
import stat

import pytest

from gpu_runtime.environment import Variables
from gpu_runtime.grant import Grant, Node, asked_for
from gpu_runtime.policy import Policy
from tests.unit.grants import AMD_GPUS, MIG, NVIDIA, content
from tests.unit.refusals import refuses

BORDER = "ATC_EXTERNAL_URL=u"
OPEN = Policy(content(privileged_tasks="gpu", gpus_per_task=2))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making a device node needs root")


def asked(policy, *entries, privileged=False):
    return asked_for(policy, Variables([*entries]), privileged=privileged)


@pytest.mark.parametrize(
    ("policy", "entries", "privileged", "count"),
    [
        (NVIDIA, [], False, 1),
        (OPEN, [], False, 2),
        (Policy(content(gpus_per_task=0)), [], False, 0),
        (NVIDIA, [], True, 0),
        (OPEN, [], True, 2),
        (NVIDIA, ["GPU_COUNT=8", BORDER], False, 1),
        (NVIDIA, [BORDER, "GPU_COUNT=8"], False, 8),
        (NVIDIA, [BORDER, "GPU_COUNT=007"], False, 7),
        (NVIDIA, [BORDER, "GPU_COUNT=0"], False, 0),
        (NVIDIA, [BORDER, "GPU_COUNT=0"], True, 0),
        (NVIDIA, [BORDER, "GPU_COUNT=all"], False, None),
        (OPEN, [BORDER, "GPU_COUNT=all"], True, None),
        (OPEN, [BORDER, "GPU_COUNT=1"], True, 1),
        (NVIDIA, ["GPU_COUNT=1", BORDER], True, 0),
    ],
)
def test_what_is_asked_for(policy, entries, privileged, count):
    assert asked(policy, *entries, privileged=privileged) == count


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "-1", "+1", "1.0", "1e3", "0x1", " 1", "1 ", "All", "ALL", "two", "1,2", "٣"),
        *("²", "GPU-0", "1" * 10, "9" * 5000, "1\n", "none", "void", "1_0", "\ud800", "1=2"),
    ],
)
@pytest.mark.parametrize("privileged", [False, True])
def test_a_number_that_is_none(value, privileged):
    with refuses("gpu-count-invalid") as caught:
        asked(NVIDIA, BORDER, f"GPU_COUNT={value}", privileged=privileged)
    said = str(caught.value)
    shown = "".join(letter if letter.isprintable() else "?" for letter in value[:64])
    assert said.startswith(f"GPU_COUNT='{shown}' is not a number of GPUs. Set this param to 0 ")
    assert len(said) < 250


@pytest.mark.parametrize("value", ["1", "2", "all"])
def test_a_privileged_task_that_asks_is_refused_with_both_remedies(value):
    with refuses("privileged-not-allowed") as caught:
        asked(NVIDIA, BORDER, f"GPU_COUNT={value}", privileged=True)
    assert str(caught.value) == (
        f"GPU_COUNT={value} requests a GPU, but privileged tasks get none on this worker (its "
        "option gpu-for-privileged-tasks). Remove `privileged` from the step, or set GPU_COUNT to "
        "0"
    )


def test_a_grant_tells_of_its_devices_and_of_no_other():
    given = Grant(MIG, MIG.devices[1:])
    device = MIG.devices[1]
    assert given.ids == [device.id]
    assert given.environment.pop("GPU_CI_DEVICES").count("\n") == 0
    assert given.environment == {
        "NVIDIA_VISIBLE_DEVICES": device.id,
        "GPU_COUNT": "1",
    }
    assert (given.nodes, given.groups) == ([], [])


def test_the_devices_as_one_line_of_json():
    policy = Policy(content(gpus=[{**content()["gpus"][0], "model": 'Ünü\n"x"'}]))
    text = Grant(policy, policy.devices).environment["GPU_CI_DEVICES"]
    assert "\n" not in text
    assert text.isascii()
    found = json.loads(text)
    assert found == [{"index": 0, "uuid": policy.devices[0].id, "model": 'Ünü\n"x"'}]


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_a_denial(vendor):
    policy = NVIDIA if vendor == "nvidia" else Policy(content(vendor="amd", gpus=AMD_GPUS))
    denied = Grant(policy, [])
    assert denied.environment == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "GPU_COUNT": "0",
        "GPU_CI_DEVICES": "[]",
    }
    assert (denied.ids, denied.nodes, denied.groups) == ([], [], [])


def amd(*nodes):
    gpus = [
        {**gpu, "nodes": [str(node) for node in nodes[place]]}
        for place, gpu in enumerate(AMD_GPUS[: len(nodes)])
    ]
    return Policy(content(vendor="amd", nvidia_runtime="", gpus=gpus))


def test_the_nodes_of_a_grant_each_once(tmp_path):
    (tmp_path / "by-path").symlink_to("/dev/full")
    policy = amd(["/dev/null", "/dev/zero"], ["/dev/null", tmp_path / "by-path"])
    given = Grant(policy, policy.devices)
    assert [(node.path, node.major, node.minor) for node in given.nodes] == [
        *(("/dev/null", 1, 3), ("/dev/zero", 1, 5), ("/dev/full", 1, 7))
    ]
    assert given.environment["NVIDIA_VISIBLE_DEVICES"] == "void"


@needs_root
def test_the_group_of_a_node(tmp_path):
    for name, gid in (("kfd", 104), ("renderD128", 44)):
        os.mknod(tmp_path / name, stat.S_IFCHR | 0o660, os.makedev(226, 128))
        os.chown(tmp_path / name, 0, gid)
    policy = amd([tmp_path / "kfd", tmp_path / "renderD128"])
    given = Grant(policy, policy.devices)
    assert given.groups == [44, 104]
    node = Node(str(tmp_path / "kfd"))
    assert (node.major, node.minor, node.gid) == (226, 128, 104)


@pytest.mark.parametrize("node", ["absent", "file", "folder", "dangling"])
def test_a_node_that_is_none_is_named(tmp_path, node):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    policy = amd(["/dev/null", tmp_path / node])
    with refuses("device-node-missing") as caught:
        Grant(policy, policy.devices)
    assert str(tmp_path / ("absent" if node == "dangling" else node)) in str(caught.value)
