# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A key is revoked where no key can be added, and by a web that is too busy to answer."""

import errno
import os
import socket

import pytest

from ci.concourse.web import health as web_health
from ci.concourse.web import web
from machine import files, systemd


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


@pytest.mark.parametrize(("listens", "done"), [(True, "SIGHUP"), (False, "restart")])
def test_a_web_that_is_slow_to_answer_is_told_and_one_that_still_starts_begins_anew(
    tmp_path, monkeypatch, listens, done
):
    calls = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = tmp_path / "web.env"
        settings.write_text(f"CONCOURSE_BIND_PORT={server.getsockname()[1]}\n")
        if not listens:
            server.close()
        for module, name, answer in (
            (web_health, "ENVIRONMENT", settings),
            (web, "AUTHORIZED", tmp_path / "authorized"),
            (web, "_READ", tmp_path / "run/read"),
            (web, "_restart", lambda: calls.append("restart")),
            (systemd, "main_pid", lambda _: 7),
            (systemd, "signal", lambda _, sig: calls.append(sig)),
            (files, "ensure_file", lambda path, content, **_: path.write_text(content)),
        ):
            monkeypatch.setattr(module, name, answer)
        (tmp_path / "authorized").write_text("ssh-rsa one\n")
        assert not web_health.healthy()
        web.authorize(["ssh-rsa one", "ssh-rsa two"])
        web.authorize(["ssh-rsa one", "ssh-rsa two"])
    assert calls == [done]
