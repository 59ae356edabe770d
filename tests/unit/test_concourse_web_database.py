# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The web's database: over TLS, on several hosts, away and back, with other credentials."""

import contextlib
import dataclasses
import http.server
import json
import socket
import threading

import pytest
from ops import testing

from ci.concourse.web import files as web_files
from ci.concourse.web import health as web_health
from ci.concourse.web.local_postgresql import LocalDatabase
from ci.concourse.web.postgresql_server import Server
from relations.model import Database
from tests import certificates
from tests.unit.situations import DATABASE, WEB, database, make_plan, state, unit

CA = certificates.ca()
GOOD = {"endpoints": "10.0.0.9:5432", "username": "u", "password": "p"}


def read(context, rooms, **data):
    """What web is told of a database, and what status says."""
    relation = database(**{**GOOD, **data})
    after = context.run(context.on.relation_changed(relation), state("web", [relation]))
    return rooms.web and rooms.web.database, after.unit_status


@pytest.mark.parametrize(
    ("endpoints", "host", "others"),
    [
        ("10.0.0.9:5432", "10.0.0.9", ()),
        ("10.0.0.9:5432, 10.0.0.8:5432,10.0.0.9:5432", "10.0.0.9", ("10.0.0.8",)),
        ("[fd00::1]:5432,db.example.com:5432", "fd00::1", ("db.example.com",)),
        # Concourse has one port for all hosts.
        ("10.0.0.9:5432,10.0.0.8:6432", "10.0.0.9", ()),
    ],
)
def test_each_host_of_a_cluster_is_used(context, rooms, endpoints, host, others):
    told, _ = read(context, rooms, endpoints=endpoints)
    assert (told.host, told.others, told.port) == (host, others, 5432)


@pytest.mark.parametrize(
    "data",
    [
        {"endpoints": "10.0.0.9:5432,"},
        {"endpoints": "10.0.0.9:5432,10.0.0.8"},
        {"endpoints": "10.0.0.9:5432,a b:5432"},
        {"endpoints": "10.0.0.9:0"},
        {"endpoints": "10.0.0.9:65536"},
        {"endpoints": "10.0.0.9:5432\nCONCOURSE_X=1"},
        {"tls": "True", "tls-ca": "PEM"},
        {"tls": "True", "tls-ca": CA.replace("MII", "AAA", 1)},
        {"tls": "True", "tls-ca": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"},
    ],
)
def test_what_can_not_be_used_is_waited_for(context, rooms, data):
    told, status = read(context, rooms, **data)
    assert told is None
    why = "tls-ca is not a certificate in PEM" if "tls" in data else "endpoints is not a list of "
    assert status.name == "waiting"
    assert status.message.startswith(f"Waiting for usable data from the database ({why}")


@pytest.mark.parametrize("key", ["endpoints", "username", "password"])
def test_what_is_not_there_yet_is_waited_for(context, rooms, key):
    told, status = read(context, rooms, **{key: ""})
    assert told is None
    assert status == testing.WaitingStatus("Waiting for the database's address and credentials")


@pytest.mark.parametrize(
    ("host", "others", "tls", "ca", "mode"),
    [
        ("10.0.0.9", (), False, "", "disable"),
        # No downgrade: the certificate counts only where the other side says that it has TLS.
        ("10.0.0.9", (), True, "", "require"),
        ("10.0.0.9", (), True, CA, "verify-ca"),
        ("fd00::1", (), True, CA, "verify-ca"),
        ("db.example.com", (), True, CA, "verify-full"),
        ("db.example.com", ("10.0.0.8",), True, CA, "verify-ca"),
        ("a.example.com", ("b.example.com",), True, CA, "verify-full"),
    ],
)
def test_the_server_is_verified_by_its_name_where_it_has_one(host, others, tls, ca, mode):
    one = Database(host, 5432, "c", "u", "p", tls=tls, ca=ca, others=others)
    made = make_plan(unit("web", web=dataclasses.replace(WEB, database=one))).ci.own.web
    assert web_files.Files().settings(made)["sslmode"] == mode
    assert web_files.Files().settings(made)["hosts"] == ",".join((host, *others))


def test_other_credentials_are_taken_when_their_secret_changes(context, rooms):
    secret = testing.Secret(
        {"username": "u", "password": "old"}, latest_content={"username": "u", "password": "new"}
    )
    relation = database(endpoints="10.0.0.9:5432", **{"secret-user": secret.id})
    before = dataclasses.replace(state("web", [relation]), secrets=[secret])
    context.run(context.on.secret_changed(secret), before)
    assert rooms.web.database.password == "new"
    assert "new" not in repr(rooms.web)


def test_without_the_relation_web_is_taken_away(context, rooms):
    context.run(context.on.config_changed(), state("web", [database(**GOOD)]))
    rooms.calls.clear()
    after = context.run(context.on.config_changed(), state("web"))
    assert "web.remove" in rooms.calls
    assert after.unit_status.message.startswith("Waiting for a database: juju integrate")


class KilledServer(Server):
    """PostgreSQL for whose start the hook waits when it is killed."""

    def is_installed(self):
        return True

    def ensure(self, note):
        raise InterruptedError


def test_a_database_that_web_uses_again_does_not_look_unused_after_a_killed_hook(tmp_path):
    database = LocalDatabase(tmp_path, KilledServer())
    (tmp_path / "local-postgresql").write_text("15")
    assert database.note_unused()
    assert "unused since" in database.kept()
    with pytest.raises(InterruptedError):
        database.ensure(lambda _: None)
    assert database.kept() == "concourse"


def test_a_lost_database_is_waited_for_with_its_address(context, rooms):
    rooms.lost_database = "10.0.0.9:5432 (connection refused)"
    before = state("web", [database(**GOOD)])
    lost = context.run(context.on.update_status(), before)
    assert lost.unit_status == testing.WaitingStatus(
        "Web cannot reach its database: 10.0.0.9:5432 (connection refused)"
    )
    rooms.lost_database = ""
    back = context.run(context.on.update_status(), lost)
    assert back.unit_status == testing.ActiveStatus("Web ready")


class Web:
    """A web with its settings, and its answers by path."""

    def __init__(self, folder):
        self.environment, self.note = folder / "web.env", folder / "run/lost"
        self.answers, self.forgotten = {}, []

    def told(self, **settings):
        """Have these settings, named as Concourse does."""
        lines = [f"CONCOURSE_{name}={value}\n" for name, value in settings.items()]
        self.environment.write_text("".join(lines))

    def lost(self):
        return web_health.lost_database(self.environment, self.note, self.forgotten.append)

    @contextlib.contextmanager
    def answering(self):
        """Serve; give the port."""
        answers = self.answers

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                found = json.dumps(answers.get(self.path)).encode()
                self.send_response(200 if self.path in answers else 404)
                self.send_header("Content-Length", str(len(found)))
                self.end_headers()
                self.wfile.write(found)

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
            threading.Thread(target=serving.serve_forever, args=[0.02], daemon=True).start()
            yield serving.server_port
            serving.shutdown()


@pytest.fixture
def web(tmp_path):
    return Web(tmp_path)


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def test_no_web_has_no_database_to_lose(web):
    assert web.lost() == ""


def test_one_host_that_answers_is_enough(web, server):
    port = server.getsockname()[1]
    web.told(POSTGRES_HOST="127.0.0.2,127.0.0.1", POSTGRES_PORT=port)
    assert web.lost() == ""
    server.close()
    assert web.lost() == (
        f"127.0.0.2:{port} (connection refused) and 127.0.0.1:{port} (connection refused)"
    )


def test_a_name_that_nobody_knows_and_a_socket_that_is_not_there(web, tmp_path):
    web.told(POSTGRES_HOST="nowhere.invalid", POSTGRES_PORT=1)
    assert web.lost() == "nowhere.invalid:1 (its name is not known)"
    web.told(POSTGRES_SOCKET=tmp_path)
    assert web.lost() == f"at {tmp_path} (no such file or directory)"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, ""),
        ([], ""),
        ({"database": None}, ""),
        ({"database": {"status": "healthy"}}, ""),
        (
            {"database": {"status": "unhealthy", "error": "database is read-only"}},
            "127.0.0.1 (web says: database is read-only)",
        ),
    ],
)
def test_what_web_itself_says_of_its_database(web, server, answer, said):
    web.answers["/api/v1/health"] = answer
    with web.answering() as port:
        database = server.getsockname()[1]
        web.told(BIND_PORT=port, POSTGRES_HOST="127.0.0.1", POSTGRES_PORT=database)
        assert web.lost() == said


def test_ends_of_a_web_without_its_database_count_no_more_once_both_are_back(web, server):
    with web.answering() as port:
        web.told(BIND_PORT=port, POSTGRES_HOST="127.0.0.1", POSTGRES_PORT=closed_port())
        for _ in range(2):
            assert web.lost()
        database = server.getsockname()[1]
        web.told(BIND_PORT=port, POSTGRES_HOST="127.0.0.1", POSTGRES_PORT=database)
        assert web.lost() == ""
        assert web.forgotten == [], "web has not come back yet: it may fail for something else"
        web.answers["/api/v1/info"] = {}
        for _ in range(2):
            assert web.lost() == ""
    assert web.forgotten == ["concourse-web.service"]


def test_the_password_is_in_no_picture_of_the_plan():
    made = make_plan(unit("web", web=WEB))
    assert DATABASE.password == "p"
    assert "password='p'" not in repr(made)
