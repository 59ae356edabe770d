# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Files are made as asked, atomically, and left alone when they are right already."""

import os
import resource
import stat

import jinja2
import pytest

from ci.concourse import service
from machine import files, templates


@pytest.fixture
def umask():
    before = os.umask(0)
    yield os.umask
    os.umask(before)


def mode_of(path):
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_file_gets_its_mode_whatever_the_umask(tmp_path, umask, mask):
    umask(mask)
    assert files.ensure_file(tmp_path / "open", "a", mode=0o644)
    assert files.ensure_file(tmp_path / "secret", "b", mode=0o600)
    assert files.ensure_directory(tmp_path / "deep/er", mode=0o700)
    modes = [mode_of(tmp_path / name) for name in ("open", "secret", "deep", "deep/er")]
    assert modes == [0o644, 0o600, 0o755, 0o700]


def test_file_that_is_right_is_not_written_again(tmp_path):
    path = tmp_path / "file"
    assert files.ensure_file(path, "text")
    before = path.stat()
    assert not files.ensure_file(path, b"text")
    after = path.stat()
    # Reading it may have changed the time of access.
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("other"),
        lambda path: path.chmod(0o666),
        lambda path: path.unlink(),
    ],
)
def test_file_that_is_wrong_is_mended(tmp_path, spoil):
    path = tmp_path / "file"
    files.ensure_file(path, "text", mode=0o640)
    spoil(path)
    assert files.ensure_file(path, "text", mode=0o640)
    assert (path.read_text(), mode_of(path)) == ("text", 0o640)


def test_new_content_never_shows_under_the_old_name_half_written(tmp_path):
    path = tmp_path / "file"
    files.ensure_file(path, "old")
    with path.open() as reader:
        files.ensure_file(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_link_in_the_way_is_replaced_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("keep")
    (tmp_path / "file").symlink_to(victim)
    (tmp_path / ".file.new").symlink_to(victim)
    assert files.ensure_file(tmp_path / "file", "secret", mode=0o600)
    assert victim.read_text() == "keep"
    assert not (tmp_path / "file").is_symlink()


def test_litter_of_a_killed_hook_is_no_obstacle(tmp_path):
    (tmp_path / ".file.new").write_text("half")
    (tmp_path / ".link.new").symlink_to("half")
    assert files.ensure_file(tmp_path / "file", "whole")
    assert files.ensure_symlink(tmp_path / "link", "whole")
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def test_directory_mode_is_mended_and_a_file_in_its_place_is_an_error(tmp_path):
    folder = tmp_path / "folder"
    assert files.ensure_directory(folder, mode=0o700)
    assert not files.ensure_directory(folder, mode=0o700)
    folder.chmod(0o777)
    assert files.ensure_directory(folder, mode=0o700)
    assert mode_of(folder) == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        files.ensure_directory(tmp_path / "file")


def test_link_is_switched(tmp_path):
    link = tmp_path / "link"
    assert files.ensure_symlink(link, "a")
    assert not files.ensure_symlink(link, "a")
    assert files.ensure_symlink(link, tmp_path / "b")
    assert os.readlink(link) == str(tmp_path / "b")


def test_absent_takes_links_but_not_what_they_point_to(tmp_path):
    kept = tmp_path / "kept/inside"
    files.ensure_directory(kept)
    tree = tmp_path / "tree"
    files.ensure_directory(tree / "deep")
    (tree / "deep/link").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for path in (tree, tmp_path / "link"):
        assert files.ensure_absent(path)
        assert not files.ensure_absent(path)
    assert os.listdir(tmp_path) == ["kept"]
    assert kept.is_dir()


def test_only_an_empty_directory_is_removed_if_empty(tmp_path):
    files.ensure_directory(tmp_path / "full/empty")
    assert not files.remove_if_empty(tmp_path / "full")
    assert files.remove_if_empty(tmp_path / "full/empty")
    assert not files.remove_if_empty(tmp_path / "full/empty")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_tree_is_handed_over_whole_but_not_what_its_links_point_to(tmp_path):
    tree, kept = tmp_path / "tree", tmp_path / "kept"
    files.ensure_directory(tree / "deep")
    (tree / "deep/file").touch()
    kept.touch()
    (tree / "link").symlink_to(kept)
    files.hand_over(tree, 4294967294)
    given = [tree, tree / "deep", tree / "deep/file", tree / "link"]
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in given} == {(4294967294,) * 2}
    assert kept.stat().st_uid == 0


def test_read_text_tells_a_missing_file_from_an_empty_one(tmp_path):
    (tmp_path / "empty").touch()
    assert files.read_text(tmp_path / "empty") == ""
    assert files.read_text(tmp_path / "missing") is None


def test_template_with_a_value_missing_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        templates.render(service.TEMPLATES, "concourse-worker.service", command="/bin/true")


def test_a_line_near_the_beginning_is_blanked_in_its_place(tmp_path):
    path = tmp_path / "script"
    path.write_bytes(b"-- head\nSET x = 0;\nSET x = 0; -- more\nSET y = 0;\n")
    inode = path.stat().st_ino
    assert files.blank_line(path, b"SET x = 0;", 4096)
    assert path.read_bytes() == b"-- head\n          \nSET x = 0; -- more\nSET y = 0;\n"
    assert path.stat().st_ino == inode
    assert not files.blank_line(path, b"SET x = 0;", 4096)
    assert not files.blank_line(path, b"SET y = 0;", 20), "further on is data"


def test_a_file_that_has_no_room_stays_as_it_was_and_is_named(tmp_path):
    """By the kernel's limit of a file's size, which any user can set."""
    path = tmp_path / "file"
    path.write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            files.ensure_file(path, "x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(path)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("file", "before")]
