# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A log of lines on real files: rotation, torn lines, a disk that takes no more, odd files."""

import contextlib
import fcntl
import os
import resource
import stat

import pytest

from machine import log_rotation as rotated

LONGEST = 1 << 16


@pytest.fixture
def path(tmp_path):
    return tmp_path / "receipts.log"


def append(path, line, full=1 << 20, kept=3):
    rotated.append(path, line, full=full, kept=kept)


def read(path, kept=3, longest=LONGEST):
    return list(rotated.lines(path, kept, longest))


@contextlib.contextmanager
def files_end_at(size):
    """No file grows beyond so many bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_lines_come_back_in_their_order_over_rotations_and_the_oldest_go(path):
    for number in range(100):
        append(path, f"line {number:04}".encode(), full=100)
    found = read(path)
    assert found == [f"line {number:04}".encode() for number in range(60, 100)]
    names = sorted(one.name for one in path.parent.iterdir())
    assert names == [
        "receipts.log",
        *(f"receipts.log.{number}" for number in (1, 2, 3)),
    ]
    assert max(one.stat().st_size for one in path.parent.iterdir()) == 100


def test_where_there_is_no_log_there_are_no_lines(path):
    assert read(path) == []
    assert read(path.parent / "none/receipts.log") == []
    with pytest.raises(FileNotFoundError):
        append(path.parent / "none/receipts.log", b"x")


def test_all_of_it_goes_and_nothing_beside_it(path):
    (path.parent / "oci.log").touch()
    for _ in range(3):
        append(path, b"x", full=1)
    assert rotated.remove(path, 3)
    assert [one.name for one in path.parent.iterdir()] == ["oci.log"]
    assert not rotated.remove(path, 3)


def test_only_root_and_its_group_read_it_whatever_the_umask(path):
    before = os.umask(0)
    try:
        append(path, b"x")
        append(path, b"x", full=1)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()] == [0o640, 0o640]


def test_a_line_that_a_killed_writer_tore_spoils_no_other(path):
    append(path, b"whole")
    for torn in (b"t", b"torn in the mid"):
        with path.open("ab") as file:
            file.write(torn)
        append(path, b"after")
    assert read(path) == [b"whole", b"t", b"after", b"torn in the mid", b"after"]


@pytest.mark.parametrize("left", range(12))
def test_a_disk_that_is_full_takes_the_whole_line_or_nothing(path, left):
    append(path, b"whole")
    with files_end_at(path.stat().st_size + left):
        if left < len(b"next line\n"):
            with pytest.raises(OSError, match=r"No space left|File too large"):
                append(path, b"next line")
            assert path.read_bytes() == b"whole\n"
        else:
            append(path, b"next line")
    append(path, b"last")
    assert read(path) == [b"whole", *[b"next line"] * (left >= 10), b"last"]


def test_a_torn_line_stays_alone_where_the_disk_is_full_too(path):
    path.write_bytes(b"tor")
    with files_end_at(3), pytest.raises(OSError, match="File too large"):
        append(path, b"next")
    append(path, b"next")
    assert read(path) == [b"tor", b"next"]


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "device"])
def test_nothing_but_a_file_of_its_own_is_written_or_read(path, kind):
    other = path.with_name("other")
    if kind == "link":
        other.write_text("keep")
        path.symlink_to(other)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/full")
    for work in (lambda: append(path, b"x"), lambda: read(path)):
        with pytest.raises(OSError, match=r"not a regular file|symbolic links|Is a directory"):
            work()
    assert not other.exists() or other.read_text() == "keep"


def test_one_who_holds_its_lock_stops_nobody_for_long(path):
    append(path, b"one")
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            append(path, b"two")
    append(path, b"two")
    assert read(path) == [b"one", b"two"]


def test_a_reader_meets_every_line_once_while_it_is_rotated(path, monkeypatch):
    for number in range(10):
        append(path, b"%d" % number, full=10)
    real, turned = os.open, []

    def rotated_meanwhile(name, *arguments):
        descriptor = real(name, *arguments)
        if not turned:
            turned.append(True)
            append(path, b"new", full=1)
        return descriptor

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", rotated_meanwhile)
        found = read(path)
    assert found == [b"%d" % number for number in range(10)]


def test_a_line_without_an_end_takes_no_more_memory_than_allowed(path):
    path.write_bytes(b"x" * 1000 + b"\nshort\n")
    assert [len(line) for line in read(path, longest=400)] == [400, 400, 200, 5]
