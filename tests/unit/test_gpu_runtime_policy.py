# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""policy.json: what can be followed, what is refused, and unavailable GPUs."""

import json

import pytest

from gpu_runtime import container_spec as spec
from gpu_runtime import policy
from gpu_runtime.policy import Policy
from gpu_runtime.refusal import Refused
from gpu_runtime.unavailable import Unavailable
from tests.unit.grants import AMD_GPUS, INTEL_GPUS, MIG_GPUS, content, in_use
from tests.unit.refusals import refuses
from tests.unit.wrapper_rig import GPUS

ACME = {"ids": ["ACME-"], "pci_vendor": "0x1ae0", "by_runtime": False}


def test_a_policy_for_nvidia():
    found = Policy(content(allocation="shared", gpus_per_task=3, wait_timeout=7))
    assert (found.exclusive, found.gpus_per_task, found.wait_timeout) == (False, 3, 7)
    assert [(device.index, device.id, device.gpu) for device in found.devices] == [
        (gpu["index"], gpu["uuid"], gpu["uuid"]) for gpu in GPUS
    ]
    assert not found.privileged


@pytest.mark.parametrize("gpus", [AMD_GPUS, INTEL_GPUS])
def test_a_policy_without_a_runtime(gpus):
    vendor = "amd" if gpus is AMD_GPUS else "intel"
    found = Policy(content(vendor=vendor, nvidia_runtime="", config_home="", gpus=gpus))
    assert [device.nodes for device in found.devices] == [gpu["nodes"] for gpu in gpus]
    assert not found.vendor.by_runtime


def test_what_must_be_known_of_a_vendor_comes_with_the_policy():
    card = {**AMD_GPUS[0], "uuid": "ACME-1", "devices": ["ACME-1"]}
    found = Policy(content(vendor="acme", grant=ACME, gpus=[card])).vendor
    assert (found.ids, found.pci, found.by_runtime) == (("ACME-",), "0x1ae0", False)
    with pytest.raises(ValueError, match="is not an id"):
        Policy(content(vendor="acme", grant=ACME, gpus=AMD_GPUS))


def test_a_mig_device_is_a_device_of_its_gpu():
    found = Policy(content(gpus=MIG_GPUS)).devices
    assert [device.id for device in found] == MIG_GPUS[0]["devices"]
    assert {device.gpu for device in found} == {GPUS[0]["uuid"]}


def test_the_nodes_that_are_a_devices_alone():
    whole = [{**GPUS[0], "minor": 7}, {**GPUS[1], "minor": None}, {**MIG_GPUS[0], "minor": 2}]
    found = Policy(content(gpus=whole[:2])).devices
    assert [device.watched for device in found] == [["/dev/nvidia7"], []]
    assert {tuple(device.watched) for device in Policy(content(gpus=whole[2:])).devices} == {()}
    amd = Policy(content(vendor="amd", gpus=AMD_GPUS)).devices
    assert [device.watched for device in amd] == [gpu["nodes"][1:] for gpu in AMD_GPUS]
    assert AMD_GPUS[0]["nodes"][0] == AMD_GPUS[1]["nodes"][0] == "/dev/kfd"


def test_how_long_a_hijack_may_keep_gpus():
    assert Policy(content(hijack_limit=60)).hijack_limit == 60
    assert Policy(content(hijack_limit=0)).hijack_limit == 0


def test_each_id_is_there_once():
    twice = [*GPUS, {**GPUS[0], "index": 7}]
    assert [device.index for device in Policy(content(gpus=twice)).devices] == [0, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 1}, "version is 1, not 3"),
        ({"version": None}, "version is None, not 3"),
        ({"allocation": "lottery"}, "allocation is 'lottery', not shared or exclusive"),
        ({"allocation": ["shared"]}, "allocation is ['shared']"),
        ({"privileged_tasks": "yes"}, "privileged_tasks is 'yes', not no-gpu or gpu"),
        ({"gpus_per_task": -1}, "gpus_per_task is -1, not a number from 0 on"),
        ({"gpus_per_task": True}, "gpus_per_task is True"),
        ({"gpus_per_task": "1"}, "gpus_per_task is '1'"),
        ({"wait_timeout": 1.5}, "wait_timeout is 1.5"),
        ({"wait_timeout": None}, "wait_timeout is None"),
        ({"hijack_limit": None}, "hijack_limit is None, not a number from 0 on"),
        ({"hijack_limit": -1}, "hijack_limit is -1"),
        ({"gpus": [{**GPUS[0], "minor": -1}]}, "minor is -1, not a number from 0 on"),
        ({"gpus": [{**GPUS[0], "minor": "0"}]}, "minor is '0'"),
        ({"vendor": "acme"}, "vendor is 'acme', not nvidia or amd or intel"),
        ({"grant": {}}, "grant is {}"),
        ({"grant": {**ACME, "ids": [""]}}, "grant is "),
        ({"grant": {**ACME, "pci_vendor": 4098}}, "grant is "),
        ({"grant": {**ACME, "by_runtime": "no"}}, "grant is "),
        ({"grant": ACME}, "GPU 0 has the device nodes"),
        ({"vendor": {}}, "vendor is {}"),
        ({"nvidia_runtime": "runc"}, "'runc' is not an absolute path"),
        ({"config_home": ""}, "'' is not an absolute path"),
        ({"gpus": None}, "no device to hand out"),
        ({"gpus": [None]}, "None is not a GPU"),
        ({"gpus": [{**GPUS[0], "index": "0"}]}, "is not a GPU that can be handed out"),
        ({"gpus": [{**GPUS[0], "devices": []}]}, "if MIG is on, create MIG devices"),
        ({"gpus": [{**GPUS[0], "nodes": ["/dev/nvidia0"]}]}, "GPU 0 has the device nodes"),
        ({"vendor": "amd", "gpus": [{**AMD_GPUS[0], "nodes": []}]}, "GPU 0 has the device nodes"),
        (
            {"vendor": "amd", "gpus": [{**AMD_GPUS[0], "nodes": ["kfd"]}]},
            "'kfd' is not an",
        ),
    ],
)
def test_what_cannot_be_followed(changes, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  its words are looked at
        Policy(content(**changes))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *("all", "none", "void", "0", "", "GPU-", "GPU-0,all", "GPU-0 ", "GPU-0\n", "GPU-0,GPU-1"),
        *("nvidia.com/gpu=all", "MIG", "gpu-0", "PCI-0000:03:00.0", "GPU-0:1", "GPU-/-", None, 7),
    ],
)
def test_what_could_mean_more_than_one_device(name):
    with pytest.raises(ValueError, match="is not an id of a GPU or MIG device"):
        Policy(content(gpus=[{**GPUS[0], "devices": [name]}]))


@pytest.mark.parametrize(
    ("vendor", "name"),
    [
        ("nvidia", "GPU-7f3c1b2a-0000-1111-2222-333344445555"),
        ("nvidia", "MIG-7f3c1b2a-0000-1111-2222-333344445555"),
        ("nvidia", "MIG-GPU-7f3c1b2a-0000-1111-2222-333344445555/1/0"),
        ("amd", "GPU-7391e8d0c1a2b3f4"),
        ("amd", "PCI-0000:c3:00.0"),
        ("intel", "PCI-10000:03:00.1"),
    ],
)
def test_ids_of_every_vendor(vendor, name):
    gpu = {"index": 0, "uuid": name, "model": "M", "devices": [name]}
    gpu["nodes"] = [] if vendor == "nvidia" else ["/dev/null"]
    assert [device.id for device in Policy(content(vendor=vendor, gpus=[gpu])).devices] == [name]


def test_reading_the_file(tmp_path):
    path = tmp_path / "policy.json"
    with pytest.raises(Refused, match="No such file or directory"):
        policy.read(str(path))
    path.write_text(json.dumps(content(gpus=[], vendor="")))
    assert policy.read(str(path)) is None, "no GPU: the rest does not matter"
    path.write_text(json.dumps(content()))
    assert len(policy.read(str(path)).devices) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version":3}', "{}"])
def test_a_file_that_cannot_be_followed_is_named_with_a_remedy(tmp_path, text):
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(Refused) as caught:
        policy.read(str(path))
    assert caught.value.code == "policy-unreadable"
    assert str(caught.value).startswith(f"GPU policy file {path} is unreadable (")
    assert str(caught.value).endswith("rewrites it within 5 minutes; rerun the task then")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "policy.json").mkdir()
    with pytest.raises(Refused, match="Is a directory"):
        policy.read(str(tmp_path / "policy.json"))


TASKS = {"parent": "/srv/ci.d/tasks/", "others": ["get", "check-2"]}


def test_how_tasks_are_known(tmp_path):
    path = tmp_path / "policy.json"
    for gpus in (GPUS, []):
        path.write_text(json.dumps(content(tasks=TASKS, gpus=gpus)))
        found = policy.File(str(path)).tasks
        assert found.parent == "/srv/ci.d/tasks/"
        assert found.others == ("/srv/ci.d/tasks/get/", "/srv/ci.d/tasks/check-2/")


def test_a_policy_of_the_revision_before_knows_concourses_tasks(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(content()))
    assert "tasks" not in content()
    found = policy.File(str(path))
    assert found.tasks.parent == "/tmp/build/"
    assert found.tasks.others == ("/tmp/build/get/", "/tmp/build/put/", "/tmp/build/run/")
    assert len(found.policy().devices) == 2


HOSTILE = [
    *("", "/", "//", "tmp/build/", "/tmp/build", "//tmp/build/", "/tmp//build/", "/tmp/./x/"),
    *("/tmp/../", "/../", "/tmp/build/ ", "/tmp/a b/", "/tmp/a\n/", "/tmp/'/", "/tmp/.*/"),
    *("/tmp/[a]/", "/tmp/$x/", '/tmp/"/', "/tmp/\\/", "/tmp/{{x}}/", "/tmp/\u00e4/", "/tmp/\0/"),
    *("/...//", "/(/", "/tmp/x|/", None, 7, ["/tmp/build/"], {}),
]


@pytest.mark.parametrize("parent", HOSTILE)
def test_a_hostile_folder_of_tasks_is_refused(tmp_path, parent):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(content(tasks={**TASKS, "parent": parent})))
    with refuses("policy-unreadable"):
        policy.read(str(path))
    with pytest.raises(ValueError, match="the folder of tasks is"):
        policy.task_folders({**TASKS, "parent": parent})


@pytest.mark.parametrize("tasks", [None, [], "/tmp/build/", {}, {"parent": "/tmp/build/"}])
def test_half_of_how_tasks_are_known_is_refused(tmp_path, tasks):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(content(tasks=tasks)))
    with refuses("policy-unreadable"):
        policy.read(str(path))


@pytest.mark.parametrize(
    "others", ["get", ["get", ""], ["a/b"], [".."], ["."], [7], ["e55deab7"], ["a b"], ["*"], [[]]]
)
def test_other_folders_that_cannot_be_are_refused(others):
    with pytest.raises(ValueError, match=r"folders? of tasks (is|are)"):
        policy.task_folders({**TASKS, "others": others})


@pytest.mark.parametrize("text", [None, "{", json.dumps({"tasks": {"parent": "/"}})])
def test_what_may_be_a_task_counts_as_one_while_that_is_unknown(tmp_path, text):
    path = tmp_path / "policy.json"
    if text:
        path.write_text(text)
    found = policy.File(str(path))
    assert spec.is_work_folder("/tmp/build/e55deab7", found.tasks)
    assert spec.is_work_folder("/e55deab7", found.tasks)
    assert not spec.is_work_folder("/tmp/build/get", found.tasks)
    assert not spec.is_work_folder("/", found.tasks)
    with refuses("policy-unreadable"):
        found.policy()


IN_USE = in_use("pid 4711 (python3)")


@pytest.fixture
def folders(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "absent"]
    for folder in folders[:2]:
        folder.mkdir()
    found = Policy(content(gpus=[*GPUS[1:], *MIG_GPUS], cordons=[str(path) for path in folders]))
    return folders, found


def test_a_record_is_of_all_devices_of_a_gpu(folders):
    folders, found = folders
    assert found.unavailable() == {}
    (folders[1] / f"{GPUS[0]['uuid']}.json").write_text(json.dumps(IN_USE.as_record()))
    assert found.unavailable() == dict.fromkeys(MIG_GPUS[0]["devices"], IN_USE)


def test_a_record_may_be_of_one_mig_device(folders):
    folders, found = folders
    (folders[0] / f"{MIG_GPUS[0]['devices'][1]}.json").write_text(json.dumps(IN_USE.as_record()))
    assert found.unavailable() == {MIG_GPUS[0]["devices"][1]: IN_USE}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"reason": 7}', '{"reason": ""}'])
def test_a_record_counts_whatever_is_in_it(folders, text):
    folders, found = folders
    (folders[0] / f"{GPUS[1]['uuid']}.json").write_text(text)
    (cause,) = found.unavailable().values()
    assert (cause.kind, cause.code) == ("quarantined", "damaged-record")


def test_a_record_that_is_removed_while_it_is_read_refuses_nobody(folders):
    folders, found = folders
    (folders[0] / f"{GPUS[1]['uuid']}.json").symlink_to("removed")  # listed, and not there
    assert found.unavailable() == {}


def test_other_files_are_not_records(folders):
    folders, found = folders
    for name in (GPUS[1]["uuid"], f"{GPUS[1]['uuid']}.json.gpu-ci", ".json", "GPU-0.json"):
        (folders[0] / name).write_text("{}")
    assert found.unavailable() == {}


def test_a_folder_of_records_that_cannot_be_read_is_no_empty_one(folders):
    folders, found = folders
    folders[0].rmdir()
    folders[0].write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        found.unavailable()


@pytest.mark.parametrize("by", ["self-test", "watch"])
def test_the_self_test_may_have_what_it_or_the_health_service_took_out(tmp_path, by):
    for name, entry in (
        (GPUS[0]["uuid"], {"reason": "Xid 79", "check": "xid", "by": by}),
        (GPUS[1]["uuid"], {"reason": "fan", "by": "operator"}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(entry))
    found = Policy(content(cordons=[str(tmp_path)]))
    by_hand = {GPUS[1]["uuid"]: Unavailable("cordoned", "operator", "fan")}
    by_fault = {GPUS[0]["uuid"]: Unavailable("quarantined", "xid", "Xid 79")}
    assert found.unavailable("gpu-selftest-disjoint-0-a1b2c3") == by_hand
    for container in ("", "0b7c1f8e-3f0a-4f0e-6d2b-1a2b3c4d5e6f", "my-gpu-selftest-1"):
        assert found.unavailable(container) == {**by_fault, **by_hand}
