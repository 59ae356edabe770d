# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What tasks ask for and get, through the wrapper: numbers, vendors, MIG, cordons, holders."""

import json
import os
import stat
import subprocess

import pytest

from tests.unit.grants import MIG_GPUS, golden
from tests.unit.wrapper_rig import GPUS, Rig

IDS = [gpu["uuid"] for gpu in GPUS]
BORDER = "ATC_EXTERNAL_URL=http://127.0.0.1:8080"


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def task(rig, *params, image=(), name="task"):
    """A task whose image and author wrote these variables."""
    config = golden(name)
    config["process"]["env"] = ["PATH=/bin", *image, BORDER, *params]
    rig.config.write_text(json.dumps(config))


def told(rig):
    entries = json.loads(rig.config.read_text())["process"]["env"]
    return dict(entry.split("=", 1) for entry in entries)


def cordon(rig, name, reason):
    (rig.folder / "cordons").mkdir(exist_ok=True)
    (rig.folder / "cordons" / f"{name}.json").write_text(json.dumps({"reason": reason}))


@pytest.mark.parametrize(
    ("params", "changes", "given"),
    [
        ([], {}, IDS[:1]),
        (["GPU_COUNT=1"], {"gpus_per_task": 2}, IDS[:1]),
        (["GPU_COUNT=2"], {}, IDS),
        (["GPU_COUNT=all"], {}, IDS),
        ([], {"gpus_per_task": 2}, IDS),
        ([], {"allocation": "shared"}, IDS),
        (["GPU_COUNT=1"], {"allocation": "shared"}, IDS),
    ],
)
def test_how_many_a_task_gets(rig, params, changes, given):
    task(rig, *params, image=["GPU_COUNT=9", "NVIDIA_VISIBLE_DEVICES=all"])
    rig.policy(**changes)
    assert rig.create() == 42
    assert rig.ran[0] == "nvidia-container-runtime"
    assert told(rig)["NVIDIA_VISIBLE_DEVICES"] == ",".join(given)
    assert told(rig)["GPU_COUNT"] == str(len(given))
    assert [entry["uuid"] for entry in json.loads(told(rig)["GPU_CI_DEVICES"])] == given
    assert rig.holders["ID"]["gpus"] == given


@pytest.mark.parametrize(
    ("params", "changes"), [(["GPU_COUNT=0"], {"gpus_per_task": 2}), ([], {"gpus_per_task": 0})]
)
def test_a_task_that_gets_none_goes_to_runc_and_holds_nothing(rig, params, changes):
    task(rig, *params, image=["CUDA_VERSION=11.0", "GPU_COUNT=2"])
    rig.policy(**changes, nvidia_runtime="/nowhere/nvidia-container-runtime")
    rig.hold(A=IDS[:1], B=IDS[1:])
    assert rig.create() == 42
    assert rig.ran[0] == "runc"
    # Unset, the legacy image would mean `all` to any NVIDIA runtime.
    assert told(rig)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert told(rig)["GPU_COUNT"] == "0"
    assert sorted(rig.holders) == ["A", "B"]
    assert rig.exec(["NVIDIA_VISIBLE_DEVICES=all"]) == 42
    assert "NVIDIA_VISIBLE_DEVICES=void" in json.loads(rig.process.read_text())["env"]


@pytest.mark.parametrize("value", ["two", "", "-1", "1.5", "9999999999"])
def test_a_number_that_is_none_is_refused(rig, value):
    task(rig, f"GPU_COUNT={value}")
    before = rig.config.read_bytes()
    assert rig.create() == 1
    assert rig.code == "gpu-count-invalid"
    assert rig.decisions[0]["code"] == "gpu-count-invalid"
    assert rig.config.read_bytes() == before
    assert rig.decisions[0]["reason"] in rig.refusal


def test_more_than_the_worker_has_fails_at_once(rig):
    task(rig, "GPU_COUNT=3")
    rig.policy(wait_timeout=240)
    assert rig.create() == 1
    assert rig.refusal.endswith(
        "too-few-gpus: this task needs 3 GPUs; this worker has 2 available. Lower GPU_COUNT, or "
        "add the tag `gpu-count>=3` to run on a larger worker"
    )


def test_a_privileged_task_gets_a_gpu_by_the_option_alone(rig):
    task(rig, "GPU_COUNT=1", name="task-privileged")
    assert rig.create() == 1
    assert rig.code == "privileged-not-allowed"
    rig.log.unlink()
    rig.policy(privileged_tasks="gpu")
    assert rig.create() == 42
    assert rig.ran[0] == "nvidia-container-runtime"
    assert told(rig)["NVIDIA_VISIBLE_DEVICES"] == IDS[0]
    assert [line["kind"] for line in rig.decisions] == ["privileged task"] * 2


def test_a_lease_is_a_mig_device(rig):
    rig.policy(gpus=MIG_GPUS)
    first, second = MIG_GPUS[0]["devices"]
    task(rig)
    assert rig.create() == 42
    assert told(rig)["NVIDIA_VISIBLE_DEVICES"] == first
    rig.hold(A=[first])
    task(rig, f"CUDA_VISIBLE_DEVICES={second}")
    assert rig.create() == 42
    assert told(rig)["NVIDIA_VISIBLE_DEVICES"] == second
    assert json.loads(told(rig)["GPU_CI_DEVICES"]) == [
        {"index": 0, "uuid": second, "model": GPUS[0]["model"]}
    ]


def test_who_holds_what_is_told_and_given_to_nobody(rig):
    rig.hold(FIRST=IDS[:1])
    task(rig)
    assert rig.create() == 42
    assert told(rig)["NVIDIA_VISIBLE_DEVICES"] == IDS[1]
    rig.hold(FIRST=IDS[:1], SECOND=IDS[1:])
    task(rig)
    before = rig.config.read_bytes()
    assert rig.create() == 1
    assert rig.refusal == (
        "gpu-ci-worker: wait-timeout: timed out after 0 s waiting for 1 of 2 GPUs. In use: GPU 0 "
        "by container FIRST for 12 min, GPU 1 by container SECOND for 12 min (see fly "
        "containers). Rerun the job, or set `attempts: 3` on the step. If this is frequent, ask "
        "the worker's operator for more workers or a longer gpu-wait-timeout"
    )
    assert rig.config.read_bytes() == before
    assert json.loads((rig.store / "leases.json").read_text())["waiters"] == []


def test_a_table_made_anew_does_not_know_since_when(rig):
    rig.hold(FIRST=IDS[:1], SECOND=IDS[1:])
    table = json.loads((rig.store / "leases.json").read_text())
    table["holders"]["FIRST"]["since"] = 0
    (rig.store / "leases.json").write_text(json.dumps(table))
    task(rig)
    assert rig.create() == 1
    assert "by container FIRST, GPU 1 by container SECOND for 12 min (" in rig.refusal


def test_a_cordoned_gpu_is_given_to_nobody(rig):
    cordon(rig, IDS[0], "in use outside CI: pid 4711 (python3)")
    task(rig)
    assert rig.create() == 42
    assert told(rig)["NVIDIA_VISIBLE_DEVICES"] == IDS[1]
    task(rig, "GPU_COUNT=all")
    assert rig.create() == 42
    assert told(rig)["GPU_COUNT"] == "1"
    task(rig, "GPU_COUNT=2")
    assert rig.create() == 1
    assert rig.code == "too-few-gpus"
    assert "1 available, because GPU 0 is in use outside CI: pid 4711 (python3). " in rig.refusal


@pytest.mark.parametrize("count", ["1", "all"])
def test_where_all_are_cordoned_nobody_waits(rig, count):
    for name in IDS:
        cordon(rig, name, "dirty")
    rig.policy(wait_timeout=240)
    task(rig, f"GPU_COUNT={count}")
    assert rig.create() == 1
    assert rig.code == "too-few-gpus"
    assert "this task needs 1 GPU; this worker has 0 available, because " in rig.refusal


def test_shared_gpus_are_not_shared_with_who_has_one_alone(rig):
    rig.policy(allocation="shared")
    rig.hold(SELFTEST=IDS[:1])
    task(rig)
    assert rig.create() == 42
    assert told(rig)["NVIDIA_VISIBLE_DEVICES"] == IDS[1]
    rig.hold(SELFTEST=IDS)
    task(rig)
    assert rig.create() == 1
    assert rig.code == "wait-timeout"
    assert "GPU 0 by container SELFTEST" in rig.refusal


@pytest.mark.parametrize(
    ("param", "item"),
    [("CUDA_VISIBLE_DEVICES=1", "1"), ("CUDA_VISIBLE_DEVICES=0,5", "5")]
    + [("HIP_VISIBLE_DEVICES=GPU-9", "GPU-9"), (f"CUDA_VISIBLE_DEVICES={IDS[1]}", IDS[1])],
)
def test_an_author_who_names_more_than_asked_for_is_refused(rig, param, item):
    task(rig, param, "GPU_COUNT=1")
    before = rig.config.read_bytes()
    assert rig.create() == 1
    assert rig.code == "gpu-index-invalid"
    assert f"'{item}' does not exist, because this task has 1 GPU, " in rig.refusal
    assert rig.config.read_bytes() == before
    assert rig.decisions[-1]["granted"] == []
    # Whatever it took meanwhile is nobody's.
    task(rig, "GPU_COUNT=2")
    rig.log.unlink()
    assert rig.create() == 42


def test_an_author_who_counts_wrong_does_not_wait_to_learn_it(rig):
    rig.hold(A=IDS)
    rig.policy(wait_timeout=240)
    task(rig, "CUDA_VISIBLE_DEVICES=0,1")
    assert rig.create() == 1
    assert rig.code == "gpu-index-invalid"


def test_an_image_narrows_nothing_and_an_author_what_is_his(rig):
    image = ["CUDA_VISIBLE_DEVICES=-1", "ROCR_VISIBLE_DEVICES=9", "ZE_AFFINITY_MASK=7"]
    task(rig, "CUDA_VISIBLE_DEVICES=0", image=image)
    assert rig.create() == 42
    assert told(rig)["CUDA_VISIBLE_DEVICES"] == "0"
    assert not {"ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"} & told(rig).keys()


@pytest.fixture
def nodes(tmp_path):
    """Two GPUs of AMD's kind: a node that both share, and one of its own for each."""
    places = [tmp_path / name for name in ("kfd", "renderD128", "renderD129")]
    if os.geteuid() == 0:
        for minor, (place, gid) in enumerate(zip(places, (104, 44, 44), strict=True)):
            os.mknod(place, stat.S_IFCHR | 0o660, os.makedev(226, 127 + minor))
            os.chown(place, 0, gid)
    else:
        for place, node in zip(places, ("null", "zero", "full"), strict=True):
            place.symlink_to(f"/dev/{node}")
    (tmp_path / "by-path").symlink_to(places[2])
    return [[str(places[0]), str(places[1])], [str(places[0]), str(tmp_path / "by-path")]]


def amd(rig, nodes, vendor="amd", **changes):
    names = ["PCI-0000:03:00.0", "PCI-0000:83:00.0"]
    gpus = [
        {"index": place, "uuid": name, "model": "AMD Instinct MI210", "devices": [name]}
        for place, name in enumerate(names)
    ]
    gpus = [{**gpu, "nodes": own} for gpu, own in zip(gpus, nodes, strict=True)]
    rig.policy(vendor=vendor, nvidia_runtime="", config_home="", gpus=gpus, **changes)
    return names


@pytest.mark.parametrize("vendor", ["amd", "intel"])
@pytest.mark.parametrize("second", [False, True])
def test_device_nodes_are_our_own_doing(rig, nodes, vendor, second):
    names = amd(rig, nodes, vendor)
    if second:
        rig.hold(A=names[:1])
    task(rig, "HIP_VISIBLE_DEVICES=0", image=["AMD_VISIBLE_DEVICES=all", "HIP_VISIBLE_DEVICES=1"])
    before = json.loads(rig.config.read_text())
    assert rig.create() == 42
    assert rig.ran[0] == "runc"
    after = json.loads(rig.config.read_text())
    assert after["process"]["env"] == [
        *("PATH=/bin", BORDER, "HIP_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=void"),
        "GPU_COUNT=1",
        'GPU_CI_DEVICES=[{"index":%d,"uuid":"%s","model":"AMD Instinct MI210"}]'  # noqa: UP031
        % (second, names[second]),
    ]
    real = [os.path.realpath(node) for node in nodes[second]]
    found = [os.stat(node) for node in real]
    assert after["linux"]["devices"] == [
        {
            "path": node,
            "type": "c",
            "major": os.major(of.st_rdev),
            "minor": os.minor(of.st_rdev),
            "fileMode": 0o660,
            "uid": 0,
            "gid": of.st_gid,
        }
        for node, of in zip(real, found, strict=True)
    ]
    rules = after["linux"]["resources"]["devices"]
    assert rules[:1] == before["linux"]["resources"]["devices"]
    assert rules[1:] == [
        {
            "allow": True,
            "type": "c",
            "major": os.major(of.st_rdev),
            "minor": os.minor(of.st_rdev),
            "access": "rw",
        }
        for of in found
    ]
    groups = sorted({of.st_gid for of in found})
    assert after["process"]["user"] == {"uid": 0, "gid": 0, "additionalGids": groups}
    assert rig.exec(["A=b"]) == 42
    process = json.loads(rig.process.read_text())
    assert process["user"] == {"additionalGids": groups}
    assert process["env"] == ["A=b", *after["process"]["env"][-3:]]


def test_a_node_that_went_away_is_named(rig, nodes):
    amd(rig, nodes, gpus_per_task=2)
    os.unlink(nodes[0][1])
    task(rig)
    before = rig.config.read_bytes()
    assert rig.create() == 1
    assert rig.code == "device-node-missing"
    assert nodes[0][1] in rig.refusal
    assert rig.config.read_bytes() == before


def test_the_nodes_of_a_task_that_gets_none_stay_away(rig, nodes):
    amd(rig, nodes)
    task(rig, "GPU_COUNT=0")
    before = json.loads(rig.config.read_text())
    assert rig.create() == 42
    after = json.loads(rig.config.read_text())
    assert (after["linux"], after["process"]["user"]) == (
        before["linux"],
        before["process"]["user"],
    )


def test_a_start_in_one_go_is_refused_for_any_vendor(rig, nodes):
    amd(rig, nodes)
    task(rig)
    assert rig.call("run", "-b", rig.bundle, "ID") == 1
    assert rig.code == "start-unsupported"


def test_the_journal_tells_of_each_decision(rig):
    task(rig, "GPU_COUNT=2")
    rig.create()
    rig.call("exec", "--process", rig.process, "--pid-file", rig.bundle / "task.pid", "ID")
    rig.process.write_text('{"env":["A=b"]}')
    rig.call("exec", "--process", rig.process, "--pid-file", rig.bundle / "task.pid", "ID")
    task(rig, "GPU_COUNT=all")
    rig.create()
    task(rig, "GPU_COUNT=9")
    rig.create()
    rig.spec("get")
    rig.create()
    found = [(line["kind"], line["asked"], line["granted"]) for line in rig.decisions]
    assert found == [
        *(("task", 2, IDS), ("exec task", 2, IDS), ("task", "all", IDS), ("task", 9, [])),
    ]
    assert [bool(line["reason"]) for line in rig.decisions] == [False, False, False, True]
    assert {line["container"] for line in rig.decisions} == {"ID"}
    assert all(0 < line["decided_ms"] < 60_000 for line in rig.decisions[:3])


@pytest.mark.parametrize("place", ["/dev/full", "/nowhere/oci.log", "/proc/version"])
def test_a_journal_that_cannot_be_written_is_no_reason(rig, place):
    front = rig.bin / "runc"
    front.write_text(front.read_text().replace(str(rig.journal), place))
    task(rig)
    assert rig.create() == 42
    assert rig.exec(["A=b"]) == 42
    task(rig, "GPU_COUNT=9")
    assert rig.create() == 1
    assert rig.code == "too-few-gpus"


@pytest.mark.parametrize("log", ["/dev/full", "/nowhere/log.json", "/proc/version", "/"])
def test_a_refusal_that_cannot_be_written_still_refuses(rig, log):
    task(rig, "GPU_COUNT=9")
    argv = [rig.bin / "runc", "--log", log, "create", "--bundle", rig.bundle, "ID"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
    assert not list(rig.folder.glob("ran.*"))
    assert "this task needs 9 GPUs" in rig.decisions[0]["reason"]
