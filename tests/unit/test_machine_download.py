# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Downloads: resumed, checked, retried where it helps, and told apart where it does not."""

import contextlib
import dataclasses
import errno
import hashlib
import http.client
import http.server
import os
import socket
import socketserver
import ssl
import threading
import time
import urllib.parse

import pytest

from machine import download
from tests import certificates, once

BODY = bytes(range(256)) * 16384  # 4 MiB
SHA256 = hashlib.sha256(BODY).hexdigest()
QUICK = download.Bounds(attempts=3, pause=0.0)
WHOLE = dataclasses.replace(QUICK, size=len(BODY))
SHORT = dataclasses.replace(QUICK, size=4096)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        answer = server.answers.pop(0) if server.answers else "whole"
        if isinstance(answer, int):
            self.send_error(answer)
            return
        if answer.startswith("redirect"):
            self.send_response(302)
            self.send_header("Location", answer.split()[1])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if answer in ("endless", "announced"):
            self.send_response(200)
            if answer == "announced":
                self.send_header("Content-Length", str(1 << 50))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                while True:
                    self.wfile.write(BODY)
        start = 0
        asked = self.headers.get("Range")
        if asked and answer != "no-ranges":
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(BODY):
                self.send_error(416)
                return
            self.send_response(206)
            if answer == "elsewhere":
                start = 0
                self.send_header("Content-Range", f"bytes 0-{len(BODY) - 1}/{len(BODY)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(BODY) - start))
        self.end_headers()
        end = len(BODY) // 2 if answer == "broken" else len(BODY)
        with contextlib.suppress(ConnectionError):  # a client that reads no further
            self.wfile.write(BODY[start:end])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("HTTP", "HTTPS", "NO"):
        monkeypatch.delenv(f"JUJU_CHARM_{name}_PROXY", raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.answers = [], []
    server.url = f"http://127.0.0.1:{server.server_port}/v1/file.tgz"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def passed(marks, *looks):
    """What is reported at these looks: bytes that have arrived, and seconds since the begin."""
    return [marks.passed(have, now) for have, now in looks]


def test_a_slow_one_says_how_far_it_is_every_half_minute():
    marks = download.Marks(0, 4 << 20, 0.0)
    percent = (4 << 20) // 100
    looks = [(percent, 29), (percent, 30), (2 * percent, 59), (3 * percent, 60)]
    assert passed(marks, *looks) == ["", "0 % of 4 MiB", "", "2 % of 4 MiB"]
    assert passed(download.Marks(0, 0, 0.0), (5 << 20, 29), (6 << 20, 30)) == ["", "6 MiB"]


def test_a_fast_one_says_how_far_it_is_at_each_tenth():
    tenth = 10 << 20
    marks = download.Marks(15 << 20, 100 << 20, 0.0)
    looks = [(19 << 20, 1), (2 * tenth, 1), (29 << 20, 1), (5 * tenth, 1), (10 * tenth, 2)]
    assert passed(marks, *looks) == [
        *("", "20 % of 100 MiB", "", "50 % of 100 MiB", "100 % of 100 MiB"),
    ]  # fmt: skip


def test_whole_file_with_progress_and_only_once(server, tmp_path):
    said = []
    for _ in range(2):
        download.fetch(server.url, tmp_path / "file.tgz", SHA256, said.append, QUICK)
    assert (tmp_path / "file.tgz").read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["file.tgz"]
    assert server.asked == [("/v1/file.tgz", None)]
    assert said[-1] == "Downloading file.tgz: 100 % of 4 MiB"
    assert 3 <= len(said) <= 10


@pytest.mark.parametrize("answers", [["broken"], [503, "broken", "whole"], [429, 500]])
def test_passing_errors_are_tried_again_from_where_it_broke(server, tmp_path, answers):
    server.answers = list(answers)
    download.fetch(server.url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)
    assert (tmp_path / "file.tgz").read_bytes() == BODY
    if "broken" in answers:
        assert server.asked[-1][1] == f"bytes={len(BODY) // 2}-"


@pytest.mark.parametrize("have", [1, len(BODY) // 3, len(BODY)])
def test_later_run_goes_on_where_a_killed_one_stopped(server, tmp_path, have):
    (tmp_path / "file.tgz.part").write_bytes(BODY[:have])
    download.fetch(server.url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)
    assert (tmp_path / "file.tgz").read_bytes() == BODY
    assert server.asked == [("/v1/file.tgz", f"bytes={have}-")]


def test_server_without_ranges_sends_it_anew(server, tmp_path):
    (tmp_path / "file.tgz.part").write_bytes(b"x" * (len(BODY) + 7))
    server.answers = ["no-ranges"]
    download.fetch(server.url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)
    assert (tmp_path / "file.tgz").read_bytes() == BODY


def test_wrong_file_is_named_and_thrown_away(server, tmp_path):
    expected = "0" * 64
    with pytest.raises(download.DownloadError) as caught:
        download.fetch(server.url, tmp_path / "file.tgz", expected, lambda _: None, QUICK)
    for part in (server.url, expected, SHA256, "Report this", "do not work around it"):
        assert part in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file.tgz.refused"]


def test_wrong_file_is_not_fetched_at_every_event(server, tmp_path):
    for _ in range(3):
        with pytest.raises(download.DownloadError, match="is not the expected file"):
            download.fetch(server.url, tmp_path / "file.tgz", "0" * 64, lambda _: None, QUICK)
    assert len(server.asked) == 1
    # Another checksum, another address, or an hour later: it is asked again.
    with pytest.raises(download.DownloadError, match="is not the expected file"):
        download.fetch(f"{server.url}?", tmp_path / "file.tgz", "0" * 64, lambda _: None, QUICK)
    hour_ago = time.time() - 3600
    os.utime(tmp_path / "file.tgz.refused", (hour_ago, hour_ago))
    download.fetch(server.url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)
    assert len(server.asked) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["file.tgz"]


def test_beginning_of_another_file_is_thrown_away(server, tmp_path):
    (tmp_path / "file.tgz.part").write_bytes(b"x" * 1000)
    download.fetch(server.url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)
    assert [asked for _, asked in server.asked] == ["bytes=1000-", None]
    assert (tmp_path / "file.tgz").read_bytes() == BODY


def test_server_that_goes_on_elsewhere_is_not_believed(server, tmp_path):
    (tmp_path / "file.tgz.part").write_bytes(BODY[:1000])
    server.answers = ["elsewhere"]
    download.fetch(server.url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)
    assert (tmp_path / "file.tgz").read_bytes() == BODY
    assert [asked for _, asked in server.asked] == ["bytes=1000-", "bytes=1000-"]


@pytest.mark.parametrize("answer", ["endless", "announced"])
def test_body_without_end_is_cut_off(server, tmp_path, answer):
    server.answers = [answer]
    bounds = dataclasses.replace(QUICK, size=len(BODY) * 2)
    with pytest.raises(download.DownloadError, match=r"it is larger than 8 MiB"):
        download.fetch(server.url, tmp_path / "file.tgz", SHA256, lambda _: None, bounds)
    assert list(tmp_path.iterdir()) == []


# What a server says at once, and then a piece each twentieth of a second without end.
BEGUN = b"HTTP/1.1 200 OK\r\n"
SLOW = {
    "100 Continue without end": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "status line": (b"HTTP/1.1 200 O", b"K"),
    "header": (BEGUN + b"X: ", b"x"),
    "headers": (BEGUN, b"X: x\r\n"),
    "trailers": (BEGUN + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: x\r\n"),
    "chunk": (BEGUN + b"Transfer-Encoding: chunked\r\n\r\n1", b"0"),
    "body": (BEGUN + b"\r\n", b"x"),
    "announced body": (BEGUN + b"Content-Length: 100000\r\n\r\n", b"x"),
    "nothing": (b"", b""),
}


class Slow(socketserver.BaseRequestHandler):
    def handle(self):
        begin, more = self.server.says
        self.request.recv(1)
        with contextlib.suppress(OSError):
            self.request.sendall(begin)
            while not self.server.over.wait(0.05):
                self.request.sendall(more)


@pytest.fixture
def slow(monkeypatch):
    for name in ("HTTP", "HTTPS", "NO"):
        monkeypatch.delenv(f"JUJU_CHARM_{name}_PROXY", raising=False)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Slow) as server:
        server.over = threading.Event()
        server.host = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


HASTY = download.Bounds(size=1 << 23, seconds=0.5)


def fetched(url, folder):
    download.fetch(url, folder / "file.tgz", SHA256, lambda _: None, HASTY)


def read(url, folder):
    download.text(url, HASTY, "x")


def ends(work, url, folder):
    began, threads = time.monotonic(), threading.active_count()
    with pytest.raises(download.UnreachableError, match=r"is slow: .*the next event"):
        work(url, folder)
    assert time.monotonic() - began < 3
    assert threading.active_count() <= threads + 1  # the server's
    assert not (folder / "file.tgz.refused").exists()


@pytest.mark.parametrize("work", [fetched, read])
@pytest.mark.parametrize("says", SLOW.values(), ids=SLOW)
def test_server_that_never_comes_to_an_end_is_left(slow, tmp_path, says, work):
    slow.says = says
    ends(work, f"http://{slow.host}/file", tmp_path)


@pytest.mark.parametrize("work", [fetched, read])
def test_tls_that_never_begins_is_left(slow, tmp_path, work):
    slow.says = b"\x16\x03\x03\x40\x00", b"\x0b"
    ends(work, f"https://{slow.host}/file", tmp_path)


@pytest.mark.parametrize("work", [fetched, read])
def test_proxy_that_never_says_whether_it_connects_is_left(slow, tmp_path, monkeypatch, work):
    slow.says = b"HTTP/1.1 200 O", b"K"
    monkeypatch.setenv("JUJU_CHARM_HTTPS_PROXY", f"http://{slow.host}")
    ends(work, "https://releases.invalid/file", tmp_path)


def test_hundred_addresses_where_nobody_answers_take_no_longer(slow, tmp_path, monkeypatch):
    # Of TEST-NET-1 (RFC 5737): packets to it are lost, or refused at once.
    where = [(2, 1, 6, "", (f"192.0.2.{number}", 9)) for number in range(1, 101)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: where)

    class Lost(socket.socket):
        def connect(self, _):
            time.sleep(self.gettimeout())
            raise TimeoutError

    monkeypatch.setattr(socket, "socket", Lost)
    for work in (fetched, read):
        ends(work, "http://releases.test/file", tmp_path)


def test_what_came_slowly_is_kept_for_the_next_event(server, slow, tmp_path):
    slow.says = BEGUN + b"Content-Length: 4194304\r\n\r\n" + BODY[:1000], b""
    ends(fetched, f"http://{slow.host}/file", tmp_path)
    assert (tmp_path / "file.tgz.part").read_bytes() == BODY[:1000]
    download.fetch(server.url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)
    assert server.asked == [("/v1/file.tgz", "bytes=1000-")]
    assert (tmp_path / "file.tgz").read_bytes() == BODY


def test_disk_without_room_is_told_before_it_is_filled(server, tmp_path):
    bounds = dataclasses.replace(QUICK, room=1e9)
    with pytest.raises(download.DownloadError, match=r"need about \d+ MiB more .* make room"):
        download.fetch(server.url, tmp_path / "file.tgz", SHA256, lambda _: None, bounds)
    assert list(tmp_path.iterdir()) == []


def test_disk_that_others_fill_meanwhile_is_not_left_full(server, tmp_path):
    (tmp_path / "file.tgz.part").symlink_to("/dev/full")
    with pytest.raises(download.DownloadError, match="is full: make room there"):
        download.fetch(server.url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)
    assert list(tmp_path.iterdir()) == []


def test_no_redirect_leads_from_https_to_http(server, tmp_path, monkeypatch):
    """Who stands before the other server answers in its place."""
    (tmp_path / "pem").write_text(certificates.made("127.0.0.1", signer=9) + once.rsa_key(1))
    (tmp_path / "ca.crt").write_text(certificates.ca())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pem")
    plain = server.url
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as safe:
        safe.socket = context.wrap_socket(safe.socket, server_side=True)
        safe.asked, safe.answers = [], ["redirect /other", f"redirect {plain}"] * 2
        thread = threading.Thread(target=safe.serve_forever, args=(0.02,))
        thread.start()
        url = f"https://127.0.0.1:{safe.server_port}/file"
        said = "answered 302 redirects to plain HTTP"
        with pytest.raises(download.DownloadError, match=said) as caught:
            download.text(url, QUICK, "Check it")
        assert not caught.value.passes
        with pytest.raises(download.DownloadError, match=said):
            download.fetch(url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)
        assert len(safe.asked) == 4
        download.fetch(url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)
        safe.shutdown()
        thread.join()
    assert server.asked == []


def test_redirects_are_followed_as_far_as_they_lead_to_http(server, tmp_path):
    server.answers = ["redirect /other"]
    download.fetch(server.url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)
    assert server.asked[-1][0] == "/other"
    for where in ("file:///etc/passwd", "ftp://127.0.0.1/x", "/v1/file.tgz"):
        server.answers = [f"redirect {where}"] * 12
        with pytest.raises(download.DownloadError):
            download.fetch(server.url, tmp_path / "b", SHA256, lambda _: None, QUICK)
        assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(("code", "tries"), [(404, 1), (403, 1), (503, 3)])
def test_http_errors_are_told_and_only_passing_ones_repeated(server, tmp_path, code, tries):
    server.answers = [code] * 9
    path = tmp_path / "file.tgz"
    with pytest.raises(download.DownloadError, match=f"the server answered {code}") as caught:
        download.fetch(server.url, path, SHA256, lambda _: None, QUICK, "Check the mirror")
    assert len(server.asked) == tries
    assert str(caught.value).endswith(". Check the mirror") == (tries == 1)


def test_a_route_that_is_lost_in_the_middle_passes(server, tmp_path, monkeypatch):
    def lost(*_):
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    monkeypatch.setattr(http.client.HTTPResponse, "read", lost)
    monkeypatch.setattr(http.client.HTTPResponse, "read1", lost)
    with pytest.raises(download.UnreachableError, match="No route to host"):
        download.text(server.url, WHOLE, "x")
    with pytest.raises(download.UnreachableError, match="No route to host"):
        download.fetch(server.url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)
    assert len(server.asked) == 6


def test_no_server_at_all(server, tmp_path):
    url = "http://127.0.0.1:1/file.tgz"
    with pytest.raises(download.UnreachableError, match=r"Connection refused.*model's proxies"):
        download.fetch(url, tmp_path / "file.tgz", SHA256, lambda _: None, QUICK)


def test_model_proxy_is_used_unless_bypassed(server, tmp_path, monkeypatch):
    netloc = urllib.parse.urlsplit(server.url).netloc
    monkeypatch.setenv("JUJU_CHARM_HTTP_PROXY", f"http://{netloc}")
    monkeypatch.setenv("JUJU_CHARM_NO_PROXY", "10.0.0.1, .direct.test")
    url = "http://releases.invalid/file.tgz"
    download.fetch(url, tmp_path / "a", SHA256, lambda _: None, QUICK)
    assert server.asked == [(url, None)]
    with pytest.raises(download.DownloadError, match="can't be downloaded"):
        download.fetch("http://x.direct.test/b", tmp_path / "b", SHA256, lambda _: None, QUICK)
    assert len(server.asked) == 1


def test_short_text_is_had_at_once(server):
    assert download.text(server.url, WHOLE, "x") == BODY.decode(errors="replace")
    server.answers = [503, "broken", "whole"]
    assert len(download.text(server.url, WHOLE, "x")) == len(BODY)


def test_text_that_is_too_long_is_not_read_to_its_end(server):
    with pytest.raises(download.DownloadError, match=r"larger than 4 KiB\. Check the mirror"):
        download.text(server.url, SHORT, "Check the mirror")
    assert len(server.asked) == 1


@pytest.mark.parametrize(("code", "passes"), [(404, False), (503, True)])
def test_text_that_is_not_there_is_told_with_its_own_remedy(server, code, passes):
    server.answers = [code] * 9
    with pytest.raises(download.DownloadError, match=f"the server answered {code}") as caught:
        download.text(server.url, SHORT, "Check the mirror")
    assert isinstance(caught.value, download.UnreachableError) == passes
    assert ("Check the mirror" in str(caught.value)) != passes


def test_text_that_breaks_off_is_no_text(server):
    server.answers = ["broken"] * 9
    with pytest.raises(download.UnreachableError, match="the connection broke after"):
        download.text(server.url, WHOLE, "x")
