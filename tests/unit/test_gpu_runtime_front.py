# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The sh front: what it hands straight to the real runc, and what to the back end."""

import json
import os
import subprocess

import pytest

from gpu_agent.runtime.settings import TaskFolders
from tests.unit.wrapper_rig import ENVIRONMENT, GLOBAL, Rig


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


@pytest.fixture
def front(tmp_path):
    """A front without a back end: whatever works here was handed straight on."""
    return Rig(tmp_path, back_end=False)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--version"],
        ["features"],
        ["start", "ID"],
        ["ps", "--format", "json", "ID"],
        ["kill", "--all", "ID", "9"],
        ["checkpoint", "--image-path", "/x", "ID"],
        ["delete", "--force", "ID"],
        ["delete", "a b", "*", "$(exit)", "`"],
    ],
    ids=" ".join,
)
def test_other_calls_are_handed_on(front, words):
    front.spec("task")
    assert front.call(*words, cwd=front.bundle) == 42
    assert front.ran == ["runc", *GLOBAL, "--log", str(front.log), *words]
    assert front.environment == {**ENVIRONMENT, "PATH": f"{front.bin}:{ENVIRONMENT['PATH']}"}


@pytest.mark.parametrize("command", ["create", "run", "restore"])
@pytest.mark.parametrize("name", ["get", "put", "run", "check", "get-privileged"])
def test_a_container_that_is_no_task_stays_untouched(front, name, command):
    front.spec(name)
    front.policy_path.write_text("broken")
    before = front.config.read_bytes(), front.config.stat()
    assert front.call(command, "--bundle", front.bundle, "ID") == 42
    assert front.ran[0] == "runc"
    assert (front.config.read_bytes(), front.config.stat().st_mtime_ns) == (
        before[0],
        before[1].st_mtime_ns,
    )
    assert sorted(path.name for path in front.bundle.iterdir()) == ["config.json"]


@pytest.mark.parametrize(
    "flags",
    [["--bundle", "B"], ["--bundle=B"], ["-b", "B"], ["-bundle", "B"], ["-bundle=B"], ["-b=B"]],
    ids=" ".join,
)
def test_forms_of_the_bundle_flag(rig, flags):
    rig.spec("task")
    flags = [flag.replace("B", str(rig.bundle)) for flag in flags]
    assert rig.call("create", *flags, "ID") == 42
    assert rig.ran[0] == "nvidia-container-runtime"


def test_the_bundle_is_the_current_folder_without_a_flag(rig):
    rig.spec("task")
    assert rig.call("create", "ID", cwd=rig.bundle) == 42
    assert rig.ran[0] == "nvidia-container-runtime"
    record = json.loads((rig.store / "containers" / "ID.json").read_text())
    assert (record["bundle"], rig.holders["ID"]["bundle"]) == (str(rig.bundle),) * 2


@pytest.mark.parametrize("name", ["a/b", "../ID", "..", ".", "-x"])
def test_what_runc_takes_for_no_id_is_its_business(rig, name):
    rig.spec("task")
    (rig.store / "containers").mkdir(parents=True)
    for path in (rig.store / "ID.json", rig.store / "containers" / "-x.json"):
        path.write_text("{}")
    assert rig.call("create", "--bundle", rig.bundle, name) == 42
    assert rig.ran[0] == "runc"
    assert rig.call("exec", "--process", "/nowhere", name) == 42


@pytest.mark.parametrize(
    "words",
    [
        *(["create", "ID", "--bundle", "B"], ["create", "ID", "--bundle=B"], ["create", "ID"]),
        *(["create", "ID", "--no-pivot"], ["--", "create", "-b", "B", "ID"]),
        *(
            ["create", "--bundle", "/nowhere", "--bundle", "B", "ID"],
            ["create", "-b=B", "--", "-"],
        ),
        *(["create", "--no-pivot", "--bundle", "B", "ID"], ["create", "--bundle", "", "ID"]),
        *(["create", "--bundle", "B", "--", "-x"], ["create", "--pid-file", "--bundle", "ID"]),
        *(
            ["--log=L", "create", "--bundle", "B", "create"],
            ["create", "-b", "B", "x", "-no-pivot"],
        ),
    ],
    ids=" ".join,
)
def test_a_task_gets_its_gpu_in_whatever_words_runc_takes(rig, words):
    rig.spec("task")
    words = [word.replace("B", str(rig.bundle)) for word in words]
    assert rig.call(*words, cwd=rig.bundle) == 42
    assert rig.ran[0] == "nvidia-container-runtime"


def test_an_exec_after_two_dashes_is_one(rig):
    rig.spec("task")
    assert rig.create() == 42
    rig.process.write_text('{"args":["sh"],"env":[]}')
    assert rig.call("--", "exec", "--process", rig.process, "--", "ID") == 42
    assert "GPU_COUNT=1" in rig.process.read_text()


@pytest.mark.parametrize(
    "destination",
    [
        *("/tmp/build/e55deab7/", "/tmp/build//e55deab7", "/tmp/build/./e55deab7/."),
        *("//tmp/build/e55deab7", "/tmp/x/../build/e55deab7", '/tmp/a"/../build/e55deab7'),
        *("tmp/build/e55deab7", "/tmp/build/x\\/../e55deab7", "/tmp/build/get/../e55deab7"),
    ],
)
def test_a_work_folder_in_whatever_words_is_a_tasks(rig, destination):
    rig.spec("task")
    config = json.loads(rig.config.read_text())
    for mount in config["mounts"]:
        if mount["destination"] == "/tmp/build/e55deab7":
            mount["destination"] = destination
    rig.config.write_text(json.dumps(config, separators=",:"))
    assert rig.create() == 42
    assert rig.ran[0] == "nvidia-container-runtime"


def test_an_exec_without_a_record_stays_untouched(front):
    front.store.mkdir(parents=True)
    (front.store / "leases.json").write_text("{")
    assert front.exec(["NVIDIA_VISIBLE_DEVICES=all"]) == 42
    assert front.ran[0] == "runc"
    assert json.loads(front.process.read_text())["env"] == ["NVIDIA_VISIBLE_DEVICES=all"]


@pytest.mark.parametrize("command", ["run", "restore"])
@pytest.mark.parametrize(
    "flags",
    [["--bundle", "B"], ["--bundle=B"], ["-b", "B"], ["-bundle=B"], ["--pid-file", "/p", "-b=B"]],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["task", "task-cuda-image"])
def test_a_start_in_one_go_brings_no_gpu_and_is_refused(rig, name, flags, command):
    rig.spec(name)
    before = rig.config.read_bytes()
    assert rig.call(command, *(flag.replace("B", str(rig.bundle)) for flag in flags), "ID") == 1
    assert rig.code == "start-unsupported"
    assert rig.config.read_bytes() == before
    assert not rig.store.exists(), "no lease is taken for what does not start"
    (line,) = rig.decisions
    assert (line["container"], line["kind"], line["granted"]) == ("ID", "task", [])
    assert line["code"] == "start-unsupported"


@pytest.mark.parametrize("command", ["run", "restore"])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("task-none", {}),
        ("task-privileged", {}),
        ("task", {"gpus": []}),
        ("task", {"gpus_per_task": 0}),
    ],
)
def test_a_start_in_one_go_without_a_gpu_is_handed_on(rig, name, changes, command):
    rig.spec(name)
    rig.policy(**changes)
    before = rig.config.read_bytes()
    assert rig.call(command, "ID", cwd=rig.bundle) == 42
    assert (rig.ran[0], rig.config.read_bytes()) == ("runc", before)
    assert not rig.store.exists()


def test_a_start_in_one_go_without_a_policy_is_refused(rig):
    rig.spec("task")
    rig.policy_path.unlink()
    assert rig.call("run", "--bundle", rig.bundle, "ID") == 1
    assert rig.code == "policy-unreadable"


def test_only_a_text_that_looks_like_a_task(rig):
    rig.spec("get")
    config = json.loads(rig.config.read_text())
    config["process"]["args"].append("/tmp/build/e55deab7")
    rig.config.write_text(json.dumps(config))
    rig.policy_path.write_text("{")
    before = rig.config.read_bytes()
    assert rig.create() == 42
    assert (rig.ran[0], rig.config.read_bytes()) == ("runc", before)


def test_a_missing_back_end_is_named(front):
    front.spec("task")
    assert front.create() == 1
    assert front.refusal == (
        f"gpu-ci-worker: runtime-damaged: {front.lib} is missing on this worker. The worker "
        "restores it within 5 minutes; rerun the step then"
    )


@pytest.mark.parametrize(
    ("name", "next_one"), [("task", "nvidia-container-runtime"), ("get", "runc")]
)
def test_a_grep_that_fails_decides_nothing(rig, name, next_one):
    front = rig.bin / "runc"
    assert "/usr/bin/grep" in front.read_text()
    front.write_text(front.read_text().replace("/usr/bin/grep", "/nowhere/grep"))
    rig.spec(name)
    assert rig.create() == 42
    assert rig.ran[0] == next_one


def test_a_missing_runc_is_named(rig):
    (rig.folder / "real" / "runc").unlink()
    rig.spec("get")
    assert rig.create() == 1
    assert rig.refusal.startswith(f"gpu-ci-worker: runtime-missing: {rig.folder}/real/")


def test_nothing_needs_stdout_or_stderr(rig):
    rig.spec("task")
    null = os.open(os.devnull, os.O_RDONLY)
    argv = [rig.bin / "runc", "--log", rig.log, "create", "--bundle", rig.bundle, "ID"]
    try:
        done = subprocess.run(argv, stdin=null, stdout=null, stderr=null, check=False, timeout=60)
        rig.policy(version=0)
        refused = subprocess.run(
            argv, stdin=null, stdout=null, stderr=null, check=False, timeout=60
        )
    finally:
        os.close(null)
    assert (done.returncode, refused.returncode) == (42, 1)


OWN = TaskFolders()
DEEP = TaskFolders("/srv/ci.d/tasks/", ("get",))


def working_in(rig, destination):
    """Have the rig's container work in that folder."""
    rig.spec("task")
    config = json.loads(rig.config.read_text())
    for mount in config["mounts"]:
        if mount["destination"] == "/tmp/build/e55deab7":
            mount["destination"] = destination
    rig.config.write_text(json.dumps(config, separators=",:"))


@pytest.mark.parametrize(
    ("tasks", "destination"),
    [
        *((OWN, f"/run/gpu-ci-task/{name}") for name in ("e55deab7", "e55deab7/", "./e55deab7")),
        *((OWN, f"/run/{odd}/gpu-ci-task/x/../0123abcd") for odd in (".", "x/..", '"/..', "/")),
        *((DEEP, f"/srv/{odd}/ci.d//tasks/./e55deab7/.") for odd in (".", "x/..", "\\/..")),
        (TaskFolders("/work/"), "/work/e55deab7"),
    ],
)
def test_a_task_is_known_by_the_folder_of_its_ci_system(tmp_path, tasks, destination):
    rig = Rig(tmp_path, tasks=tasks)
    working_in(rig, destination)
    assert rig.create() == 42
    assert rig.ran[0] == "nvidia-container-runtime"


@pytest.mark.parametrize("tasks", [OWN, DEEP])
@pytest.mark.parametrize("back_end", [True, False])
def test_a_task_in_the_folder_of_another_ci_system_is_none(tmp_path, tasks, back_end):
    """The front hands it on, without the back end too."""
    rig = Rig(tmp_path, tasks=tasks, back_end=back_end)
    working_in(rig, "/tmp/build/e55deab7")
    before = rig.config.read_bytes()
    assert rig.create() == 42
    assert (rig.ran[0], rig.config.read_bytes()) == ("runc", before)


def test_a_dot_in_the_folder_is_a_dot(tmp_path):
    rig = Rig(tmp_path, tasks=DEEP, back_end=False)
    working_in(rig, "/srv/cixd/tasks/e55deab7")
    assert rig.create() == 42
    working_in(rig, "/srv/ci.d/tasks/e55deab7")
    assert rig.create() == 1


def test_a_policy_of_the_revision_before_still_grants(rig):
    rig.spec("task")
    found = json.loads(rig.policy_path.read_text())
    del found["tasks"]
    rig.policy_path.write_text(json.dumps(found))
    assert rig.create() == 42
    assert rig.ran[0] == "nvidia-container-runtime"


def test_a_task_under_a_policy_with_a_hostile_folder_is_refused(rig):
    rig.spec("task")
    rig.policy(tasks={"parent": "/tmp/../", "others": []})
    assert rig.create() == 1
    assert rig.code == "policy-unreadable"
    rig.spec("get")
    assert rig.create() == 42
