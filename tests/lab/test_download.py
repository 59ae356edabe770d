# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""`lab fetch concourse` against a server of the test's own."""

import hashlib
import http.server
import threading

import pytest

from tests.lab import download
from tests.lab.errors import LabError

RELEASE = bytes(range(256)) * 5000


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A server of the release; `stop_after` bytes it ends the connection."""

    class Handler(http.server.BaseHTTPRequestHandler):
        stop_after = len(RELEASE)
        asked: list[str] = []  # noqa: RUF012  # New with each test's class.

        def do_GET(self):
            begin = int(self.headers.get("Range", "bytes=0-")[6:-1])
            self.asked.append(self.headers.get("Range", "all"))
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(len(RELEASE) - begin))
            self.end_headers()
            self.wfile.write(RELEASE[begin : max(begin, self.stop_after)])

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(download, "URL", f"http://127.0.0.1:{httpd.server_port}/release.tgz")
        monkeypatch.setattr(download, "SIZE", len(RELEASE))
        monkeypatch.setattr(download, "SHA256", hashlib.sha256(RELEASE).hexdigest())
        monkeypatch.setattr(download, "CACHED", tmp_path / "cache/release.tgz")
        yield Handler
        httpd.shutdown()


def test_a_release_is_fetched_once(server):
    path = download.fetch(print)
    assert path.read_bytes() == RELEASE
    assert download.fetch(print) == path
    assert server.asked == ["all"]


def test_an_interrupted_download_goes_on_where_it_ended(server):
    server.stop_after = 1_000_000
    with pytest.raises(LabError, match="the connection ended after 1000000 of 1280000 bytes"):
        download.fetch(print)
    server.stop_after = len(RELEASE)
    assert download.fetch(print).read_bytes() == RELEASE
    assert server.asked == ["all", "bytes=1000000-"]


def test_another_file_than_the_pinned_one_is_thrown_away(server, monkeypatch):
    monkeypatch.setattr(download, "SHA256", "0" * 64)
    with pytest.raises(LabError, match="it was deleted"):
        download.fetch(print)
    assert list(download.CACHED.parent.iterdir()) == []
