# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A server that speaks PostgreSQL's protocol as it likes, against a backup's real programs."""

import contextlib
import socketserver
import struct
import threading
import time

import pytest

from ci.concourse import service
from ci.concourse.backup import database
from ci.concourse.web import database_tls, web
from ci.concourse.web import health as web_health
from tests.functional import postgresql

pytestmark = postgresql.NEEDS


def message(kind, body):
    """PostgreSQL 15, 55.7: a letter, the length with itself, what it says."""
    return kind + struct.pack("!i", len(body) + 4) + body


READY = message(b"R", struct.pack("!i", 0)) + message(b"Z", b"I")
NOTICE = message(b"N", b"SWARNING\0VWARNING\0C01000\0M" + b"x" * 8000 + b"\0\0")
COLUMN = message(b"T", struct.pack("!h", 1) + b"a\0" + struct.pack("!ihihih", 0, 0, 25, -1, -1, 0))


def row(text):
    return message(b"D", struct.pack("!hi", 1, len(text)) + text)


ODD = COLUMN + row(b"15.2; \x1b[2J") + message(b"C", b"SHOW\0") + message(b"Z", b"I")
# What it says at once, then again and again, and how long it waits before that; None: for a
# question.
SERVERS = {
    "never answers": (b"", b"", 0.1),
    "byte by byte": (READY[:1], b"\0", 0.1),
    "notices without end": (READY, NOTICE * 100, 0.0),
    "rows without end": (READY + COLUMN, row(b"x" * 8000) * 100, 0.0),
    "odd version": (READY, ODD, None),
    "no protocol": (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", 0.1),
    "hangs up": (None, b"", 0.0),
}


class Hostile(socketserver.BaseRequestHandler):
    def handle(self):
        begin, more, pause = self.server.says
        with contextlib.suppress(OSError):
            self.request.recv(65536)
            if begin is None:
                return
            self.request.sendall(begin)
            while not self.server.over.wait(pause or 0.0):
                if pause is None and not self.request.recv(65536):
                    return
                self.request.sendall(more)


@pytest.fixture
def server(monkeypatch, tmp_path):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Hostile) as server:
        server.daemon_threads = True
        server.over = threading.Event()
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        settings = {
            "CONCOURSE_POSTGRES_HOST": "127.0.0.1",
            "CONCOURSE_POSTGRES_PORT": str(server.server_address[1]),
            "CONCOURSE_POSTGRES_DATABASE": "concourse",
            "CONCOURSE_POSTGRES_USER": "web",
            "CONCOURSE_POSTGRES_PASSWORD": "password",
            "CONCOURSE_POSTGRES_SSLMODE": "disable",
        }
        monkeypatch.setattr(service, "USER", "root")
        monkeypatch.setattr(database, "_ACCESS", tmp_path / "access")
        monkeypatch.setattr(database, "_LOOK", 3.0)
        monkeypatch.setattr(database, "_LONG", 3.0)
        monkeypatch.setattr(web, "uses_local_database", lambda: False)
        monkeypatch.setattr(web, "database_settings", lambda: settings)
        monkeypatch.setattr(service, "setting", lambda _, name: settings.get(name))
        monkeypatch.setattr(web_health, "healthy", lambda _: False)
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


def version():
    """As before each restore."""
    with database._reported("loaded; nothing was changed"):
        database._server()


@pytest.mark.parametrize("says", SERVERS.values(), ids=SERVERS)
def test_it_holds_nobody_up_and_is_told(server, tmp_path, says):
    server.says = says
    folder = tmp_path / "backups/.work"
    folder.mkdir(parents=True)
    for work in (
        lambda: database.save(folder / "dump"),
        version,
    ):
        start = time.monotonic()
        with pytest.raises(database.DatabaseError) as failed:
            work()
        assert time.monotonic() - start < 20
        assert str(failed.value).isprintable()
    start = time.monotonic()
    assert web_health.unreachable_database() == ""
    for mode in ("require", "verify-full"):
        database_tls.refusal("127.0.0.1", server.server_address[1], mode, "", 1.0)
    assert time.monotonic() - start < 20


def test_many_hosts_that_never_answer_hold_no_hook_up(server, monkeypatch):
    server.says = SERVERS["hangs up"]
    settings = web.database_settings()
    monkeypatch.setitem(settings, "CONCOURSE_POSTGRES_HOST", ",".join(["127.0.0.1"] * 100))
    monkeypatch.setattr(web_health, "_distrust", lambda *_: time.sleep(2) or "no answer")
    start = time.monotonic()
    assert "others, not tried" in web_health.unreachable_database()
    assert time.monotonic() - start < 30
