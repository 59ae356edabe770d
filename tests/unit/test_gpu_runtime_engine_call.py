# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a person asks an engine for, and a spec without what the engine put into it."""

import copy
import json
import os
import socket
import types

import pytest

from gpu_runtime import engine_call as engine
from gpu_runtime import engine_client as engine_caller
from gpu_runtime import engine_metadata as engine_facts
from gpu_runtime import engine_request as engine_wish
from gpu_runtime import engine_spec
from gpu_runtime.device_nodes import Nodes
from gpu_runtime.environment import Variables
from gpu_runtime.grant import Grant
from gpu_runtime.policy import Policy
from gpu_runtime.runc_arguments import parse
from tests.unit.gpu_rig import Dev
from tests.unit.refusals import refuses

UUIDS = [f"GPU-0000000{index}-1111-2222-3333-444444444444" for index in (0, 1)]
CARD = {"model": "NVIDIA A100", "nodes": []}
POLICY = {
    "version": 3, "allocation": "exclusive", "gpus_per_task": 1, "wait_timeout": 600,
    "hijack_limit": 0, "privileged_tasks": "no-gpu", "vendor": "nvidia",
    "nvidia_runtime": "/usr/bin/nvidia-container-runtime", "config_home": "/etc/gpu-ci",
    "cordons": [],
    "gpus": [
        {**CARD, "index": index, "uuid": uuid, "devices": [uuid], "minor": index}
        for index, uuid in enumerate(UUIDS)
    ],
}  # fmt: skip
ID = "4f0c" * 16
NUMBERS = {"/dev/nvidia0": (195, 0), "/dev/nvidia1": (195, 1), "/dev/nvidiactl": (195, 255)}


@pytest.fixture
def nodes():
    """Two GPUs' nodes, and what all of them need."""
    return Nodes(None, Dev(NUMBERS))


@pytest.fixture
def policy():
    return Policy(POLICY)


def node(path):
    major, minor = NUMBERS[path]
    return {"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 438}


def spec(*env, devices=(), rules=(), **more):
    return {
        "process": {"args": ["sh"], "env": ["PATH=/bin", *env]},
        "linux": {
            "devices": [node(path) for path in devices],
            "resources": {"devices": [{"allow": False, "access": "rwm"}, *rules]},
        },
        **more,
    }


def facts(*requests, image=(), engine="docker"):
    found = engine_facts.Facts()
    found.engine, found.fault = engine, "it is gone"
    found.image = None if image is None else [*image]
    found.requests = [*requests]
    return found


def gpus(count=0, *ids, driver="", capabilities=("gpu",)):
    ids = [*ids] or None
    return {"Driver": driver, "Count": count, "DeviceIDs": ids, "Capabilities": [[*capabilities]]}


def asked(nodes, policy, config, told=None, *, privileged=False):
    wish = engine_wish.read(config, told or facts(), nodes, privileged=privileged)
    return engine_wish.devices(wish, policy, nodes) if wish else None


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (gpus(2), (2, [])),
        (gpus(-1), (None, [])),
        (gpus(0, "1"), (1, [UUIDS[1]])),
        (gpus(0, UUIDS[0], "0", "1"), (2, UUIDS)),
        (gpus(0, "nvidia.com/gpu=1", driver="cdi", capabilities=()), (1, [UUIDS[1]])),
        (gpus(0, "nvidia.com/gpu=all", driver="cdi", capabilities=()), (None, [])),
        (gpus(0, "acme.com/fpga=1", driver="cdi", capabilities=()), None),
        (gpus(1, driver="acme"), None),
        (gpus(1, driver="nvidia.cdi", capabilities=()), (1, [])),
        (gpus(-1, driver="nvidia.runtime-hook", capabilities=("tpu",)), (None, [])),
        (gpus(0, "nvidia.com/gpu=0", driver="nvidia"), (1, [UUIDS[0]])),
        (gpus(1, capabilities=("utility", "compute")), (1, [])),
        (gpus(1, capabilities=("tpu",)), None),
        (gpus(0), None),
    ],
)
def test_what_docker_was_told(nodes, policy, request_, expected):
    """It counts before variables, those that Docker adds among them."""
    config = spec("NVIDIA_VISIBLE_DEVICES=0,1" if expected else "A=b")
    assert asked(nodes, policy, config, facts(request_)) == expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (["GPU_COUNT=2"], (2, [])),
        (["GPU_COUNT=all"], (None, [])),
        (["GPU_COUNT=0", "NVIDIA_VISIBLE_DEVICES=all"], None),
        (["NVIDIA_VISIBLE_DEVICES=all"], (None, [])),
        (["NVIDIA_VISIBLE_DEVICES=1, 0"], (2, [UUIDS[1], UUIDS[0]])),
        (["NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=1"], (1, [UUIDS[1]])),
        (["AMD_VISIBLE_DEVICES=1"], (1, [UUIDS[1]])),
        *((["NVIDIA_VISIBLE_DEVICES=" + none], None) for none in ("", "void", "none", "0,void")),
        (["CUDA_VERSION=12"], None),
    ],
)
def test_a_persons_variables(nodes, policy, env, expected):
    assert asked(nodes, policy, spec(*env)) == expected
    # The same from the image asks for nothing.
    assert asked(nodes, policy, spec(*env), facts(image=env)) is None


def test_nodes_of_gpus_are_a_wish_for_them(nodes, policy):
    assert asked(nodes, policy, spec(devices=["/dev/nvidia1"])) == (1, [UUIDS[1]])
    assert asked(nodes, policy, spec(devices=["/dev/nvidiactl"])) is None
    mounted = spec(mounts=[{"source": "/dev/nvidia0", "destination": "/x", "type": "bind"}])
    assert asked(nodes, policy, mounted) == (1, [UUIDS[0]])
    both = spec(devices=["/dev/nvidia0", "/dev/nvidia1"])
    assert asked(nodes, policy, both) == (2, UUIDS)
    fewer = Policy({**POLICY, "gpus": POLICY["gpus"][1:]})
    assert asked(nodes, fewer, both) == (None, []), "CDI's all, of which the operator gives some"
    with refuses("gpu-not-offered"):
        asked(nodes, fewer, spec(devices=["/dev/nvidia0"]))
    assert asked(nodes, policy, both, privileged=True) is None


@pytest.mark.parametrize(
    ("env", "code"),
    [
        ("GPU_COUNT=-1", "gpu-count-invalid"),
        ("GPU_COUNT=1e9", "gpu-count-invalid"),
        ("GPU_COUNT=", "gpu-count-invalid"),
        ("NVIDIA_VISIBLE_DEVICES=7", "gpu-not-offered"),
        ("NVIDIA_VISIBLE_DEVICES=0:1", "gpu-not-offered"),
    ],
)
def test_what_can_not_be_followed_is_refused(nodes, policy, env, code):
    with refuses(code):
        asked(nodes, policy, spec(env))


def test_where_nobody_can_tell_who_asks(nodes, policy):
    told = facts(image=None)
    assert asked(nodes, policy, spec("NVIDIA_VISIBLE_DEVICES=all"), told) is None
    with refuses("gpu-count-ambiguous"):
        asked(nodes, policy, spec("GPU_COUNT=1"), told)


def test_a_divided_gpu_is_named_by_its_parts(nodes):
    parts = {**POLICY["gpus"][0], "devices": ["MIG-a1", "MIG-b2"]}
    policy = Policy({**POLICY, "gpus": [parts]})
    with refuses("gpu-divided"):
        asked(nodes, policy, spec("NVIDIA_VISIBLE_DEVICES=0"))
    assert asked(nodes, policy, spec("NVIDIA_VISIBLE_DEVICES=MIG-b2")) == (1, ["MIG-b2"])


IMAGE = ["PATH=/bin", "CUDA_VERSION=12", "NVIDIA_VISIBLE_DEVICES=all"]


@pytest.mark.parametrize(
    ("merged", "persons"),
    [
        (IMAGE, []),
        (["NVIDIA_VISIBLE_DEVICES=all", "PATH=/bin", "CUDA_VERSION=12"], IMAGE[2:]),
        (["GPU_COUNT=2", *IMAGE], ["GPU_COUNT=2"]),
        (["PATH=/usr/bin", *IMAGE[1:]], ["PATH=/usr/bin"]),
        # All said again in the image's own order can't be told from nothing said.
        (["PATH=/bin", "CUDA_VERSION=12", "NVIDIA_VISIBLE_DEVICES=all"], []),
    ],
)
def test_dockers_order_tells_who_wrote_a_variable(merged, persons):
    theirs = engine_facts.images(merged, IMAGE)
    found = Variables.apart(merged, theirs)
    assert [entry for _, entry, is_persons in found.entries if is_persons] == persons


def test_an_image_that_says_a_name_twice_says_it_still():
    """Docker takes the first beside a variable of a person's, and all where there is none."""
    image = ["X=1", "X=2", "GPU_COUNT=all"]
    assert engine_facts.images(image, image) == image
    assert engine_facts.images(["A=b", "X=1", "GPU_COUNT=all"], image) == ["X=1", "GPU_COUNT=all"]


def test_docker_and_podman_are_read(tmp_path):
    home, image = tmp_path / "docker", "ab" * 32
    for path, content in {
        f"containers/{ID}/config.v2.json": {
            "Name": "/train", "Driver": "overlay2", "Image": f"sha256:{image}",
            "Config": {"Env": ["GPU_COUNT=2", "A=b"]},
        },
        f"containers/{ID}/hostconfig.json": {"DeviceRequests": [gpus(2)]},
        f"image/overlay2/imagedb/content/sha256/{image}": {"config": {"Env": ["A=b"]}},
    }.items():  # fmt: skip
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(json.dumps(content))
    config = {"root": {"path": str(home / "overlay2/x/merged")}}
    found = engine_facts.read(config, "/run/docker/moby/x", ID)
    assert (found.who(ID), found.image) == ('docker container "train"', ["A=b"])
    assert found.requests == [gpus(2)]
    (home / f"image/overlay2/imagedb/content/sha256/{image}").unlink()
    assert engine_facts.read(config, "/run/docker/moby/x", ID).image is None
    (home / f"containers/{ID}/hostconfig.json").write_text("{")
    with pytest.raises(ValueError, match="line 1"):
        engine_facts.read(config, "/run/docker/moby/x", ID)
    folder = tmp_path / "storage/overlay-containers"
    bundle = folder / ID / "userdata"
    bundle.mkdir(parents=True)
    (folder / "containers.json").write_text("[]")
    entry = [{"id": ID, "names": ["nb"], "image": image}]
    (folder / "volatile-containers.json").write_text(json.dumps(entry))
    kept = tmp_path / "storage/overlay-images" / image
    kept.mkdir(parents=True)
    key = (
        "=" + engine_facts.binascii.b2a_base64(f"sha256:{image}".encode(), newline=False).decode()
    )
    (kept / key).write_text(json.dumps({"config": {"Env": ["A=b", " \tGPU_COUNT=all"]}}))
    found = engine_facts.read({}, str(bundle), ID)
    assert (found.who(ID), found.image) == ('podman container "nb"', ["A=b", "GPU_COUNT=all"])
    (kept / key).write_text(json.dumps({"config": {"Env": ["GPU_COUNT"]}}))
    found = engine_facts.read({}, str(bundle), ID)
    assert (found.image, "inherits a variable" in found.fault) == (None, True)
    # What an image's maker writes so is its variables to the engine, and would be a person's here.
    for odd in ('{"config":{"Env":["A=b"],"ENV":["GPU_COUNT=all"]}}', '{"config":{},"Config":{}}'):
        (kept / key).write_text(odd)
        found = engine_facts.read({}, str(bundle), ID)
        assert (found.image, "a known name in another case" in found.fault) == (
            None,
            True,
        )
    (folder / "volatile-containers.json").unlink()
    assert engine_facts.read({}, str(bundle), ID).image is None


def test_no_id_of_an_image_leads_out_of_its_folder():
    with pytest.raises(ValueError, match="is not an id of an image"):
        engine_facts._hex("sha256:../../etc")


HOOK = {"path": "/usr/bin/nvidia-container-runtime-hook"}
OTHER = {"path": "/proc/1/exe", "args": ["libnetwork-setkey"]}


def test_what_the_engine_put_in_goes_out(nodes):
    config = spec(
        devices=["/dev/nvidia0", "/dev/nvidiactl"],
        rules=[
            {"allow": True, "type": "c", "major": 195, "minor": -1, "access": "rwm"},
            {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rwm"},
            {"allow": True, "type": "c", "major": -1, "minor": -1, "access": "m"},
            {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"},
        ],
        hooks={"prestart": [HOOK, OTHER], "poststop": []},
        mounts=[
            {"source": "/dev/nvidia1", "destination": "/dev/nvidia1"},
            {"source": "/dev/null", "destination": "/run/nvidia-container-devices/all"},
            {"source": "/usr/lib/libcuda.so", "destination": "/lib/libcuda.so"},
            {"source": "/srv", "destination": "/lib/libcuda.so"},
        ],
        annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0", "a": "b"},
    )
    before = copy.deepcopy(config)
    bare = engine_spec.without_gpus(config, nodes, {"/usr/lib/libcuda.so", "/lib/libcuda.so"})
    assert config == before
    assert bare["linux"]["devices"] == []
    kept = bare["linux"]["resources"]["devices"]
    assert [rule.get("major") for rule in kept] == [None, -1, 1]
    assert bare["hooks"] == {"prestart": [OTHER], "poststop": []}
    assert [mount["source"] for mount in bare["mounts"]] == ["/srv"]
    assert bare["annotations"] == {"a": "b"}
    assert engine_spec.without_gpus(bare, nodes) is bare


def test_who_may_open_everything_may_not_open_a_gpu(nodes, policy):
    everything = {"allow": True, "access": "rwm"}
    bare = engine_spec.without_gpus(spec(rules=[everything]), nodes)
    rules = bare["linux"]["resources"]["devices"]
    # What every container may make, runc's wildcard of m, must not be in the way. A GPU whose node
    # comes later has the same major number.
    assert all(rule["access"] == "rw" for rule in rules[2:])
    assert {(rule["major"], rule["minor"]) for rule in rules[2:]} == {(195, -1)}
    grant = Grant(policy, [policy.devices[1]])
    variables = engine_wish.variables(bare["process"], facts())
    made = engine_spec.granted(bare, grant, variables, nodes, [(195, 1)])
    closed = made["linux"]["resources"]["devices"][2:]
    # runc makes no hole in a rule for all of a major number.
    assert [(rule["major"], rule["minor"]) for rule in closed] == [(195, 0)]
    assert engine_spec.without_gpus(bare, nodes) is bare


@pytest.mark.parametrize(
    "rule",
    [
        # Of such a rule runc and the kernel look at nothing else.
        {"type": "a", "access": "rwm"},
        {"type": "a", "major": -1, "minor": -1, "access": "rwm"},
        {"type": "a", "major": 1, "minor": 3, "access": "m"},
        *({"type": "c", "major": every, "minor": 0, "access": "rw"}
          # What runc and what the kernel of v1 call every number.
          for every in (None, -1, -2, -(2**63), 0xFFFFFFFF)),
    ],
)  # fmt: skip
def test_a_rule_for_every_device_is_refused(nodes, rule):
    rule = {"allow": True, **rule}
    with refuses("device-rule-too-wide"):
        engine_spec.without_gpus(spec(rules=[rule]), nodes)
    privileged = [{"allow": True, "access": "rwm"}]
    bare = engine_spec.without_gpus(spec(rules=[*privileged, rule]), nodes)
    last = bare["linux"]["resources"]["devices"][-1]
    assert (last["allow"], last["major"], last["minor"]) == (False, 195, -1)


@pytest.mark.parametrize("minor", [None, -1, -2, 0xFFFFFFFF])
@pytest.mark.parametrize("major", [195, 226])
def test_a_rule_for_all_of_a_major_number_is_none_for_gpus(nodes, major, minor):
    nodes.cards[226, 128] = "/dev/dri/renderD128"
    rule = {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"}
    bare = engine_spec.without_gpus(spec(rules=[rule]), nodes)
    assert bare["linux"]["resources"]["devices"] == [{"allow": False, "access": "rwm"}]


def test_a_privileged_container_with_another_makers_gpu_keeps_nothing_of_nvidias(nodes, policy):
    nodes.shared[234, 0], nodes.cards[226, 128] = "/dev/kfd", "/dev/dri/renderD128"
    bare = engine_spec.without_gpus(spec(rules=[{"allow": True, "access": "rwm"}]), nodes)
    closed = bare["linux"]["resources"]["devices"][2:]
    assert [(one["major"], one["minor"]) for one in closed] == [(195, -1), (226, -1), (234, -1)]
    grant = Grant(policy, [])
    grant.nodes = [
        types.SimpleNamespace(path=path, major=major, minor=minor, gid=0)
        for path, major, minor in (("/dev/kfd", 234, 0), ("/dev/dri/renderD128", 226, 128))
    ]
    variables = engine_wish.variables(bare["process"], facts())
    made = engine_spec.granted(bare, grant, variables, nodes, [(226, 128)])
    rules = made["linux"]["resources"]["devices"]
    closed = {(one["major"], one["minor"]) for one in rules[2:] if not one["allow"]}
    assert closed == {*NUMBERS.values()}


@pytest.mark.parametrize("profile", [None, {}])
def test_who_has_a_gpu_and_no_profile_gets_one_that_shuts_exit_stops(nodes, policy, profile):
    grant, ours = Grant(policy, [policy.devices[1]]), [(195, 1)]
    for rules, machine, made_one in (
        ([], "x86_64", True),
        ([], "aarch64", True),
        ([], "riscv64", False),
        ([{"allow": True, "access": "rwm"}], "x86_64", False),
    ):
        config = engine_spec.without_gpus(spec(rules=rules), nodes)
        config["linux"]["seccomp"] = profile
        variables = engine_wish.variables(config["process"], facts())
        made = engine_spec.granted(config, grant, variables, nodes, ours, machine)
        found = made["linux"]["seccomp"] or {}
        assert bool(found) == made_one
        if found:
            assert found["defaultAction"] == "SCMP_ACT_ALLOW"
            assert any("ptrace" in call["names"] for call in found["syscalls"])
            assert "SCMP_ARCH_X86" in found["architectures"] or machine != "x86_64"


def test_a_display_beside_the_gpus_stays_open_to_who_is_privileged(nodes):
    nodes.cards[226, 128], nodes.beside = "/dev/dri/renderD128", True
    bare = engine_spec.without_gpus(spec(rules=[{"allow": True, "access": "rwm"}]), nodes)
    closed = bare["linux"]["resources"]["devices"][2:]
    assert [(one["major"], one["minor"]) for one in closed] == [(195, -1), (226, 128)]


def test_a_grant_says_so_and_leaves_a_persons_choice(nodes, policy):
    env = ["CUDA_VISIBLE_DEVICES=0", "HIP_VISIBLE_DEVICES=3", "LD_LIBRARY_PATH=/x", "GPU_COUNT=7"]
    config = spec(*env)
    told = facts(image=env[1:])
    grant = Grant(policy, [policy.devices[1]])
    variables = engine_wish.variables(config["process"], told)
    made = engine_spec.granted(config, grant, variables, nodes, [(195, 1)])
    found = made["process"]["env"]
    assert "CUDA_VISIBLE_DEVICES=0" in found, "a person's"
    assert "LD_LIBRARY_PATH=/x" in found
    assert not [entry for entry in found if entry.startswith("HIP_")], "an image's"
    assert [entry for entry in found if entry.startswith("GPU_COUNT=")] == ["GPU_COUNT=1"]
    assert f"NVIDIA_VISIBLE_DEVICES={UUIDS[1]}" in found
    config = spec("CUDA_VISIBLE_DEVICES=1")
    variables = engine_wish.variables(config["process"], facts())
    with refuses("gpu-index-invalid"):
        engine_spec.granted(config, grant, variables, nodes, [(195, 1)])


def test_paths_of_cdi_files(tmp_path):
    (tmp_path / "a.yaml").write_text("kind: nvidia.com/gpu\n- {hostPath: /a, containerPath: '/b'}")
    (tmp_path / "b.json").write_text('{"kind":"amd.com/gpu","x":["/c","/d e"]}')
    (tmp_path / "c.yaml").write_text("kind: acme.com/fpga\nhostPath: /e\n")
    assert engine_facts.cdi_paths((str(tmp_path), "/nowhere")) == {"/a", "/b", "/c", "/d"}


def call(command="create"):
    return parse([command, "--bundle", "/b", ID])


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"rootless": True}, "rootless-engine"),
        ({"policy": None}, "gpus-disabled"),
        ({"command": "run"}, "start-unsupported"),
        ({"privileged": True}, "privileged-not-allowed"),
        ({"nvidia_runtime": "/no/such/runtime"}, "runtime-missing"),
    ],
)
def test_who_gets_no_gpu_at_all_reads_why(changed, code):
    policy = Policy({**POLICY, "nvidia_runtime": changed.get("nvidia_runtime", "/bin/sh")})
    asks = call(changed.get("command", "create"))
    with refuses(code):
        engine._check(
            changed.get("policy", policy),
            asks,
            privileged=changed.get("privileged", False),
            rootless=changed.get("rootless", False),
        )


def test_who_could_not_be_seen_to_run_gets_no_gpu():
    for path in (f"/x/libpod-payload-{ID}", f"system.slice:docker:{ID}", "", f"/docker/{ID}"):
        assert engine._request(call(), "/b", path).kind == "container"
    for path in ("/x/payload", "a:b", f"system.slice:docker:{ID}x", f"/docker/{ID}/.."):
        with refuses("cgroup-unsupported"):
            engine._request(call(), "/b", path)


def test_nobody_waits_longer_than_podman_does(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(POLICY))
    paths = engine.Paths("", str(path), "", "", "", "")
    assert next(engine._policies(paths, 60)).wait_timeout == 60
    assert next(engine._policies(paths, None)).wait_timeout == 600


def test_a_monitor_that_nobody_listens_to_is_known():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        assert not engine_caller.is_deserted(os.getpid(), ours.fileno())
        theirs.close()
        assert engine_caller.is_deserted(os.getpid(), ours.fileno())
    assert not engine_caller.is_deserted(os.getpid(), 4000)
