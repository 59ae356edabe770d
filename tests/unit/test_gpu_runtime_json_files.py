# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""JSON files are read whole and replaced whole, or stay as they were."""

import os
import stat
import subprocess

import pytest

from gpu_runtime.json_files import read_object, remove, replace

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a disk needs root")


@pytest.mark.parametrize("text", ["[]", "7", "null", '"x"', "", "{", '{"a":1} x', "\ufeff{}"])
def test_what_is_no_object(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011  its words are the JSON reader's
        read_object(str(tmp_path / "x"))


def test_a_new_file_is_its_owners_own(tmp_path):
    path = tmp_path / "x.json"
    replace(str(path), {"a": ["ü", 1, None]})
    assert path.read_bytes() == rb'{"a":["\u00fc",1,null]}'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in tmp_path.iterdir()] == ["x.json"]


def test_who_reads_meanwhile_reads_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a":1}')
    with path.open() as reader:
        replace(str(path), {"b": 2}, like=str(path))
        assert reader.read() == '{"a":1}'
    assert read_object(str(path)) == {"b": 2}


def test_what_a_killed_call_left_is_no_hindrance(tmp_path):
    path, beside = tmp_path / "x.json", tmp_path / "x.json.gpu-ci"
    beside.write_text('{"half')
    replace(str(path), {"a": 1})
    assert read_object(str(path)) == {"a": 1}
    assert not beside.exists()


def test_a_link_in_its_place_is_not_followed(tmp_path):
    path, target = tmp_path / "x.json", tmp_path / "target"
    target.write_text("theirs")
    (tmp_path / "x.json.gpu-ci").symlink_to(target)
    replace(str(path), {"a": 1})
    assert target.read_text() == "theirs"
    assert read_object(str(path)) == {"a": 1}


@pytest.mark.parametrize("like", ["absent", ""])
def test_what_fails_leaves_no_trace(tmp_path, like):
    path = tmp_path / "x.json"
    if like:
        with pytest.raises(OSError, match="No such file"):
            replace(str(path), {"a": 1}, like=str(tmp_path / like))
    else:
        path.mkdir()
        with pytest.raises(OSError, match="Is a directory"):
            replace(str(path), {"a": 1})
    assert not (tmp_path / "x.json.gpu-ci").exists()


def test_a_number_that_json_lacks_is_found_before_anything_is_written(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace(str(path), {"a": float("inf")}, like=str(path))
    assert path.read_text() == "{}"
    assert len(list(tmp_path.iterdir())) == 1


@needs_root
@pytest.mark.parametrize("state", ["full", "read-only"])
def test_a_disk_that_takes_nothing_keeps_what_it_has(tmp_path, state):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", disk], check=True)
    try:
        path = disk / "config.json"
        path.write_text('{"a":1}')
        if state == "full":
            with pytest.raises(OSError, match="No space"):
                (disk / "filler").write_bytes(b"x" * 20_000)
        else:
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        before = sorted(os.listdir(disk))
        with pytest.raises(OSError, match=r"No space|Read-only"):
            replace(str(path), {"b": "x" * 9000}, like=str(path))
        assert path.read_text() == '{"a":1}'
        assert sorted(os.listdir(disk)) == before
    finally:
        subprocess.run(["umount", disk], check=True)


def test_what_is_not_there_can_be_removed(tmp_path):
    remove(str(tmp_path / "x"))
    (tmp_path / "x").write_text("")
    remove(str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()
    with pytest.raises(OSError, match=r"directory|permitted"):
        remove(str(tmp_path))


def test_the_mode_of_a_link_is_that_of_its_file(tmp_path):
    path, link = tmp_path / "x.json", tmp_path / "link.json"
    path.write_text("{}")
    path.chmod(0o640)
    link.symlink_to(path)
    replace(str(link), {"a": 1}, like=str(link))
    assert link.lstat().st_mode & 0o7777 == 0o640
    assert path.read_text() == "{}"
