# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Files that can't be written or read, or say nonsense: refused in words, no GPU given twice."""

import errno
import json
import os
import pathlib
import resource
import shutil
import stat
import sys

import pytest

from gpu_runtime import json_files as files
from gpu_runtime import task_call as wrapper
from tests.unit.wrapper_caller import EXECED, UUIDS, Bundle, hold
from tests.unit.wrapper_rig import GOLDEN

ROOT = os.geteuid() == 0


def full_after(size):
    """Files can have so many bytes from now on: what a full disk does to a write."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("size", [0, 100, 300, 1000])
def test_where_nothing_can_be_written_nothing_is_given(rig, caller, size):
    mine, other = Bundle(rig, "ID"), Bundle(rig, "OTHER")
    before = mine.config.read_bytes()
    assert caller.call(mine.create, 0, full_after(size)) == 1
    assert mine.config.read_bytes() == before
    assert {path.name for path in mine.folder.iterdir()} == {"config.json", "log.json"}
    assert caller.call(other.create) == EXECED
    assert caller.holders() == {"OTHER": UUIDS[:1]}


def test_a_refusal_says_where_writing_failed(rig, caller):
    mine = Bundle(rig, "ID")
    assert caller.call(mine.create, 0, full_after(1000)) == 1
    assert rig.code == "worker-fault"
    assert f"{mine.config}: File too large" in rig.refusal


REMEDIES = {
    errno.ENOSPC: "Free disk space on this worker",
    errno.EDQUOT: "Free disk space on this worker",
    errno.ENFILE: "This worker has too many open files",
    errno.EMFILE: "This worker has too many open files",
    errno.EROFS: "Check this worker's disk",
    errno.EIO: "Check this worker's disk",
    errno.EACCES: "Rerun the task",
}


@pytest.mark.parametrize("number", REMEDIES, ids=errno.errorcode.get)
def test_a_refusal_says_what_failed_where_and_what_helps(rig, caller, number):
    mine = Bundle(rig, "ID")

    def fail(path, *_, **__):
        raise OSError(number, os.strerror(number), path)

    assert caller.call(mine.create, 0, lambda: setattr(wrapper, "replace", fail)) == 1
    said = f"its GPU: {mine.config}: {os.strerror(number)}. {REMEDIES[number]}"
    assert said in rig.refusal


@pytest.mark.parametrize("number", [errno.ENFILE, errno.EIO, errno.EACCES, errno.ELOOP])
def test_a_spec_that_cannot_be_opened_is_no_silent_cpu_run(rig, caller, number):
    """It is there: only the runtime could say so, once it was open again."""
    mine = Bundle(rig, "ID")

    def fail(path, *names):
        if path == str(mine.config):
            raise OSError(number, os.strerror(number), path)
        return files.read_object(path, *names)

    assert caller.call(mine.create, 0, lambda: setattr(wrapper, "read_object", fail)) == 1
    assert f"cannot read {mine.config}: " in rig.refusal
    assert os.strerror(number) in rig.refusal


def test_a_spec_that_is_missing_is_runcs_business(rig, caller):
    mine = Bundle(rig, "ID")
    mine.config.unlink()
    assert caller.call(mine.create) == EXECED
    assert caller.call(["create", "--bundle", str(mine.config / "x"), "ID"]) == EXECED


def test_a_log_that_cannot_be_written_is_no_reason(rig, caller):
    rig.journal.mkdir()
    assert caller.call(Bundle(rig, "ID").create) == EXECED


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
def test_a_log_on_a_full_disk_is_no_reason(rig, caller):
    os.mknod(rig.journal, stat.S_IFCHR | 0o666, os.stat("/dev/full").st_rdev)
    with pytest.raises(OSError, match="No space left"):
        rig.journal.write_text("x")
    assert caller.call(Bundle(rig, "ID").create) == EXECED


UNREADABLE = {
    "policy": lambda rig: rig.policy_path,
    "cordons": lambda rig: rig.folder / "cordons",
    "leases": lambda rig: rig.store / "leases.json",
    "the store": lambda rig: rig.store,
}


def make_unreadable(path, how):
    """`kind`: a file for a folder and the other way round, which fails root too."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if how == "loop":
        path.symlink_to(path.name)
    elif path.suffix == ".json":
        path.mkdir()
    else:
        path.touch()


@pytest.mark.parametrize("how", ["kind", "loop"])
@pytest.mark.parametrize("what", UNREADABLE)
def test_what_cannot_be_read_is_refused_by_name_and_stops_no_get(rig, caller, what, how):
    mine, get = Bundle(rig, "ID"), Bundle(rig, "get")
    shutil.copy(GOLDEN / "get.json", get.config)
    before = mine.config.read_bytes()
    path = UNREADABLE[what](rig)
    make_unreadable(path, how)
    assert caller.call(mine.create) == 1
    assert path.name in rig.refusal
    assert mine.config.read_bytes() == before
    assert caller.call(get.create) == EXECED


@pytest.mark.skipif(ROOT, reason="root reads what has no mode")
@pytest.mark.parametrize("what", UNREADABLE)
def test_what_may_not_be_read_is_refused(rig, caller, what):
    mine = Bundle(rig, "ID")
    assert caller.call(mine.create) == EXECED
    path = UNREADABLE[what](rig)
    path.mkdir(exist_ok=True)
    path.chmod(0)
    assert caller.call(mine.create) == 1
    path.chmod(0o700)
    assert path.name in rig.refusal


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"x"', "\0", "{}}", "\xff"])
def test_damaged_leases_are_named_and_made_anew_once_they_are_removed(rig, caller, text):
    """From the containers that run: none here, whose calls are over."""
    mine = Bundle(rig, "ID")
    assert caller.call(mine.create) == EXECED
    path = rig.store / "leases.json"
    path.write_text(text, encoding="latin-1")
    assert caller.call(mine.create) == 1
    assert f"{path} is damaged" in rig.refusal
    assert rig.code == "lease-table-damaged"
    path.unlink()
    assert caller.holders() == {"ID": UUIDS[:1]}
    other = Bundle(rig, "OTHER")
    assert caller.call(other.create) == EXECED
    assert caller.holders() == {"OTHER": UUIDS[:1]}


@pytest.mark.parametrize(
    "table",
    [
        {"holders": []},
        {"holders": {"x": {}}},
        {"holders": {"x": {"bundle": "/b", "gpus": [], "since": 0}}},
        {"holders": {"x": {"bundle": "/b", "gpus": ["G"], "since": "0"}}},
        {"holders": {"x": {"bundle": "/b", "gpus": ["G"], "since": 0, "calls": [[1]]}}},
        {"holders": {"x": {"bundle": "/b", "gpus": ["G"], "since": 0, "calls": [["1", 2]]}}},
        {"holders": {}, "waiters": {}},
        {"holders": {}, "waiters": [{}]},
        {"holders": {}, "waiters": [{"container": "x", "call": [1, 2], "count": "1", "since": 0}]},
    ],
)
def test_leases_of_another_shape_are_no_leases(rig, caller, table):
    mine = Bundle(rig, "ID")
    rig.store.mkdir(parents=True)
    (rig.store / "leases.json").write_text(json.dumps(table))
    assert caller.call(mine.create) == 1
    assert rig.code == "lease-table-damaged"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"gpus": ["x"]}'])
def test_a_damaged_record_lets_no_process_in(rig, caller, text):
    process = rig.folder / "process"
    process.write_text('{"args": ["sh"], "env": []}')
    mine = Bundle(rig, "ID")
    assert caller.call(mine.create) == EXECED
    (rig.store / "containers" / "ID.json").write_text(text)
    assert caller.call(["exec", "--process", str(process), "ID"]) == 1
    assert str(rig.store) in rig.refusal
    assert process.read_text() == '{"args": ["sh"], "env": []}'


def test_a_missing_store_is_made_for_root_alone(rig, caller):
    shutil.rmtree(rig.folder / "run")
    before = os.umask(0o077)
    try:
        assert caller.call(Bundle(rig, "ID").create, 0, lambda: os.umask(0)) == EXECED
    finally:
        os.umask(before)
    modes = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in (rig.store.parent, rig.store, rig.store / "containers")
    }
    assert [*modes.values()] == [0o755, 0o700, 0o700]
    for path in (rig.store / "leases.json", rig.store / "containers" / "ID.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_call_before_this_boot_is_nobody(rig, caller):
    """A number that is alive, with another start."""
    hold(rig, (os.getpid(), 1))
    assert caller.call(Bundle(rig, "ID").create) == EXECED


def test_a_process_file_that_names_this_very_process_is_no_use(rig, caller):
    """The numbers of a container's processes were given to others since."""
    mine, other = Bundle(rig, "ID"), Bundle(rig, "OTHER")
    assert caller.call(mine.create) == EXECED
    for name in ("init", "task"):
        (mine.folder / f"{name}.pid").write_text(str(os.getpid()))
    assert caller.call(other.create) == EXECED
    assert pathlib.Path(f"/proc/{os.getpid()}").exists()


def test_the_caller_is_told_of_a_crash(rig, caller):
    """Else the tests here would take a crash for what they expect."""
    assert caller.call(["create", "--bundle", str(rig.folder), "ID"], 0, sys.exit) not in (
        1,
        EXECED,
    )
