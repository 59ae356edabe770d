# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A key is revoked on a machine whose disk is full, where no key can be added."""

import errno
import os

import pytest

from ci.concourse import web
from machine import files


@pytest.fixture
def known(tmp_path, monkeypatch):
    """Web's file of keys, on a disk that is full."""
    path = tmp_path / "authorized_worker_keys"
    path.write_text("ssh-rsa one\nssh-rsa two\nssh-rsa three\n")
    reloads = []

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(web, "AUTHORIZED", path)
    monkeypatch.setattr(web, "_reload_keys", lambda: reloads.append(path.read_text()))
    monkeypatch.setattr(files, "ensure_file", full)
    return path, reloads


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (["ssh-rsa one", "ssh-rsa three"], "ssh-rsa one\nssh-rsa three\n"),
        (["ssh-rsa four", "ssh-rsa two"], "ssh-rsa two\n"),
        ([], ""),
    ],
)
def test_a_key_is_revoked_on_a_full_disk(known, wanted, left):
    path, reloads = known
    with pytest.raises(OSError, match="No space left"):
        web.authorize(wanted)
    assert path.read_text() == left
    assert reloads == [left]


def test_nothing_is_revoked_where_a_key_only_comes(known):
    path, reloads = known
    before = path.read_text()
    with pytest.raises(OSError, match="No space left"):
        web.authorize([*before.splitlines(), "ssh-rsa four"])
    assert path.read_text() == before
    assert reloads == []


def test_only_less_can_be_written_in_its_place(tmp_path):
    path = tmp_path / "file"
    path.write_text("a\nb\n")
    with pytest.raises(ValueError, match="would be longer"):
        files.shorten(path, "a\nb\nc\n")
    assert path.read_text() == "a\nb\n"
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        files.shorten(link, "")
