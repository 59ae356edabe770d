# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The same conversations over HTTP, with a server in this process."""

import collections.abc
import http.server
import json
import threading

import pytest

from ci.runners import http as talking
from ci.runners.github import GitHub
from ci.runners.github_app import App
from ci.runners.service import Fault, Remote, ServiceError
from tests.unit.github_rig import pem

_SECONDS = 10.0


class Server(http.server.ThreadingHTTPServer):
    """A server of GitHub's API that knows an App and a runner.

    Attributes:
        asked: what was asked for, with the header Authorization.
        status: of the answers about runners.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, str]] = []
        self.status = 200


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Be silent."""

    def do_POST(self) -> None:
        """Give a token; a request without a length is refused, as by GitHub."""
        length = self.headers.get("Content-Length")
        body = {"token": "ghs_made", "expires_at": "2099-01-01T00:00:00Z"}
        self._answer(201 if length == "0" else 411, body)

    def do_GET(self) -> None:
        """List a runner."""
        is_old = self.headers.get("If-None-Match") == '"1"'
        body = {"total_count": 1, "runners": [{"id": 5, "name": "host-0-ab12"}]}
        self._answer(304 if is_old else self.server.status, None if is_old else body)

    def _answer(self, status: int, body: object) -> None:
        version = self.headers.get("X-GitHub-Api-Version", "")
        self.server.asked.append((self.path, self.headers["Authorization"], version))
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("X-RateLimit-Remaining", "0")
        self.send_header("X-RateLimit-Reset", "4102444800")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server() -> collections.abc.Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def github(server: Server) -> GitHub:
    """Return this server as a GitHub Enterprise Server."""
    return GitHub(f"http://127.0.0.1:{server.server_port}", "acme", App("1", "77", pem()))


def test_headers_arrive_on_both_sides(server: Server) -> None:
    service = github(server)
    for _ in range(2):
        # The second answer is 304, which has no list.
        found = talking.talk(service.url, service.runners(), _SECONDS)
        assert found == (Remote("5", "host-0-ab12"),)
    token, first, second = server.asked
    assert token[0] == "/api/v3/app/installations/77/access_tokens"
    path = "/api/v3/orgs/acme/actions/runners?per_page=100&page=1"
    assert first == second == (path, "Bearer ghs_made", "2022-11-28")


def test_the_headers_of_githubs_limit_are_read(server: Server) -> None:
    service, server.status = github(server), 403
    with pytest.raises(ServiceError) as caught:
        talking.talk(service.url, service.runners(), _SECONDS)
    assert (caught.value.fault, caught.value.retry_after) == (Fault.BUSY, 3600)
