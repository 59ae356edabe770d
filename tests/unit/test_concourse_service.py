# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What web and worker have in common: whether a service answers."""

import errno
import http.server
import resource
import threading
import time

import pytest

from ci.concourse import service
from tests.unit.test_concourse_build_info import drip_headers


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/drip":
            drip_headers(self)
            return
        self.send_response(200 if self.path == "/" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def port():
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_a_service_answers_with_200_or_not_at_all(port):
    assert service.answers(port, "/")
    assert not service.answers(port, "/else")
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as other:
        closed = other.server_address[1]
    assert not service.answers(closed, "/")


def test_a_service_that_says_a_byte_now_and_then_holds_up_no_hook(port):
    """Another user's program may have the port of a worker that does not run."""
    begun = time.monotonic()
    assert not service.answers(port, "/drip")
    assert service.asked(port, "/drip", 1.0) is None
    assert time.monotonic() - begun < 30


def test_a_service_that_can_not_be_asked_has_not_failed_to_answer():
    """Web would be restarted for new keys, in place of a signal, though it is well."""
    number, usual = 0, resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, usual[1]))
    try:
        service.answers(1, "/")
    except OSError as error:
        number = error.errno
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert number == errno.EMFILE
