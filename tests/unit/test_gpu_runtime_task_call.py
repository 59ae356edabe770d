# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The wrapper as containerd calls it: grants, processes, refusals, being killed."""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess

import pytest

import gpu_runtime as gpuci
from tests.unit.grants import MIG_GPUS, golden
from tests.unit.wrapper_rig import ENVIRONMENT, FOREIGN_CONFIG, GLOBAL, GPUS, Rig

IDS = [gpu["uuid"] for gpu in GPUS]
BORDER = "ATC_EXTERNAL_URL=u"
LIB = str(pathlib.Path(gpuci.__file__).parents[1])


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


@pytest.fixture
def lent(rig):
    """A container that was granted the first GPU."""
    rig.spec("task")
    assert rig.create() == 42
    return rig


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ("task", "task.granted", {}),
        ("task", "task.shared", {"allocation": "shared"}),
        ("task", "task.mig", {"gpus": [{**MIG_GPUS[0], "devices": MIG_GPUS[0]["devices"][1:]}]}),
        ("task-cuda-image", "task-cuda-image.granted", {}),
        ("task-hostile", "task-hostile.granted", {}),
        ("task-privileged", "task-privileged.granted", {"privileged_tasks": "gpu"}),
    ],
)
def test_a_task_goes_to_the_nvidia_runtime(rig, before, after, changes):
    rig.spec(before)
    rig.policy(**changes)
    rig.config.chmod(0o640)
    assert rig.create(**FOREIGN_CONFIG) == 42
    assert json.loads(rig.config.read_text()) == golden(after)
    assert rig.config.stat().st_mode & 0o7777 == 0o640
    expected = ["create", "--bundle", str(rig.bundle), "--pid-file", f"{rig.bundle}/init.pid"]
    assert rig.ran == [
        *("nvidia-container-runtime", *GLOBAL, "--log", str(rig.log)),
        *(*expected, "ID"),
    ]
    assert rig.environment == {**ENVIRONMENT, "XDG_CONFIG_HOME": "/etc/gpu-ci"}
    # What Python ignores would stay ignored in the container.
    status = (rig.folder / "ran.status").read_text()
    ignored = int(re.search(r"^SigIgn:\t([0-9a-f]+)$", status, re.MULTILINE).group(1), 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)
    assert sorted(path.name for path in rig.bundle.iterdir()) == ["config.json"]


def test_a_repeated_create_ends_in_the_same(rig):
    rig.spec("task-hostile")
    rig.create()
    first = rig.config.read_bytes()
    assert rig.create() == 42
    assert rig.config.read_bytes() == first
    assert rig.records == ["ID.json"]
    assert [*rig.holders] == ["ID"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_the_owner_of_the_spec_stays(rig):
    rig.spec("task")
    os.chown(rig.config, 1000, 7)
    rig.config.chmod(0o604)
    assert rig.create() == 42
    found = rig.config.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1000, 7, 0o604)


def test_the_records_of_a_grant(lent):
    record = json.loads((lent.store / "containers" / "ID.json").read_text())
    assert (record["gpus"], record["bundle"]) == (IDS[:1], str(lent.bundle))
    assert record["environment"]["NVIDIA_VISIBLE_DEVICES"] == IDS[0]
    holder = lent.holders["ID"]
    assert (holder["gpus"], holder["exclusive"], holder["execs"]) == (IDS[:1], True, False)
    status = (lent.folder / "ran.status").read_text()
    ((pid, _),) = holder["calls"]
    assert f"\nPid:\t{pid}\n" in status, "the pid stays through to the next runtime"


@pytest.mark.parametrize(
    ("before", "after"),
    [("task-privileged", "task-privileged.denied"), ("task-none", "task-none.denied")],
)
def test_a_task_without_a_gpu_goes_to_runc_and_is_told_so(rig, before, after):
    rig.spec(before)
    assert rig.create(**FOREIGN_CONFIG) == 42
    assert rig.ran[0] == "runc"
    path = f"{rig.bin}:{ENVIRONMENT['PATH']}"
    assert rig.environment == {**ENVIRONMENT, **FOREIGN_CONFIG, "PATH": path}
    assert json.loads(rig.config.read_text()) == golden(after)
    assert rig.exec(["NVIDIA_VISIBLE_DEVICES=all"]) == 42
    assert json.loads(rig.process.read_text())["env"] == [
        *("NVIDIA_VISIBLE_DEVICES=void", "GPU_COUNT=0", "GPU_CI_DEVICES=[]")
    ]


def test_where_no_gpu_is_for_tasks_one_stays_untouched(lent):
    lent.policy(gpus=[])
    lent.spec("task")
    before = lent.config.read_bytes()
    assert lent.create() == 42
    assert (lent.ran[0], lent.config.read_bytes()) == ("runc", before)
    assert lent.records == [], "an exec would tell of GPUs that are not there"


@pytest.mark.parametrize("name", ["task", "task-none", "task-privileged"])
def test_a_missing_policy_is_damage(rig, name):
    rig.spec(name)
    rig.policy_path.unlink()
    before = rig.config.read_bytes()
    assert rig.create() == 1
    assert rig.code == "policy-unreadable"
    assert f"{rig.policy_path} is unreadable ([Errno 2]" in rig.refusal
    assert (rig.config.read_bytes(), rig.decisions[-1]["kind"]) == (
        before,
        "privileged task" if name == "task-privileged" else "task",
    )


@pytest.mark.parametrize("name", ["get", "put", "check", "run", "get-privileged"])
def test_a_missing_policy_stops_no_other_step(rig, name):
    rig.spec(name)
    rig.policy_path.unlink()
    assert rig.create() == 42
    assert rig.ran[0] == "runc"


@pytest.mark.parametrize("other", ["get", "put", "run", "put/x", "get/"])
def test_what_is_both_a_task_and_another_step_is_refused(rig, other):
    rig.spec("task")
    config = json.loads(rig.config.read_text())
    config["mounts"].append({"destination": f"/tmp//build/{other}", "type": "bind"})
    rig.config.write_text(json.dumps(config))
    assert rig.create() == 1
    assert rig.code == "path-reserved"
    assert f"cache path /tmp/build/{other.rstrip('/')} is reserved by the CI system" in rig.refusal
    rig.log.unlink()
    rig.policy(gpus=[])
    assert rig.create() == 42


def test_a_task_where_there_are_no_gpus_needs_no_store(rig):
    rig.spec("task")
    rig.policy(gpus=[])
    (rig.folder / "run").rmdir()
    (rig.folder / "run").write_text("")
    assert rig.create() == 42
    assert rig.ran[0] == "runc"


def test_an_exec_gets_what_its_container_got(rig):
    rig.spec("task")
    rig.policy(gpus_per_task=2)
    rig.create()
    rig.hold(ID=IDS)
    rig.policy_path.unlink()  # what a container has is not taken away
    image = ["NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=9"]
    author = ["CUDA_VISIBLE_DEVICES=1", "GPU_COUNT=9", "LD_PRELOAD=x"]
    rig.process.write_text("")
    rig.process.chmod(0o640)
    assert rig.exec(["PATH=/bin", *image, BORDER, *author, "USER=root"]) == 42
    assert rig.ran[0] == "runc"
    assert rig.process.stat().st_mode & 0o7777 == 0o640
    changed = json.loads(rig.process.read_text())
    kept = ["PATH=/bin", BORDER, "CUDA_VISIBLE_DEVICES=1", "LD_PRELOAD=x", "USER=root"]
    assert changed["env"][:5] == kept
    assert changed["env"][5:7] == [f"NVIDIA_VISIBLE_DEVICES={','.join(IDS)}", "GPU_COUNT=2"]
    assert json.loads(changed["env"][7].removeprefix("GPU_CI_DEVICES=")) == [
        {key: gpu[key] for key in ("index", "uuid", "model")} for gpu in GPUS
    ]
    assert len(changed["env"]) == 8
    assert {**changed, "env": 0} == {"args": ["sh"], "env": 0, "cwd": "/"}


@pytest.mark.parametrize("value", ["1", IDS[1], "0,1"])
def test_an_exec_that_names_more_is_refused(lent, value):
    assert lent.exec([BORDER, f"CUDA_VISIBLE_DEVICES={value}"]) == 1
    assert lent.code == "gpu-index-invalid"
    assert lent.decisions[-1]["granted"] == []
    assert json.loads(lent.process.read_text())["env"][-1] == f"CUDA_VISIBLE_DEVICES={value}"


def test_an_exec_whose_writers_cannot_be_told_apart_is_refused(lent):
    assert lent.exec([BORDER, BORDER]) == 1
    assert lent.code == "reserved-variable"


def test_a_hijack_takes_its_gpu_again_if_it_is_free(lent):
    lent.hold(OTHER=IDS[1:])
    lent.process.write_text('{"args":["sh"],"env":[]}')
    uuid = "9f4cbf0e-1111-4222-8333-000000000001"
    words = ["exec", "--process", lent.process, "--console-socket", "/s", "--detach"]
    assert lent.call(*words, "--pid-file", lent.bundle / f"{uuid}.pid", "ID") == 42
    assert f"NVIDIA_VISIBLE_DEVICES={IDS[0]}" in lent.process.read_text()
    assert lent.holders["ID"]["gpus"] == IDS[:1]
    assert lent.holders["ID"]["execs"]
    assert lent.decisions[-1]["kind"] == f"exec {uuid}"
    assert lent.decisions[-1]["granted"] == IDS[:1]


def test_a_hijack_is_told_who_has_its_gpu_now(lent):
    lent.hold(OTHER=IDS)
    assert lent.exec(["A=b"]) == 1
    assert lent.code == "gpu-given-back"
    assert (
        "this container gave its GPU back when its step ended, and container OTHER has it now "
        "(see fly containers). Rerun the task and hijack the new container, or try again later"
    ) in lent.refusal
    assert json.loads(lent.process.read_text())["env"] == ["A=b"]
    assert lent.decisions[-1]["reason"] in lent.refusal


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("cordon", "gpu-withdrawn"),
        ("taken out", "gpu-withdrawn"),
        ("no policy", "policy-unreadable"),
        ("no GPU", "gpus-disabled"),
    ],
)
def test_a_hijack_gets_no_gpu_that_is_out_of_use(lent, change, code):
    lent.hold()
    (lent.folder / "cordons").mkdir()
    if change == "cordon":
        (lent.folder / "cordons" / f"{IDS[0]}.json").write_text('{"reason":"dirty"}')
    elif change == "taken out":
        lent.policy(gpus=GPUS[1:])
    elif change == "no GPU":
        lent.policy(gpus=[])
    else:
        lent.policy_path.unlink()
    assert lent.exec(["A=b"]) == 1
    assert lent.code == code


def test_an_exec_without_its_process_file_is_runcs_business(lent):
    assert lent.call("exec", "--process", "/nowhere", "--detach", "ID") == 42
    assert lent.ran[-3:] == ["/nowhere", "--detach", "ID"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"args":[]', "null"])
def test_a_process_that_cannot_be_told_is_refused(lent, text):
    lent.process.write_text(text)
    assert lent.call("exec", "--process", lent.process, "--detach", "ID") == 1
    assert lent.code == "worker-fault"
    assert f"could not give this process its GPUs: {lent.process}" in lent.refusal
    assert lent.process.read_text() == text


def test_an_exec_by_hand_has_no_process_file(lent):
    assert lent.call("exec", "ID", "echo", "ID") == 42
    assert lent.ran[-3:] == ["ID", "echo", "ID"]
    assert lent.holders["ID"]["execs"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 1}, "version is 1, not 3"),
        ({"gpus": [{**GPUS[0], "devices": []}]}, "if MIG is on, create MIG devices"),
        ({"gpus": [{**GPUS[0], "devices": ["all"]}]}, "'all' is not an id of a GPU"),
        ({"nvidia_runtime": "runc"}, "'runc' is not an absolute path"),
        ({"nvidia_runtime": "/nowhere/nvidia-container-runtime"}, "cannot be executed"),
    ],
)
def test_a_task_is_refused_when_its_gpu_cannot_be_given(rig, changes, words):
    rig.spec("task")
    rig.policy(**changes)
    before = rig.config.read_bytes()
    assert rig.create() == 1
    assert words in rig.refusal
    assert rig.config.read_bytes() == before
    assert not rig.store.exists()


def test_a_policy_that_is_no_json_is_named(rig):
    rig.spec("task")
    rig.policy_path.write_text("{")
    assert rig.create() == 1
    assert rig.code == "policy-unreadable"
    assert str(rig.policy_path) in rig.refusal


def test_a_spec_that_cannot_be_read_is_no_silent_cpu_run(rig):
    rig.config.write_text('{"mounts":[{"destination":"/tmp/build/e55deab7"}')
    assert rig.create() == 1
    assert rig.code == "worker-fault"
    assert "cannot read " in rig.refusal


def test_a_damaged_record_is_named_at_exec(lent):
    (lent.store / "containers" / "ID.json").write_text("{")
    assert lent.exec(["A=b"]) == 1
    assert str(lent.store) in lent.refusal


def test_damaged_leases_are_named_and_made_anew_when_they_are_gone(lent):
    (lent.store / "leases.json").write_text("{")
    assert lent.exec(["A=b"]) == 1
    assert lent.code == "lease-table-damaged"
    assert f"{lent.store}/leases.json is damaged" in lent.refusal
    lent.log.unlink()
    lent.spec("task")
    assert lent.create() == 1
    assert lent.code == "lease-table-damaged"
    (lent.store / "leases.json").unlink()
    assert lent.exec(["A=b"]) == 42
    assert lent.holders["ID"]["gpus"] == IDS[:1]


@pytest.mark.parametrize("name", ["task-none", "task-privileged"])
def test_damaged_leases_stop_no_task_without_a_gpu(rig, name):
    rig.hold()
    (rig.store / "leases.json").write_text("{")
    rig.spec(name)
    assert rig.create() == 42
    assert json.loads(rig.config.read_text()) == golden(f"{name}.denied")
    assert rig.exec(["NVIDIA_VISIBLE_DEVICES=all"]) == 42
    assert "NVIDIA_VISIBLE_DEVICES=void" in json.loads(rig.process.read_text())["env"]


def test_an_id_used_again_without_a_gpu_gives_the_first_ones_back(lent):
    lent.spec("task-none")
    assert lent.create() == 42
    assert lent.holders == {}
    assert lent.exec([]) == 42
    assert "GPU_COUNT=0" in json.loads(lent.process.read_text())["env"]


def test_a_store_that_cannot_be_written_is_named(rig):
    rig.spec("task")
    (rig.folder / "run").rmdir()
    (rig.folder / "run").write_text("")
    before = rig.config.read_bytes()
    assert rig.create() == 1
    assert rig.code == "worker-fault"
    assert f"{rig.folder}/run" in rig.refusal
    assert rig.config.read_bytes() == before


def test_a_crash_of_the_back_end_is_reported_and_silent(rig):
    rig.spec("task")
    with (rig.lib / "policy.py").open("a") as file:
        file.write("\n\nFile.policy = lambda self: 1 // 0\n")
    assert rig.create() == 1
    assert rig.code == "internal-error"
    assert "ZeroDivisionError" in rig.refusal


def refused_after_its_grant(rig, fault):
    """Have a create refused when the task has its GPU by then."""
    if fault == "variable":
        config = json.loads(rig.config.read_text())
        config["process"]["env"].append(f"CUDA_VISIBLE_DEVICES={IDS[1]}")
        rig.config.write_text(json.dumps(config))
    else:
        rig.bundle.joinpath("config.json.gpu-ci").mkdir()
    assert rig.create() == 1
    return rig.refusal


@pytest.mark.parametrize("fault", ["variable", "file"])
def test_a_refusal_after_the_grant_leaves_no_lease(rig, fault):
    rig.spec("task")
    assert refused_after_its_grant(rig, fault)
    assert rig.holders == {}
    assert rig.records == []


def test_a_refusal_takes_no_lease_away_that_was_there_before(rig):
    rig.spec("task")
    assert rig.create() == 42
    rig.hold(ID=[IDS[0]])
    assert refused_after_its_grant(rig, "file")
    assert [*rig.holders] == ["ID"]
    assert rig.records == ["ID.json"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Go puts both lists together, or takes the last; each hides the task's folder.
        ('"mounts":[', '"mounts":[],"mounts":['),
        ('"mounts":[', '"Mounts":[],"mounts":['),
        ('"linux":{', '"linuX":{},"linux":{'),
        ('"destination":', '"Destination":"/x","destination":'),
        ('"env":[', '"ENV":["GPU_COUNT=2"],"env":['),
    ],
)
def test_a_spec_that_go_reads_otherwise_is_refused(rig, before, after):
    rig.spec("task")
    text = rig.config.read_text()
    assert before in text
    rig.config.write_text(text.replace(before, after))
    assert rig.create() == 1
    assert rig.code == "worker-fault"
    assert "cannot read " in rig.refusal


@pytest.mark.parametrize("text", ['{"args":["sh"],"env":[],"Env":["A=b"]}', '{"env":[],"env":[]}'])
def test_a_process_that_go_reads_otherwise_is_refused(lent, text):
    lent.process.write_text(text)
    assert lent.call("exec", "--process", lent.process, "--detach", "ID") == 1
    assert lent.code == "worker-fault"


def test_what_each_create_imports_takes_no_longer_than_python_itself():
    """Each of these would add a tenth or more to a create by runc."""
    code = f"import sys; sys.path.insert(0, {LIB!r}); from gpu_runtime import task_call"
    code += "; print(*sys.modules)"
    argv = ["/usr/bin/python3", "-I", "-S", "-B", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    loaded = {*done.stdout.split()}
    assert "gpu_runtime.lease_manager" in loaded
    assert not loaded & {
        "argparse",
        "collections",
        "ctypes",
        "dataclasses",
        "enum",
        "re",
        "typing",
    }
