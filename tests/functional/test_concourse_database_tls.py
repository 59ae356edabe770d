# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What is said of a database that web does not trust, asked of a real PostgreSQL with TLS."""

import contextlib
import socket
import threading

import pytest

from ci.concourse.web import health as web_health
from tests import certificates
from tests.functional import postgresql

pytestmark = postgresql.NEEDS

REFUSED = "its certificate is refused with the relation's tls-ca: "


@pytest.fixture(scope="module")
def server():
    with postgresql.running() as server:
        yield server


@pytest.fixture
def said(tmp_path):
    """A function: what is said with these settings of a web that does not answer."""
    environment = tmp_path / "web.env"

    def said(port, mode, ca="", host="127.0.0.1"):
        (tmp_path / "ca.pem").write_text(ca)
        values = {"HOST": host, "PORT": port, "SSLMODE": mode, "CA_CERT": tmp_path / "ca.pem"}
        lines = [f"CONCOURSE_POSTGRES_{name}={value}\n" for name, value in values.items()]
        environment.write_text("".join(lines))
        found = web_health.unreachable_database(environment)
        assert not found or found.startswith(f"{host}:{port} ("), found
        return found.removeprefix(f"{host}:{port} (").removesuffix(")")

    return said


def test_a_certificate_of_the_relations_ca_is_trusted(server, said):
    for mode in ("verify-full", "verify-ca"):
        assert said(server.port, mode, server.ca.read_text()) == ""


def test_one_of_another_ca_is_refused_in_words_as_the_certificate(server, said):
    for mode in ("verify-full", "verify-ca"):
        assert said(server.port, mode, certificates.ca()).startswith(REFUSED)
    # Without a CA the relation asks for no more than TLS.
    assert said(server.port, "require") == ""
    assert said(server.port, "disable") == ""


def test_one_for_another_name_is_refused_where_the_name_counts(server, said):
    ca = server.ca.read_text()
    assert "ostname mismatch" in said(server.port, "verify-full", ca, "localhost")
    assert said(server.port, "verify-ca", ca, "localhost") == ""


def test_a_web_that_answers_is_believed(server, said, monkeypatch):
    monkeypatch.setattr(web_health, "healthy", lambda _: True)
    assert said(server.port, "verify-full", certificates.ca()) == ""


@pytest.mark.parametrize(
    ("answer", "words"),
    [(b"N", "it speaks no TLS, and the relation says that it does"), (b"", ""), (b"Sx", "")],
)
def test_a_server_without_tls_is_said_so_and_what_is_no_postgresql_is_not_judged(
    said, answer, words
):
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listening.getsockname()[1]

        def serve():
            # The first is the look at whether anybody is there.
            for given in (b"", answer):
                with listening.accept()[0] as one:
                    if given:
                        one.recv(8)
                        one.sendall(given)

        thread = threading.Thread(target=serve)
        thread.start()
        stack.callback(thread.join, 60)
        assert said(port, "require") == words
