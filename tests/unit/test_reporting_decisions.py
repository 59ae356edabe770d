# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The one reader of the decision log; no line of it is trusted."""

import json
import os
import pathlib

import pytest

from gpu_agent.reporting import decisions
from gpu_agent.reporting.decisions import Entry
from gpu_runtime.decision_log import Decision

LINE = {
    "time": "2026-11-23T14:05:06.789Z", "boot": "b-1", "since_boot": 12.5, "container": "c1",
    "kind": "task", "code": "gpu-wait-expired", "asked": 2, "named": ["GPU-a"],
    "granted": ["GPU-a", "GPU-b"], "waited_ms": 1500, "decided_ms": 0.4, "reason": "busy",
    "who": "gpu-run of ci: train",
}  # fmt: skip
ENTRY = Entry(
    "2026-11-23T14:05:06.789Z", "b-1", 12.5, "c1", "task", "gpu-wait-expired", 2, ("GPU-a",),
    ("GPU-a", "GPU-b"), 1.5, "busy", "gpu-run of ci: train",
)  # fmt: skip


@pytest.fixture
def log(tmp_path):
    return tmp_path / "oci.log"


def parsed(**changes):
    return decisions.parse(json.dumps({**LINE, **changes}).encode())


def test_a_line_becomes_an_entry():
    assert parsed() == ENTRY


def test_an_entry_of_an_older_charm_has_no_code_and_no_clock():
    old = {"time": LINE["time"], "container": "c1", "kind": "gpu-release", "reason": "hangs"}
    entry = decisions.parse(json.dumps(old).encode())
    assert entry == Entry(LINE["time"], "", 0.0, "c1", decisions.RECLAIM, reason="hangs")


def test_what_the_runtime_writes_is_read_back(log):
    decision = Decision("c1")
    decision.kind, decision.asked, decision.granted = "task", None, ["GPU-a"]
    decision.waited_ms = 250
    decision.write(str(log))
    (entry,) = decisions.read(log)
    assert (entry.asked, entry.granted, entry.waited) == (None, ("GPU-a",), 0.25)
    assert (bool(entry.time), entry.since_boot > 0) == (True, True)
    assert entry.boot == pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.mark.parametrize(
    "line",
    [
        "", "null", "[]", "{}", "[" * 50_000, '{"kind": 1}', "\udcff", '{"kind": "task"',
        'time": "2026-11-23T14:05:06Z", "container": "c", "kind": "task"}',
        '{"container": 7, "kind": "task"}', '{"container": "c", "kind": ""}',
        json.dumps({"container": "c\x1b[2J", "kind": "task"}), "9" * 9000,
        json.dumps({"container": "c" * 5000, "kind": "task"}),
    ],
    ids=range(14),
)  # fmt: skip
def test_garbage_is_not_an_entry(log, line):
    data = line.encode(errors="surrogateescape")
    assert decisions.parse(data) is None
    log.write_bytes(data + b"\n" + json.dumps(LINE).encode() + b"\n")
    assert [entry for entry in decisions.read(log) if entry] == [ENTRY]


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"waited_ms": -5}, "waited", 0.0),
        *(({"waited_ms": ms}, "waited", 604800.0) for ms in (10**400, float("inf"))),
        *(({"waited_ms": ms}, "waited", None) for ms in ("long", True, None, float("nan"))),
        *(({"asked": n}, "asked", 0) for n in (-1, True, "two", 1.5, None)),
        ({"asked": 10**9}, "asked", 256),
        ({"asked": "all"}, "asked", None),
        ({"granted": "GPU-a"}, "granted", ()),
        ({"granted": [7, "", "GPU-\x1b", "GPU-a"]}, "granted", ("GPU-a",)),
        ({"granted": ["G"] * 9999}, "granted", ("G",) * 256),
        *(({"time": time}, "time", "") for time in ("now", 7, "2026-11-23 14:05", None)),
        *(({"since_boot": at}, "since_boot", 0.0) for at in ("x", -1, None, float("inf"))),
        ({"reason": "a\nb\x1b[2J"}, "reason", "a?b?[2J"),
        ({"reason": "x" * 9999}, "reason", "x" * 1299 + "…"),
        ({"reason": ["x"]}, "reason", ""),
        ({"code": "\x1b"}, "code", ""),
        ({"who": "two\nlines"}, "who", ""),
    ],
)  # fmt: skip
def test_a_garbled_field_spoils_no_other(changes, field, value):
    entry = parsed(**changes)
    assert getattr(entry, field) == value
    assert entry.container == "c1"


def test_both_files_are_read_the_oldest_entry_first(log):
    log.with_name("oci.log.1").write_text(json.dumps({**LINE, "container": "old"}) + "\n")
    log.write_text(json.dumps({**LINE, "container": "new"}) + "\n" + '{"torn')
    assert [entry and entry.container for entry in decisions.read(log)] == ["old", "new", None]
    log.unlink()
    assert [entry.container for entry in decisions.read(log)] == ["old"]


def test_a_log_that_is_not_there_is_empty(log):
    assert list(decisions.read(log)) == []


def test_a_huge_line_costs_no_memory_and_no_other_line(log):
    with log.open("wb") as file:
        file.write(json.dumps(LINE).encode() + b"\n")
        file.write(b"x" * (5 << 20) + b"\n" + json.dumps(LINE).encode() + b"\n")
    found = list(decisions.read(log))
    assert [entry for entry in found if entry] == [ENTRY, ENTRY]
    assert len(found) < 100


def test_a_link_or_pipe_in_the_logs_place_is_an_error_and_no_wait(log):
    os.mkfifo(log)
    with pytest.raises(OSError, match="oci"):
        list(decisions.read(log))
    log.unlink()
    log.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="oci"):
        list(decisions.read(log))


def test_a_follower_begins_at_the_end_and_crosses_a_rotation(log):
    log.write_text(json.dumps(LINE) + "\n")
    whole, end = decisions.Followed(log, before=1 << 18), decisions.Followed(log)
    with log.open("a") as file:
        file.write("garbage\n" + json.dumps({**LINE, "container": "c2"}) + "\n")
    log.rename(log.with_name("oci.log.1"))
    log.write_text(json.dumps({**LINE, "container": "c3"}) + "\n")
    assert [entry.container for entry in end.entries()] == ["c2", "c3"]
    assert [entry.container for entry in whole.entries()] == ["c1", "c2", "c3"]
    assert end.entries() == []


@pytest.mark.parametrize(
    ("kind", "is_step"),
    [
        *((kind, True) for kind in ("task", "privileged task", "exec", "exec 1-2")),
        *((kind, False) for kind in ("executed", "gpu-run", "podman container", "gpu-cordon")),
    ],
)
def test_which_kinds_are_about_steps(kind, is_step):
    assert parsed(kind=kind).is_step is is_step
