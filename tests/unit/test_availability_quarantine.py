# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The quarantine: kept over a reboot, read by the wrapper, and the operator's word is the last."""

import contextlib
import json
import re
import resource
import threading

import pytest

from gpu_agent import paths
from gpu_agent.availability import quarantine
from gpu_runtime import unavailable
from machine import locks
from plan.state import Quarantine
from tests.unit.grants import AMD_GPUS, golden
from tests.unit.wrapper_rig import GPUS, Rig

XID = "Xid 79: the GPU has fallen off the bus"
IDS = [gpu["uuid"] for gpu in GPUS]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "gpu-ci/quarantine")
    return paths.QUARANTINE


@pytest.fixture
def rig(tmp_path, folder):
    rig = Rig(tmp_path / "rig")
    rig.policy(cordons=[str(tmp_path / "cordons"), str(folder)])
    return rig


def put(uuid, reason=XID, check="xid", level="quick", remedy="reseat the card"):
    return quarantine.put(uuid, reason, check, level, remedy)


def create(rig, *params):
    config = golden("task")
    config["process"]["env"] = ["PATH=/bin", "ATC_EXTERNAL_URL=http://127.0.0.1:8080", *params]
    rig.config.write_text(json.dumps(config))
    return rig.create()


def test_without_a_folder_nothing_is_out_of_use(folder):
    assert quarantine.read() == ()
    assert quarantine.find("GPU-0") is None
    assert not quarantine.lift("GPU-0")
    assert not folder.parent.exists()


def test_one_that_ends_while_it_is_read_is_none(folder):
    put("GPU-1")
    (folder / "GPU-0.json").symlink_to("removed")  # listed, and not there
    assert [entry.uuid for entry in quarantine.read()] == ["GPU-1"]


def test_what_a_self_test_puts_in_it_takes_out_again(folder):
    assert put("GPU-1")
    assert put("PCI-0000:83:00.0", level="compute")
    first, second = quarantine.read()
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", first.since)
    assert first == Quarantine(
        "GPU-1", XID, "xid", "quick", first.since, "reseat the card", quarantine.SELF_TEST
    )
    assert (second.uuid, second.level) == ("PCI-0000:83:00.0", "compute")
    assert quarantine.lift("PCI-0000:83:00.0")
    assert not quarantine.lift("PCI-0000:83:00.0")
    assert quarantine.read() == (first,)


def test_everybody_may_read_it_and_nothing_else_lies_there_but_the_lock(folder):
    put("GPU-1")
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "GPU-1.json"]
    assert (folder / ".lock").stat().st_mode & 0o7777 == 0o600
    assert folder.stat().st_mode & 0o7777 == 0o755
    assert (folder / "GPU-1.json").stat().st_mode & 0o7777 == 0o644


def test_out_since_the_first_time(folder):
    put("GPU-1")
    path = folder / "GPU-1.json"
    path.write_text(path.read_text().replace(quarantine.read()[0].since, "2026-01-02T03:04:05Z"))
    assert not put("GPU-1"), "nothing is written that is there"
    assert put("GPU-1", reason="ECC: 3 uncorrected errors", check="ecc")
    (entry,) = quarantine.read()
    assert (entry.check, entry.since) == ("ecc", "2026-01-02T03:04:05Z")
    quarantine.cordon("GPU-1", "swapping it")
    assert quarantine.read()[0].since == "2026-01-02T03:04:05Z"


def test_a_self_test_leaves_an_operators_cordon_as_it_is(folder):
    assert quarantine.cordon("GPU-1", "swapping the fan")
    before = quarantine.read()
    assert not put("GPU-1")
    assert quarantine.read() == before
    assert (before[0].reason, before[0].by) == ("swapping the fan", quarantine.OPERATOR)


def test_an_operators_cordon_takes_the_place_of_a_self_tests(folder):
    put("GPU-1")
    assert quarantine.cordon("GPU-1", "swapping the fan")
    (entry,) = quarantine.read()
    assert (entry.by, entry.check, entry.level) == (quarantine.OPERATOR, "", "")


def watch(uuid, level="isolation", reason="off the bus: gone"):
    return quarantine.put(uuid, reason, "off-bus", level, "", quarantine.HEALTH)


@pytest.mark.parametrize("level", ["isolation", ""])
def test_what_the_watch_takes_out_is_its_own(folder, level):
    assert watch(IDS[0], level)
    assert not watch(IDS[0], level)
    (entry,) = quarantine.read()
    assert (entry.by, entry.check, entry.level) == ("watch", "off-bus", level)
    (cause,) = unavailable.read_folder(str(folder)).values()
    assert cause == entry.cause
    assert cause.describe() == "quarantined: off the bus: gone"


@pytest.mark.parametrize(
    ("first", "second", "by"),
    [
        ("quick", "isolation", "watch"),
        ("compute", "isolation", "self-test"),
        ("quick", "quick", "self-test"),
        ("compute", "", "watch"),
    ],
)
def test_the_watch_takes_over_where_more_has_to_pass(folder, first, second, by):
    put("GPU-0", level=first)
    watch("GPU-0", second)
    assert quarantine.find("GPU-0").by == by


@pytest.mark.parametrize(
    ("first", "second", "level", "reason"),
    [
        ("quick", "isolation", "isolation", "second"),
        ("isolation", "isolation", "isolation", "second"),
        ("burn-in", "isolation", "burn-in", "first"),
        ("burn-in", "", "", "second"),
        ("", "burn-in", "", "first"),
    ],
)
def test_of_two_faults_that_the_watch_saw_the_stronger_stays(folder, first, second, level, reason):
    watch("GPU-0", first, "first")
    watch("GPU-0", second, "second")
    (entry,) = quarantine.read()
    assert (entry.level, entry.reason) == (level, reason)


def test_a_self_test_that_fails_for_less_asks_for_no_less(folder):
    watch("GPU-0", "burn-in")
    put("GPU-0", level="quick")
    (entry,) = quarantine.read()
    assert (entry.by, entry.reason, entry.level) == ("self-test", XID, "burn-in")


def test_the_watch_lifts_what_it_took_out_for_that_alone(folder):
    watch("GPU-0")
    assert not quarantine.lift_seen("GPU-0", "slowdown")
    assert quarantine.lift_seen("GPU-0", "off-bus")
    assert quarantine.read() == ()
    assert not quarantine.lift_seen("GPU-0", "off-bus")
    put("GPU-0", check="off-bus")
    quarantine.cordon("GPU-1", "off-bus")
    assert not quarantine.lift_seen("GPU-0", "off-bus")
    assert not quarantine.lift_seen("GPU-1", "off-bus")
    assert len(quarantine.read()) == 2


def test_the_operator_is_waited_for_and_has_the_last_word(folder):
    """While the watch is about to decide, the operator cordons: the record that stays is his."""
    folder.mkdir(parents=True)
    with locks.alone_in(folder):
        decision = threading.Thread(target=watch, args=("GPU-0",))
        decision.start()
        decision.join(0.2)
        assert decision.is_alive()
        (folder / "GPU-0.json").write_text(json.dumps({**GOOD, "by": "operator"}))
    decision.join(30)
    assert quarantine.find("GPU-0").by == quarantine.OPERATOR


@contextlib.contextmanager
def no_room():
    """A process that can write no byte into a file, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_where_the_disk_is_full_what_was_there_stays(folder):
    watch("GPU-0", "quick")
    before = quarantine.read()
    for call in (watch, put, lambda uuid: quarantine.cordon(uuid, "why")):
        for uuid in ("GPU-0", "GPU-1"):
            with no_room(), pytest.raises(OSError, match="File too large"):
                call(uuid)
    assert quarantine.read() == before


def test_what_the_operator_alone_brings_back_no_self_test_takes_over(folder):
    watch("GPU-0", "")
    assert not put("GPU-0", level="burn-in")
    assert quarantine.find("GPU-0").by == "watch"
    quarantine.cordon("GPU-0", "reseat it")
    assert not watch("GPU-0", "")
    assert quarantine.find("GPU-0").by == "operator"


@pytest.mark.parametrize("uuid", ["../../etc/passwd", "", ".", "..", "-x", "GPU/1", "GPU-1\n"])
def test_what_is_no_id_becomes_no_file(folder, uuid):
    for call in (put, lambda name: quarantine.cordon(name, "why"), quarantine.lift):
        with pytest.raises(ValueError, match="is not the id of a GPU"):
            call(uuid)
    assert not folder.exists()


GOOD = {
    "reason": XID,
    "check": "xid",
    "level": "quick",
    "since": "",
    "remedy": "",
    "by": "self-test",
}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '"x"', "\xff"]
    + [
        json.dumps({**GOOD, **change})
        for change in (
            {"reason": ""}, {"reason": 7}, {"reason": "a\nb"}, {"by": "me"}, {"level": "fast"},
            {"level": ""}, {"check": None}, {"more": "x"}, {"uuid": "GPU-2"},
        )
    ],
)  # fmt: skip
def test_a_damaged_file_keeps_its_gpu_out_until_the_operator_lifts_it(folder, rig, text):
    folder.mkdir(parents=True)
    (folder / f"{IDS[0]}.json").write_text(text, encoding="latin-1")
    (entry,) = quarantine.read()
    assert (entry.uuid, entry.by) == (IDS[0], quarantine.OPERATOR)
    assert entry.reason == f"damaged record: {folder / IDS[0]}.json"
    assert not put(IDS[0])
    assert create(rig) == 42
    assert rig.holders["ID"]["gpus"] == IDS[1:]
    assert quarantine.lift(IDS[0])


def test_what_was_half_written_is_no_entry(folder):
    put("GPU-1")
    (folder / ".GPU-2.json.new").write_text("{")
    assert [entry.uuid for entry in quarantine.read()] == ["GPU-1"]


def test_a_task_is_refused_in_the_words_of_the_quarantine(rig):
    put(IDS[0])
    assert create(rig) == 42
    assert rig.holders["ID"]["gpus"] == IDS[1:]
    assert create(rig, "GPU_COUNT=2") == 1
    assert rig.code == "too-few-gpus"
    assert f"1 available, because GPU 0 is quarantined: {XID}. Lower GPU_COUNT" in rig.refusal


def test_where_none_is_left_the_task_is_sent_elsewhere(rig):
    put(IDS[0])
    quarantine.cordon(IDS[1], "swapping the fan")
    rig.policy(wait_timeout=240, cordons=[str(paths.QUARANTINE)])
    assert create(rig) == 1
    assert rig.refusal == (
        "gpu-ci-worker: too-few-gpus: this task needs 1 GPU; this worker has 0 available, because "
        f"GPU 0 is quarantined: {XID}; GPU 1 is cordoned by the operator: swapping the fan. Rerun "
        "the job, which may run on another worker, or ask this worker's operator"
    )
    quarantine.lift(IDS[1])
    rig.log.unlink()
    assert create(rig) == 42


def test_quarantine_says_more_than_what_is_seen_meanwhile(rig, tmp_path):
    (tmp_path / "cordons").mkdir()
    seen = {"reason": "dirty: 12.3 GiB taken without a process"}
    (tmp_path / f"cordons/{IDS[0]}.json").write_text(json.dumps(seen))
    put(IDS[0])
    assert create(rig, "GPU_COUNT=2") == 1
    assert f"GPU 0 is quarantined: {XID}. " in rig.refusal


def test_a_hijack_into_a_container_of_a_quarantined_gpu_is_refused(rig):
    assert create(rig) == 42
    put(IDS[0])
    assert rig.exec(["A=b"]) == 1
    assert rig.refusal.endswith(
        f"gpu-withdrawn: GPU {IDS[0]} of this container is quarantined: {XID}. Rerun the task and "
        "hijack the new container"
    )


def test_ids_of_every_vendor_reach_the_wrapper(rig, folder):
    nodes = {"nodes": ["/dev/null"]}
    gpus = [{**gpu, **nodes} for gpu in AMD_GPUS]
    rig.policy(vendor="amd", gpus=gpus, nvidia_runtime="", config_home="", cordons=[str(folder)])
    put("PCI-0000:83:00.0")
    assert create(rig, "GPU_COUNT=2") == 1
    assert f"GPU 1 is quarantined: {XID}. " in rig.refusal
