# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Classification and grants: golden specs of Concourse's shape, and properties of any spec."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from gpu_runtime import container_spec as spec
from gpu_runtime import grant, seccomp
from gpu_runtime.grant import Grant
from gpu_runtime.refusal import Refused
from tests.unit.grants import (
    AMD,
    GRANTED,
    INTEL,
    NVIDIA,
    TASKS,
    RecordedNode,
    golden,
    granted,
)
from tests.unit.refusals import refuses

KINDS = {
    "task": spec.TASK,
    "task-cuda-image": spec.TASK,
    "task-hostile": spec.TASK,
    "task-none": spec.TASK,
    "task-privileged": spec.PRIVILEGED_TASK,
    "get": spec.OTHER,
    "get-privileged": spec.OTHER,
    "put": spec.OTHER,
    "run": spec.OTHER,
    "check": spec.OTHER,
}
# A busy machine is no failure, and nothing is to be left in the source tree.
PATIENT = settings(
    deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200
)
WORDS = some.sampled_from(
    ["", "destination", "/tmp/build/get", "env", "namespaces", "type", "user", "\ud800", "x"]
)
JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | WORDS,
    lambda inner: some.lists(inner) | some.dictionaries(WORDS, inner),
    max_leaves=8,
)
VOLUMES = "/run/nvidia-container-devices"


@pytest.fixture(autouse=True)
def recorded_nodes(monkeypatch):
    """This machine has no such GPU; what a real node tells is in test_gpu_runtime_grant.py."""
    monkeypatch.setattr(grant, "Node", RecordedNode)


@pytest.mark.parametrize("name", KINDS)
def test_what_a_container_is(name):
    assert spec.kind(golden(name), TASKS) == KINDS[name]


@pytest.mark.parametrize(
    "destination",
    [
        *("/tmp/build/get", "/tmp/build/put", "/tmp/build/run", "/tmp/build/e55deab"),
        *("/tmp/build/e55deab70", "/tmp/build/E55DEAB7", "/tmp/build/e55deab7/input"),
        *("/tmp/build/e55deab7\n", "/x/tmp/build/e55deab7", "/tmp/build/e55dea g", "", None, 7),
        *(
            "/tmp/build/٣٣٣٣٣٣٣٣",
            "/tmp/build/",
            "/tmp/build/e55deab7/..",
            "/tmp/build/../e55deab7",
        ),
    ],
)
def test_what_no_work_folder_of_a_task_is(destination):
    config = {**golden("task"), "mounts": [{"destination": destination}]}
    assert spec.kind(config, TASKS) == spec.OTHER


@pytest.mark.parametrize(
    "destination",
    [
        *("/tmp/build/e55deab7/", "//tmp/build/e55deab7", "///tmp//build/./e55deab7/."),
        *("tmp/build/e55deab7", "/../tmp/build/get/../e55deab7", "/tmp/build/e55deab7/x/.."),
    ],
)
def test_a_work_folder_as_the_runtime_reads_it(destination):
    config = {**golden("get"), "mounts": [{"destination": destination}]}
    assert spec.kind(config, TASKS) == spec.TASK


@pytest.mark.parametrize("other", ["get", "put", "run", "put/input", "x/../get", "/run/."])
def test_a_task_with_another_steps_folder_is_refused(other):
    config = golden("task")
    spec.check_folders(config, TASKS)
    config["mounts"].append({"destination": f"/tmp/build/{other}"})
    with refuses("path-reserved"):
        spec.check_folders(config, TASKS)


@pytest.mark.parametrize("other", ["getter", "get.d", "../get", "e55deab7/get", "runs/x"])
def test_a_task_may_have_folders_of_like_names(other):
    config = golden("task")
    config["mounts"].append({"destination": f"/tmp/build/{other}"})
    spec.check_folders(config, TASKS)


def test_variables_and_annotations_make_no_task():
    config = golden("get")
    config["process"]["env"] += ["WORK=/tmp/build/e55deab7", "ATC_EXTERNAL_URL=u", "GPU_COUNT=2"]
    config["annotations"]["/tmp/build/e55deab7"] = "/tmp/build/e55deab7"
    assert spec.kind(config, TASKS) == spec.OTHER


def test_variables_and_annotations_unmake_no_task():
    config = golden("task")
    config["process"]["env"] += ["BUILD_TEAM_NAME=main", "WORK=/tmp/build/get"]
    config["annotations"]["/tmp/build/get"] = "/tmp/build/get"
    assert spec.kind(config, TASKS) == spec.TASK


@pytest.mark.parametrize("namespaces", [[], None, [{"type": "pid"}], ["user"], [{"path": "user"}]])
def test_privileged_is_whoever_has_no_user_namespace(namespaces):
    config = golden("task")
    config["linux"]["namespaces"] = namespaces
    assert spec.kind(config, TASKS) == spec.PRIVILEGED_TASK


@pytest.mark.parametrize("name", GRANTED)
def test_a_create(name):
    before = GRANTED[name][0]
    assert spec.at_create(golden(before), granted(name)) == golden(name)


@pytest.mark.parametrize("name", GRANTED)
def test_a_create_repeated_changes_nothing_more(name):
    after = spec.at_create(golden(name), granted(name))
    rules = after["linux"]["resources"]["devices"]
    # A rule twice is one rule; which of them are ours can't be told.
    after["linux"]["resources"]["devices"] = [
        rule for place, rule in enumerate(rules) if rule not in rules[:place]
    ]
    assert after == golden(name)


@pytest.mark.parametrize("name", GRANTED)
def test_an_exec_is_told_what_create_told(name):
    before, _, devices = GRANTED[name]
    process = {**golden(before)["process"], "args": ["sh"]}
    ours = granted(name)
    after = spec.at_exec(process, ours.environment, ours.ids, ours.groups)
    expected = golden(name)["process"]
    loaders = [e for e in process["env"] if e.startswith(("LD_PRELOAD=", "LD_AUDIT="))]
    assert [e for e in after["env"] if e not in loaders] == expected["env"]
    assert [e for e in after["env"] if e in loaders] == loaders, "the step's own loader is its own"
    assert after["user"] == expected["user"]
    assert ours.ids == [device.id for device in devices]


def test_groups_of_an_image_stay():
    process = {"env": [], "user": {"uid": 1000, "gid": 1000, "additionalGids": [44, 7, 7]}}
    after = spec.at_exec(process, {"A": "b"}, [], [44, 104])
    assert after["user"] == {"uid": 1000, "gid": 1000, "additionalGids": [44, 7, 104]}


def test_a_node_that_is_there_already_is_there_once():
    config = golden("task-privileged")
    config["linux"]["devices"].append({"path": "/dev/kfd", "type": "c", "major": 1, "minor": 1})
    after = spec.at_create(config, Grant(AMD, AMD.devices))
    nodes = [node["path"] for node in after["linux"]["devices"]]
    assert nodes == ["/dev/fuse", "/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"]
    assert {"path": "/dev/kfd", "type": "c", "major": 1, "minor": 1} not in after["linux"][
        "devices"
    ]


def test_a_create_repeated_with_another_gpu_has_nothing_of_the_first():
    first, second = AMD.devices
    before = spec.at_create(golden("task"), Grant(AMD, [first]))
    anew = spec.at_create(golden("task"), Grant(AMD, [second]))
    assert spec.at_create(before, Grant(AMD, [second]))["linux"] == anew["linux"]
    linux = spec.at_create(before, Grant(AMD, []))["linux"]
    assert linux["devices"] == []
    assert linux["resources"] == {"devices": [], **golden("task")["linux"].get("resources", {})}


def test_what_nvidias_runtime_has_put_in_before_goes_too():
    config = golden("task")
    node = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
    rule = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rwm"}
    linux = config["linux"]
    linux["devices"] = [*linux.get("devices", []), node]
    linux["resources"]["devices"] = [*linux["resources"].get("devices", []), rule]
    after = spec.at_create(config, Grant(NVIDIA, NVIDIA.devices))["linux"]
    assert node not in after["devices"]
    assert rule not in after["resources"]["devices"]


def test_a_spec_without_linux_gets_its_nodes():
    after = spec.at_create({"process": {"env": []}}, Grant(INTEL, INTEL.devices))
    assert [node["minor"] for node in after["linux"]["devices"]] == [1, 128]
    assert all(rule["allow"] for rule in after["linux"]["resources"]["devices"])


@pytest.mark.parametrize(
    "destination",
    [
        *(f"/var{VOLUMES}", f"/var{VOLUMES}/all", f"/var{VOLUMES}/0/", f"{VOLUMES}/all"),
        *(f"/var{VOLUMES}/imex/channel0", f"/var{VOLUMES}/cdi/nvidia.com/gpu/all"),
        *(f"/x/..{VOLUMES}/all", f"/var/.{VOLUMES}//all", f"/var{VOLUMES}/x/../all"),
        # As Go's filepath.Clean reads them, which asks for the beginning alone.
        *(f"//var{VOLUMES}/all", f"///var{VOLUMES}/all", f"/../var{VOLUMES}/all"),
        f"/var{VOLUMES}all",
    ],
)
def test_mounts_that_ask_for_devices(destination):
    config = golden("task")
    config["mounts"].insert(3, {"destination": destination, "source": "/dev/null"})
    assert spec.at_create(config, Grant(NVIDIA, []))["mounts"] == golden("task")["mounts"]


@pytest.mark.parametrize(
    "destination", ["/var/run", "/srv/run/nvidia-container-devices", "/run/nvidia", "", None, 7]
)
def test_mounts_that_ask_for_none(destination):
    config = {**golden("task"), "mounts": [{"destination": destination}, "x", None]}
    assert spec.at_create(config, Grant(NVIDIA, []))["mounts"] == config["mounts"]


PROFILE = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "syscalls": [{"names": ["read", "ptrace"], "action": "SCMP_ACT_ALLOW"}],
}


def test_who_gets_a_gpu_gets_no_exit_stops_and_no_task_gets_io_uring():
    permitted = {"names": ["read", "io_uring_setup"], "action": "SCMP_ACT_ALLOW"}
    config = golden("task")
    config["linux"]["seccomp"] = {**PROFILE, "syscalls": [permitted]}
    for policy, devices in ((NVIDIA, NVIDIA.devices), (NVIDIA, [])):
        after = spec.at_create(config, Grant(policy, devices))["linux"]["seccomp"]
        assert after["syscalls"] == [{**permitted, "names": ["read"]}]
    config = golden("task")
    config["linux"]["seccomp"] = PROFILE
    for policy in (NVIDIA, AMD):
        after = spec.at_create(config, Grant(policy, policy.devices))["linux"]["seccomp"]
        assert after == seccomp.of_a_holder(PROFILE) != PROFILE
        assert spec.at_create(config, Grant(policy, []))["linux"]["seccomp"] == PROFILE
    after = spec.at_create(golden("task"), Grant(NVIDIA, NVIDIA.devices))
    assert "seccomp" not in after["linux"]


@pytest.mark.parametrize("process", [None, {}, [], "x", 7])
def test_a_spec_without_a_process_is_no_spec(process):
    with pytest.raises(ValueError, match="it has no process"):
        spec.at_create({**golden("task"), "process": process}, Grant(NVIDIA, []))


@PATIENT
@given(some.dictionaries(some.sampled_from(["mounts", "process", "linux", "annotations"]), JSON))
def test_specs_of_any_shape_can_be_classified(config):
    assert spec.kind(config, TASKS) == spec.OTHER


@PATIENT
@given(
    some.sampled_from(["process", "mounts", "annotations", "linux", "root", "x"]),
    JSON,
    some.sampled_from(["task", "task-hostile", "task-privileged"]),
    some.sampled_from([NVIDIA, AMD, INTEL]),
)
def test_no_field_is_added_or_lost(field, value, name, policy):
    config = {**golden(name), field: value}
    try:
        after = spec.at_create(config, Grant(policy, policy.devices))
    except (ValueError, Refused):
        assert field == "process"
        return
    assert after.keys() == config.keys()
    assert json.loads(json.dumps(after)) == after
    unchanged = after.keys() - {"process", "mounts", "annotations", "linux"}
    assert {key: after[key] for key in unchanged} == {key: config[key] for key in unchanged}
    if policy is NVIDIA:
        assert after.get("linux") == config.get("linux"), "NVIDIA's runtime adds its nodes itself"
