# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The sh front: what it hands straight to the real runc, and what to the back end."""

import json
import os
import subprocess

import pytest

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
        ["delete", "--force", "ID"],
        ["--debug", "state", "create"],
        ["run", "--bundle", "BUNDLE", "ID"],
        ["delete", "a b", "*", "$(exit)", "`"],
    ],
    ids=" ".join,
)
def test_other_calls_are_handed_on(front, words):
    front.spec("task")
    words = [str(front.bundle) if word == "BUNDLE" else word for word in words]
    assert front.call(*words) == 42
    assert front.ran == ["runc", *GLOBAL, "--log", str(front.log), *words]
    assert front.environment == {**ENVIRONMENT, "PATH": f"{front.bin}:{ENVIRONMENT['PATH']}"}


@pytest.mark.parametrize("name", ["get", "put", "check", "get-privileged"])
def test_a_container_that_is_no_task_stays_untouched(front, name):
    front.spec(name)
    front.policy_path.write_text("broken")
    before = front.config.read_bytes(), front.config.stat()
    assert front.create() == 42
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
    assert json.loads((rig.store / "ID.json").read_text())["bundle"] == str(rig.bundle)


@pytest.mark.parametrize("name", ["a/b", "../ID", "..", ".", "-x"])
def test_unusual_ids_are_runcs_business(front, name):
    front.spec("task")
    front.store.mkdir(parents=True)
    (front.store.parent / "ID.json").write_text("{}")
    assert front.call("create", "--bundle", front.bundle, name) == 42
    assert front.call("exec", "--process", "/nowhere", name) == 42


def test_an_exec_without_a_grant_stays_untouched(front):
    assert front.exec(["NVIDIA_VISIBLE_DEVICES=all"]) == 42
    assert front.ran[0] == "runc"
    assert json.loads(front.process.read_text())["env"] == ["NVIDIA_VISIBLE_DEVICES=all"]


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
        f"gpu-ci-worker: {front.lib} is missing, so this task cannot be given its GPU; "
        "the charm installs it again at its next event"
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
    assert rig.refusal.startswith(f"gpu-ci-worker: {rig.folder}/real/runc is missing")


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
