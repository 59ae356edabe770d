# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A log that grows is read line by line: none is lost, told twice, or without end."""

import os
import pathlib

import pytest

from machine.log_tail import Followed


@pytest.fixture
def log(tmp_path):
    return tmp_path / "a.log"


def append(log, text):
    with pathlib.Path(log).open("a") as file:
        file.write(text)


def test_from_its_end_on(log):
    append(log, "old\n")
    follower = Followed(log)
    assert follower.lines() == []
    append(log, "1\n2\n")
    assert follower.lines() == [b"1", b"2"]
    assert follower.lines() == []


def test_from_some_bytes_before_that(log):
    append(log, "old\nolder\n")
    assert Followed(log, before=8).lines() == [b"d", b"older"]
    assert Followed(log, before=6).lines() == [b"older"]
    assert Followed(log, before=1000).lines() == [b"old", b"older"]


def test_a_log_that_comes_later_is_read_from_its_beginning(log):
    follower = Followed(log)
    assert follower.lines() == []
    append(log, "1\n")
    assert follower.lines() == [b"1"]


def test_nothing_is_lost_or_told_twice_when_it_is_rotated(log):
    follower = Followed(log)
    append(log, "1\n")
    assert follower.lines() == [b"1"]
    append(log, "2\n")
    log.rename(f"{log}.1")
    append(f"{log}.1", "3\n")  # by somebody who had it open
    assert follower.lines() == [b"2", b"3"]
    append(log, "4\n")
    assert follower.lines() == [b"4"]
    assert follower.lines() == []


def test_a_line_cut_off_by_a_full_disk_does_not_hold_up_the_next_log(log):
    follower = Followed(log)
    append(log, "1\nhal")
    assert follower.lines() == [b"1"]
    log.rename(f"{log}.1")
    append(log, "2\n")
    assert follower.lines() == [b"2"]


def test_half_a_line_waits_for_its_other_half(log):
    follower = Followed(log)
    append(log, "ha")
    assert follower.lines() == []
    append(log, "lf\n")
    assert follower.lines() == [b"half"]


def test_a_log_that_was_emptied_is_read_anew(log):
    follower = Followed(log)
    append(log, "1\n2\n3")
    follower.lines()
    log.write_text("4\n")
    assert follower.lines() == [b"4"]


def test_a_line_without_end_takes_no_memory_and_is_left_out(log):
    follower = Followed(log)
    append(log, "x" * (5 << 20) + "\n1\n")
    found = []
    for _ in range(10):
        found += follower.lines()
        assert len(follower._rest) <= 1 << 18
    assert found == [b"1"]


def test_a_link_is_not_followed(log, tmp_path):
    log.symlink_to(tmp_path / "secret")
    follower = Followed(log)
    with pytest.raises(OSError, match="symbolic links"):
        follower.lines()


def test_no_descriptor_stays_open(log):
    before = len(os.listdir("/proc/self/fd"))
    append(log, "1\n")
    follower = Followed(log)
    for number in range(20):
        log.rename(f"{log}.{number}")
        append(log, "1\n")
        assert follower.lines() == [b"1"]
    follower.close()
    assert len(os.listdir("/proc/self/fd")) == before
