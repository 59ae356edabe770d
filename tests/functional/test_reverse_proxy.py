# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What docs/how-to/reverse-proxy.md says of each proxy, in front of two webs, by the real ones."""

import contextlib
import http.client
import http.server
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest

from tests import certificates, once
from tests.functional.prometheus import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs/how-to/reverse-proxy.md"
UNPACKED = ROOT / ".proxies/usr"
NAME = "ci.example.com"
UPLOAD = 3 << 20  # bytes; nginx takes 1 MiB where nothing else is said
PATIENCE = 30  # seconds
# The pair of RFC 6455, 1.3.
KEY, ACCEPT = "dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


class Web(http.server.BaseHTTPRequestHandler):
    """Answers as Concourse does: events, large bodies, connections that are upgraded."""

    protocol_version = "HTTP/1.1"
    seen = threading.Event()

    def log_message(self, *_):
        pass

    def _say(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")  # so that one that is stopped is away
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Connection", "close")
            self.end_headers()
            for number in range(2):
                self.wfile.write(b"data: %d\n\n" % number)
                self.wfile.flush()
                # The next one comes only when the one before was read at the other end.
                assert number or self.seen.wait(PATIENCE)
            self.close_connection = True
        elif self.headers.get("Upgrade") == "websocket":
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", ACCEPT)
            self.end_headers()
            while said := self.connection.recv(100):
                self.connection.sendall(b"back:" + said)
            self.close_connection = True
        else:
            told = ("Host", "X-Forwarded-For", "X-Forwarded-Proto")
            self._say("\n".join(str(self.headers.get(name)) for name in told).encode())

    def do_PUT(self):
        left = int(self.headers["Content-Length"])
        self.rfile.read(1000)
        self.seen.set()
        left -= 1000
        while left:
            left -= len(self.rfile.read(min(left, 1 << 16)))
        self._say(b"taken")


def program(name):
    """Its path, and the variables that it needs; skips the test where there is none."""
    for folder in ("sbin", "bin"):
        if (UNPACKED / folder / name).exists():
            libraries = next((UNPACKED / "lib").glob("*-linux-gnu"), UNPACKED)
            return str(UNPACKED / folder / name), {"LD_LIBRARY_PATH": str(libraries)}
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if not found:
        pytest.skip(f"there is no {name}: scripts/setup test could not download it")
    return found, {}


def snippet(heading, ports, more):
    """What the page has below a heading, with this test's addresses and files."""
    part = DOCS.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    text = "".join(f"{line[4:]}\n" for line in part.splitlines() if line.startswith("    "))
    for old, new in {"10.0.0.7:8080": f"127.0.0.1:{ports[0]}",
                     "10.0.0.8:8080": f"127.0.0.1:{ports[1]}", **more}.items():  # fmt: skip
        assert old in text, old
        text = text.replace(old, new)
    return text


def nginx(folder, port, ports):
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    own = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    text = snippet("nginx", ports, {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/ssl/ci.pem": f"{folder}/ci.pem", "/etc/ssl/private/ci.key": f"{folder}/ci.key",
    })  # fmt: skip
    user = "user root;" if os.geteuid() == 0 else ""
    config = f"daemon off; {user} pid {folder}/pid; error_log stderr; events {{}}\n"
    (folder / "config").write_text(f"{config}http {{ access_log off; {own}\n{text}\n}}\n")
    return ["-p", folder, "-c", folder / "config"]


def haproxy(folder, port, ports):
    text = snippet("HAProxy", ports, {
        "bind :443": f"bind 127.0.0.1:{port}", "/etc/haproxy/ci.pem": f"{folder}/both.pem",
    })  # fmt: skip
    (folder / "config").write_text(f"global\ndefaults\n  timeout connect 5s\n{text}")
    return ["-db", "-f", folder / "config"]


def caddy(folder, port, ports):
    site = f"https://{NAME}:{port} {{\n  bind 127.0.0.1\n  tls {folder}/ci.pem {folder}/ci.key\n"
    text = snippet("Caddy", ports, {f"{NAME} {{\n": site})
    (folder / "config").write_text(f"{{\n  admin off\n  auto_https disable_redirects\n}}\n{text}")
    return ["run", "--adapter", "caddyfile", "--config", folder / "config"]


@pytest.fixture(params=[nginx, haproxy, caddy], ids=lambda one: one.__name__)
def proxy(request, tmp_path):
    """A proxy by the page, with both webs behind it; its port, and the webs."""
    path, variables = program(request.param.__name__)
    pem, key = certificates.made(NAME, key=1), once.rsa_key(1)
    for name, text in (("ci.pem", pem), ("ci.key", key), ("both.pem", pem + key)):
        (tmp_path / name).write_text(text)
    Web.seen.clear()
    webs = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web) for _ in range(2)]
    port = free_port()
    argv = [path, *request.param(tmp_path, port, [web.server_port for web in webs])]
    with contextlib.ExitStack() as stack:
        for web in webs:
            web.daemon_threads = True
            threading.Thread(target=web.serve_forever, daemon=True).start()
            stack.callback(web.server_close)
            stack.callback(web.shutdown)
        said = stack.enter_context((tmp_path / "said").open("wb"))
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **variables},
        )  # fmt: skip
        stack.callback(child.wait, PATIENCE)
        stack.callback(child.terminate)
        proxy = port, webs
        until(lambda: child.poll() is not None or answers(proxy))
        assert child.poll() is None, (tmp_path / "said").read_text()
        yield proxy


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def connected(proxy):
    context = ssl.create_default_context(cadata=certificates.made(NAME, key=1))
    raw = socket.create_connection(("127.0.0.1", proxy[0]), timeout=PATIENCE)
    try:
        return context.wrap_socket(raw, server_hostname=NAME)
    except OSError:
        raw.close()
        raise


@contextlib.contextmanager
def asked(proxy, method="GET", path="/api/v1/info", **headers):
    connection = http.client.HTTPSConnection(NAME)
    with contextlib.closing(connected(proxy)) as connection.sock:
        connection.putrequest(method, path)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        yield connection


def answers(proxy):
    try:
        with asked(proxy) as connection, connection.getresponse() as answer:
            return answer.status == 200
    except (OSError, http.client.HTTPException):
        return False


def test_events_come_one_by_one(proxy):
    with asked(proxy, path="/events") as connection, connection.getresponse() as answer:
        assert answer.readline() == b"data: 0\n"
        Web.seen.set()
        assert answer.read() == b"\ndata: 1\n\n"


def test_a_session_is_upgraded_and_speaks_both_ways(proxy):
    with connected(proxy) as session:
        session.sendall(
            f"GET /hijack HTTP/1.1\r\nHost: {NAME}\r\nConnection: Upgrade\r\n"
            f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
            "\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += session.recv(1)
        assert head.startswith(b"HTTP/1.1 101 ")
        for word in (b"one", b"two"):
            session.sendall(word)
            assert session.recv(100) == b"back:" + word


def test_an_upload_of_any_size_is_handed_on_as_it_comes(proxy):
    with asked(proxy, "PUT", "/upload", Content_Length=str(UPLOAD)) as connection:
        connection.send(b"x" * (UPLOAD >> 1))
        assert Web.seen.wait(PATIENCE), "the proxy keeps it until it is whole"
        connection.send(b"x" * (UPLOAD >> 1))
        with connection.getresponse() as answer:
            assert answer.read() == b"taken"


def test_web_hears_who_asks_and_for_what(proxy):
    with asked(proxy) as connection, connection.getresponse() as answer:
        host, asker, _ = answer.read().decode().split("\n")
    assert host.partition(":")[0] == NAME
    assert asker == "127.0.0.1"


def test_one_web_is_enough(proxy):
    assert answers(proxy)
    first, second = proxy[1]
    first.shutdown()
    first.server_close()
    until(lambda: all(answers(proxy) for _ in range(4)))
    second.shutdown()
    second.server_close()
    until(lambda: not answers(proxy))
