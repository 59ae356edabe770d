# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The operators' log: its lines, its rotation, and that it is never in the way."""

import datetime
import fcntl
import json
import os
import pathlib
import subprocess
import time

import pytest

from gpu_runtime import decision_log as journal
from gpu_runtime.decision_log import Decision
from tests.unit.wrapper_rig import ROOT

WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from gpu_runtime import decision_log as journal
journal._FULL = 4000
for number in range(200):
    decision = journal.Decision(f"{sys.argv[3]}-{number}")
    decision.kind = "task"
    decision.reason = "x" * 100
    decision.write(sys.argv[2])
"""


@pytest.fixture
def decision():
    found = Decision("ID")
    found.kind = "task"
    return found


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line(tmp_path, decision):
    decision.asked = 2
    decision.granted = ["GPU-0", "MIG-1"]
    decision.waited_ms = 1204
    decision.decided_ms = 0.31
    decision.reason = 'no\nline "break"'
    before = datetime.datetime.now(datetime.timezone.utc)
    decision.write(str(tmp_path / "oci.log"))
    (line,) = lines(tmp_path / "oci.log")
    written = datetime.datetime.fromisoformat(line.pop("time").replace("Z", "+00:00"))
    assert abs((written - before).total_seconds()) < 10
    assert line.pop("boot") == pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - line.pop("since_boot") < 10
    assert line == {
        "container": "ID",
        "kind": "task",
        "who": "",
        "asked": 2,
        "granted": ["GPU-0", "MIG-1"],
        "waited_ms": 1204,
        "named": [],
        "decided_ms": 0.31,
        "code": "",
        "reason": 'no\nline "break"',
    }
    assert (tmp_path / "oci.log").stat().st_mode & 0o777 == 0o640


def test_all_is_written_as_such(tmp_path, decision):
    decision.asked = None
    decision.write(str(tmp_path / "oci.log"))
    assert lines(tmp_path / "oci.log")[0]["asked"] == "all"


def test_what_was_not_decided_is_not_written(tmp_path):
    Decision("ID").write(str(tmp_path / "oci.log"))
    assert list(tmp_path.iterdir()) == []


def full(path):
    """Fill a log up to its limit; answers how many lines it has."""
    line = b'{"container":"before"}\n'
    count = (4 << 20) // len(line)
    path.write_bytes(line * count)
    return count


def test_a_full_log_becomes_the_old_one(tmp_path, decision):
    path, old = tmp_path / "oci.log", tmp_path / "oci.log.1"
    full(path)
    old.write_text("older\n")
    decision.write(str(path))
    assert not path.exists()
    assert old.stat().st_size > 4 << 20
    assert json.loads(old.read_text().splitlines()[-1])["container"] == "ID"
    decision.write(str(path))
    assert len(lines(path)) == 1
    assert sorted(found.name for found in tmp_path.iterdir()) == ["oci.log", "oci.log.1"]


def test_below_its_limit_it_grows(tmp_path, decision):
    path = tmp_path / "oci.log"
    path.write_bytes(b"\n" * ((4 << 20) - 1000))
    decision.write(str(path))
    assert path.stat().st_size > (4 << 20) - 1000
    assert not (tmp_path / "oci.log.1").exists()


def test_whoever_finds_it_being_rotated_leaves_it(tmp_path, decision):
    path = tmp_path / "oci.log"
    count = full(path)
    with path.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        decision.write(str(path))
    assert len(lines(path)) == count + 1
    assert not (tmp_path / "oci.log.1").exists()
    decision.write(str(path))
    assert len(lines(tmp_path / "oci.log.1")) == count + 2


def test_what_another_call_rotated_meanwhile_is_not_rotated_again(tmp_path, decision, monkeypatch):
    path, old = tmp_path / "oci.log", tmp_path / "oci.log.1"
    count = full(path)

    def rotate_first(*_):
        path.rename(old)
        path.write_text("fresh\n")

    monkeypatch.setattr(journal.fcntl, "flock", rotate_first)
    decision.write(str(path))
    assert path.read_text() == "fresh\n"
    assert lines(old)[count]["container"] == "ID"


def test_many_at_once_tear_no_line_and_rotate_no_fresh_log(tmp_path):
    path = tmp_path / "oci.log"
    argv = ["/usr/bin/python3", "-I", "-S", "-c", WRITER, ROOT / "lib", path]
    writers = [subprocess.Popen([*argv, str(number)]) for number in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    found = lines(tmp_path / "oci.log.1") + (lines(path) if path.exists() else [])
    assert {line["reason"] for line in found} == {"x" * 100}
    # A log that was rotated before it was full would hold less.
    assert (tmp_path / "oci.log.1").stat().st_size > 4000


@pytest.mark.parametrize("place", ["/dev/full", "missing/oci.log", "folder", "link", "file/x"])
def test_a_log_that_cannot_be_written_is_no_reason(tmp_path, decision, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "target").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    before = len(os.listdir("/proc/self/fd"))
    decision.write(str(tmp_path / place))
    assert len(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / "target").read_text() == "", "a link may lead anywhere"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("file", "folder", "link", "target")
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a disk needs root")
@pytest.mark.parametrize("options", ["ro,size=8k", "size=8k"], ids=["read-only", "full"])
def test_a_disk_that_takes_nothing_is_no_reason(tmp_path, decision, options):
    mounted = tmp_path / "disk"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", mounted], check=True)
    try:
        if "ro" not in options:
            with pytest.raises(OSError, match="No space"):
                (mounted / "filler").write_bytes(b"x" * 9000)
        decision.write(str(mounted / "oci.log"))
        log = mounted / "oci.log"
        assert not log.exists() or log.read_text() == ""
    finally:
        subprocess.run(["umount", mounted], check=True)
