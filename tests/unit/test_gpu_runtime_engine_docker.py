# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What Docker 29 writes for GPUs, and that nothing of it is left.

recorded/docker-29 is what moby's own code (tag docker-v29.7.2: daemon/devices*.go, daemon/cdi.go,
the CDI library that it is built with) made of its default spec for each request, with nvidia.yaml
as the machine's CDI file: `gpus` and `cdi` by CDI, `hook` where there is no such file. `plain` is
the same without a request. Capabilities, namespaces and masked paths, which no request changes,
are left out.
"""

import json
import pathlib

import pytest

from gpu_runtime import engine_metadata as engine_facts
from gpu_runtime import engine_request as engine_wish
from gpu_runtime import engine_spec
from gpu_runtime.device_nodes import Nodes
from gpu_runtime.policy import Policy
from tests.unit.gpu_rig import Dev
from tests.unit.grants import content
from tests.unit.wrapper_rig import GPUS

RECORDED = pathlib.Path(__file__).with_name("recorded") / "docker-29"
IDS = [gpu["uuid"] for gpu in GPUS]
NUMBERS = {
    "/dev/nvidia0": (195, 0), "/dev/nvidia1": (195, 1), "/dev/nvidiactl": (195, 255),
    "/dev/nvidia-modeset": (195, 254), "/dev/nvidia-uvm": (510, 0),
    "/dev/dri/renderD128": (226, 128),
}  # fmt: skip
# What the command line makes of `--gpus device=1`, `--device nvidia.com/gpu=0` and `--gpus 2`.
REQUESTS = {
    "gpus": {"Driver": "", "Count": 0, "DeviceIDs": ["1"], "Capabilities": [["gpu"]]},
    "cdi": {"Driver": "cdi", "Count": 0, "DeviceIDs": ["nvidia.com/gpu=0"]},
    "hook": {"Driver": "", "Count": 2, "DeviceIDs": None, "Capabilities": [["gpu"]]},
}
EACH = pytest.mark.parametrize("name", REQUESTS)


@pytest.fixture
def nodes():
    return Nodes(None, Dev(NUMBERS))


def recorded(name):
    return json.loads((RECORDED / f"{name}.json").read_text())


def facts(*requests):
    found = engine_facts.Facts()
    found.engine, found.image, found.requests = "docker", ["PATH=/bin"], [*requests]
    return found


@EACH
def test_docker_29_has_put_gpus_in(name, nodes):
    """Else the tests below would prove nothing."""
    spec = recorded(name)
    assert spec["hooks"]
    if name != "hook":
        given = {(one["major"], one["minor"]) for one in spec["linux"]["devices"]}
        assert given & nodes.gpus()
        assert any("libcuda" in mount["source"] for mount in spec["mounts"])


@EACH
def test_nothing_of_that_is_left(name, nodes):
    spec, plain = recorded(name), recorded("plain")
    bare = engine_spec.without_gpus(spec, nodes, engine_facts.cdi_paths((str(RECORDED),)))
    assert not any(bare.pop("hooks").values())
    assert bare["linux"].pop("devices", []) == []
    # CDI sorts mounts by how deep they are.
    for one in (bare, plain):
        one["mounts"].sort(key=lambda mount: mount["destination"])
    # Of variables ours take the place of those that count; a group opens no node that is shut.
    told = bare["process"].pop("env")
    assert told[:2] == plain["process"].pop("env")
    assert {entry.partition("=")[0] for entry in told[2:]} <= {
        "NVIDIA_CTK_LIBCUDA_DIR", "NVIDIA_VISIBLE_DEVICES"
    }  # fmt: skip
    assert bare["process"]["user"].pop("additionalGids", [44]) == [44]
    assert bare == plain


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gpus", (1, IDS[1:2])), ("cdi", (1, IDS[:1])), ("hook", (2, []))],
)
def test_it_is_the_wish_that_was_made(name, expected, nodes):
    """By Docker's own note of it, and not by what it has put in for that."""
    policy = Policy(content(gpus=[{**gpu, "minor": gpu["index"]} for gpu in GPUS]))
    spec = recorded(name)
    wish = engine_wish.read(spec, facts(REQUESTS[name]), nodes, privileged=False)
    assert engine_wish.devices(wish, policy, nodes) == expected
    if name != "hook":
        # podman makes no such note: its CDI is known by the nodes.
        wish = engine_wish.read(spec, facts(), nodes, privileged=False)
        assert engine_wish.devices(wish, policy, nodes) == expected


def test_without_a_request_nothing_is_changed(nodes):
    plain = recorded("plain")
    assert engine_spec.without_gpus(plain, nodes) is plain
    assert not engine_wish.read(plain, facts(), nodes, privileged=False)
