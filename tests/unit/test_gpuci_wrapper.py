# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The wrapper as containerd calls it: grants, processes, refusals, being killed."""

import json
import re
import shutil
import signal
import subprocess

import pytest

from tests.unit.wrapper_rig import ENVIRONMENT, FOREIGN_CONFIG, GLOBAL, GOLDEN, GPUS, ROOT, Rig


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


@pytest.mark.parametrize("name", ["task", "task-cuda-image", "task-hostile"])
def test_a_task_goes_to_the_nvidia_runtime(rig, name):
    rig.spec(name)
    rig.config.chmod(0o640)
    assert rig.create(**FOREIGN_CONFIG) == 42
    assert json.loads(rig.config.read_text()) == json.loads(
        (GOLDEN / f"{name}.granted.json").read_text()
    )
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
    assert [path.name for path in rig.store.iterdir()] == ["ID.json"]


def test_the_record_of_a_grant(rig):
    rig.spec("task")
    rig.create()
    record = json.loads((rig.store / "ID.json").read_text())
    uuids = [gpu["uuid"] for gpu in GPUS]
    assert record["gpus"] == uuids
    assert record["environment"]["NVIDIA_VISIBLE_DEVICES"] == ",".join(uuids)
    status = (rig.folder / "ran.status").read_text()
    assert f"\nPid:\t{record['pid']}\n" in status, "the pid stays through to the next runtime"
    assert (rig.store.stat().st_mode & 0o777, (rig.store / "ID.json").stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )


def test_a_privileged_task_goes_to_runc_and_is_told_so(rig):
    rig.spec("task-privileged")
    assert rig.create() == 42
    assert rig.ran[0] == "runc"
    assert json.loads(rig.config.read_text()) == json.loads(
        (GOLDEN / "task-privileged.denied.json").read_text()
    )
    assert rig.exec(["NVIDIA_VISIBLE_DEVICES=all"]) == 42
    assert json.loads(rig.process.read_text())["env"] == [
        *("NVIDIA_VISIBLE_DEVICES=void", "GPU_COUNT=0", "GPU_CI_DEVICES=[]")
    ]


@pytest.mark.parametrize("off", ["absent", "no GPU"])
def test_without_a_policy_a_task_stays_untouched(rig, off):
    rig.spec("task")
    rig.create()
    rig.policy(gpus=[])
    if off == "absent":
        rig.policy_path.unlink()
    rig.spec("task")
    before = rig.config.read_bytes()
    assert rig.create() == 42
    assert (rig.ran[0], rig.config.read_bytes()) == ("runc", before)
    assert not (rig.store / "ID.json").exists(), "an exec would tell of GPUs that are not there"


def test_an_exec_gets_what_its_container_got(rig):
    rig.spec("task")
    rig.create()
    rig.policy_path.unlink()
    image = ["NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=9"]
    author = ["CUDA_VISIBLE_DEVICES=1", "GPU_COUNT=9", "LD_PRELOAD=x"]
    border = "ATC_EXTERNAL_URL=u"
    assert rig.exec(["PATH=/bin", *image, border, *author, "USER=root"]) == 42
    assert rig.ran[0] == "runc"
    changed = json.loads(rig.process.read_text())
    kept = ["PATH=/bin", border, "CUDA_VISIBLE_DEVICES=1", "LD_PRELOAD=x", "USER=root"]
    assert changed["env"][:5] == kept
    assert changed["env"][5:7] == [
        "NVIDIA_VISIBLE_DEVICES=" + ",".join(gpu["uuid"] for gpu in GPUS),
        "GPU_COUNT=2",
    ]
    assert json.loads(changed["env"][7].removeprefix("GPU_CI_DEVICES=")) == [
        {key: gpu[key] for key in ("index", "uuid", "model")} for gpu in GPUS
    ]
    assert {**changed, "env": 0} == {"args": ["sh"], "env": 0, "cwd": "/"}


def test_an_exec_by_hand_has_no_process_file(rig):
    rig.spec("task")
    rig.create()
    assert rig.call("exec", "ID", "echo", "ID") == 42
    assert rig.ran[-3:] == ["ID", "echo", "ID"]


def test_records_of_containers_that_are_gone_are_swept(rig):
    rig.spec("task")
    rig.create()
    old = json.loads((rig.store / "ID.json").read_text())
    (rig.store / "gone.json").write_text(json.dumps({**old, "bundle": "/nowhere"}))
    (rig.store / "unreadable.json").write_text("{")
    (rig.store / "half.json.gpu-ci").write_text("{")
    rig.create()
    assert {path.name for path in rig.store.iterdir()} == {"ID.json", "unreadable.json"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "version is 2, not 1"),
        ({"allocation": "lottery"}, "allocation is 'lottery'"),
        ({"gpus": None}, "no device to hand out"),
        ({"gpus": [{**GPUS[0], "devices": []}]}, "where MIG is on, create MIG devices"),
        ({"gpus": [{**GPUS[0], "devices": ["all"]}]}, "'all' is no UUID"),
        ({"gpus": [{**GPUS[0], "devices": ["GPU-0,all"]}]}, "'GPU-0,all' is no UUID"),
        ({"gpus": [{**GPUS[0], "vendor": "acme"}]}, "no GPU that this wrapper can hand out"),
        ({"nvidia_runtime": "runc"}, "'runc' is no absolute path"),
        ({"nvidia_runtime": "/nowhere/nvidia-container-runtime"}, "cannot be run"),
    ],
)
def test_a_task_is_refused_when_its_gpu_cannot_be_given(rig, changes, words):
    rig.spec("task")
    rig.policy(**changes)
    before = rig.config.read_bytes()
    assert rig.create() == 1
    assert words in rig.refusal
    assert rig.config.read_bytes() == before


def test_a_policy_that_is_no_json_is_named(rig):
    rig.spec("task")
    rig.policy_path.write_text("{")
    assert rig.create() == 1
    assert str(rig.policy_path) in rig.refusal
    assert "the charm writes that file again" in rig.refusal


def test_a_spec_that_cannot_be_read_is_no_silent_cpu_run(rig):
    rig.config.write_text('{"mounts":[{"destination":"/tmp/build/e55deab7"}')
    assert rig.create() == 1
    assert "config.json cannot be read" in rig.refusal


def test_a_damaged_record_is_named_at_exec(rig):
    rig.spec("task")
    rig.create()
    (rig.store / "ID.json").write_text("{")
    assert rig.exec(["A=b"]) == 1
    assert str(rig.store) in rig.refusal


def test_a_crash_of_the_back_end_is_reported_and_silent(rig):
    rig.spec("task")
    with (rig.lib / "policy.py").open("a") as file:
        file.write("\n\ndef read(path):\n    return 1 // 0\n")
    assert rig.create() == 1
    assert "internal error" in rig.refusal
    assert "ZeroDivisionError" in rig.refusal


# Kills its own process in front of the N-th call of these functions of `os`.
KILLER = """
import fcntl, os, signal, sys
sys.path.insert(0, sys.argv[1])
left = int(sys.argv[2])
def deadly(function):
    def call(*args, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **named)
    return call
from gpuci import wrapper
for name in ("mkdir", "open", "write", "fchown", "fchmod", "close", "rename", "unlink", "execve"):
    setattr(os, name, deadly(getattr(os, name)))
fcntl.flock = deadly(fcntl.flock)
wrapper.main(sys.argv[3:])
"""


def test_killed_at_any_step_it_leaves_a_valid_bundle(rig):
    expected = json.loads((GOLDEN / "task.granted.json").read_text())
    steps = 0
    while True:
        steps += 1
        rig.spec("task")
        shutil.rmtree(rig.folder / "run")
        (rig.folder / "run").mkdir()
        before = json.loads(rig.config.read_text())
        places = [rig.folder / "real" / "runc", rig.policy_path, rig.store, rig.bin]
        words = ["--log", rig.log, "create", "--bundle", rig.bundle, "ID"]
        killed = subprocess.run(
            ["/usr/bin/python3", "-I", "-S", "-c", KILLER, ROOT / "lib", str(steps)]
            + [*places, *words],
            check=False,
            timeout=60,
        )
        assert json.loads(rig.config.read_text()) in (before, expected)
        assert rig.create() == 42
        assert json.loads(rig.config.read_text()) == expected
        assert sorted(path.name for path in rig.bundle.iterdir()) == ["config.json"]
        assert [path.name for path in rig.store.iterdir()] == ["ID.json"]
        if killed.returncode == 42:
            break
        assert killed.returncode == -9
    assert steps > 15
