# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Classification and variables: golden specs of Concourse's shape, and properties of any spec."""

import json
import pathlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from gpuci import environment, spec
from gpuci.grant import Grant
from gpuci.policy import Device
from gpuci.refuse import Refused

GOLDEN = pathlib.Path(__file__).parent / "golden"
OURS = Grant(
    [
        Device(0, "GPU-00000000-1111-2222-3333-444444444444", "NVIDIA A100-SXM4-80GB"),
        Device(1, "GPU-00000001-1111-2222-3333-444444444444", "NVIDIA A100-SXM4-80GB"),
    ]
).environment
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
NAMES = some.sampled_from(
    [
        *OURS,
        *environment.NARROWING,
        *environment.DOORS,
        *("ATC_EXTERNAL_URL", "DOCKER_RESOURCE_GPU", "LD_PRELOAD", "PATH", "MINE", ""),
    ]
)
ENTRIES = some.lists(some.builds("{}{}".format, NAMES, some.sampled_from(["=", "=1", "=a=b", ""])))


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "task", "privileged"),
    [
        ("task", True, False),
        ("task-cuda-image", True, False),
        ("task-hostile", True, False),
        ("task-privileged", True, True),
        ("get", False, False),
        ("get-privileged", False, True),
        ("put", False, False),
        ("check", False, False),
    ],
)
def test_what_a_container_is(name, task, privileged):
    assert (spec.is_task(golden(name)), spec.is_privileged(golden(name))) == (task, privileged)


@pytest.mark.parametrize(
    "destination",
    [
        *("/tmp/build/get", "/tmp/build/put", "/tmp/build/run", "/tmp/build/e55deab"),
        *("/tmp/build/e55deab70", "/tmp/build/E55DEAB7", "/tmp/build/e55deab7/input"),
        *("/tmp/build/e55deab7\n", "/x/tmp/build/e55deab7", "/tmp/build/e55dea g", "", None, 7),
    ],
)
def test_what_no_work_folder_of_a_task_is(destination):
    config = {**golden("task"), "mounts": [{"destination": destination}]}
    assert not spec.is_task(config)


def test_variables_and_annotations_make_no_task():
    config = golden("get")
    config["process"]["env"].append("WORK=/tmp/build/e55deab7")
    config["annotations"]["/tmp/build/e55deab7"] = "/tmp/build/e55deab7"
    assert not spec.is_task(config)


@pytest.mark.parametrize("name", ["task", "task-cuda-image", "task-hostile"])
def test_a_granted_create(name):
    assert spec.at_create(golden(name), OURS) == golden(f"{name}.granted")


def test_a_privileged_task_is_denied():
    denied = spec.at_create(golden("task-privileged"), Grant([]).environment)
    assert denied == golden("task-privileged.denied")


def test_at_exec_the_steps_own_loader_variables_stay():
    process = {"args": ["sh"], "env": ["LD_PRELOAD=mine.so", "NVIDIA_VISIBLE_DEVICES=all"]}
    changed = spec.at_exec(process, {"NVIDIA_VISIBLE_DEVICES": "GPU-1"})
    assert changed == {
        "args": ["sh"],
        "env": ["LD_PRELOAD=mine.so", "NVIDIA_VISIBLE_DEVICES=GPU-1"],
    }


def test_who_wrote_it_decides_about_narrowing():
    both = ["CUDA_VISIBLE_DEVICES=-1", "ATC_EXTERNAL_URL=u", "CUDA_VISIBLE_DEVICES=0"]
    assert environment.rewrite(both, {}) == both[1:]
    assert environment.rewrite(["CUDA_VISIBLE_DEVICES=0"], {}) == []


def test_two_borders_are_refused():
    with pytest.raises(Refused, match="ATC_EXTERNAL_URL is set more than once"):
        environment.rewrite(["ATC_EXTERNAL_URL=a", "ATC_EXTERNAL_URL=b"], OURS)


@PATIENT
@given(ENTRIES.filter(lambda entries: sum(e.startswith("ATC_") and "=" in e for e in entries) < 2))
def test_any_variables(entries):
    after = environment.rewrite(entries, OURS)
    names = [entry.partition("=")[0] for entry in after]
    for name, value in OURS.items():
        assert [entry for entry in after if entry.startswith(f"{name}=")] == [f"{name}={value}"]
    assert not environment.DOORS.intersection(names)
    assert all("=" in entry and not entry.startswith("=") for entry in after)
    kept = after[: -len(OURS)]
    remaining = iter(entries)
    assert all(entry in remaining for entry in kept), "order and text of what stays are kept"
    assert [e for e in kept if e.startswith("MINE=")] == [
        e for e in entries if e.startswith("MINE=")
    ]
    assert environment.rewrite(after, OURS) == after


@PATIENT
@given(some.dictionaries(some.sampled_from(["mounts", "process", "linux", "annotations"]), JSON))
def test_specs_of_any_shape_can_be_classified(config):
    assert not spec.is_task(config)
    assert spec.is_privileged(config) in {True, False}


@PATIENT
@given(
    some.sampled_from(["process", "mounts", "annotations", "linux", "root", "x"]),
    JSON,
    some.sampled_from(["task", "task-hostile"]),
)
def test_no_field_is_added_or_lost(field, value, name):
    config = {**golden(name), field: value}
    try:
        after = spec.at_create(config, OURS)
    except ValueError:
        assert field == "process"
        return
    except Refused:
        assert field == "process"
        return
    assert after.keys() == config.keys()
    assert json.loads(json.dumps(after)) == after
    unchanged = after.keys() - {"process", "mounts", "annotations"}
    assert {key: after[key] for key in unchanged} == {key: config[key] for key in unchanged}
