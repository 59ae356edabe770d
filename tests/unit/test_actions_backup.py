# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The actions that save a web and bring it back, at the charm's door."""

import dataclasses
import json

import pytest
from ops import testing

from ci.concourse import release
from ci.concourse.backup import archive
from ci.concourse.backup import backup as action
from ci.concourse.web.local_postgresql import LocalDatabase
from tests.unit.situations import HOST_PEM, state
from tests.unit.situations import database as related

OTHERS = "another-password"
NAMES = {"admin_password": "x", "tsa_host_key": "x", "session_signing_key": "x"}
NO_KEYS = json.dumps({"keys": NAMES, "encryption": {}}).encode()
ASIDE = "concourse_20261123_190501"


class Table:
    """The content of web's database, which is a file here."""

    def __init__(self, path):
        self.path = path
        path.write_text("pipelines")

    def check_programs(self):
        pass

    def save(self, path):
        path.write_text(self.path.read_text())

    def check(self, _):
        pass

    def load(self, dump, *_):
        before, _ = self.path.read_text(), self.path.write_text(dump.read_text())
        return f"schema of {before}"


class Tables:
    """The version of the tables, which each release can use here."""

    def current(self, _):
        return 7

    known = current


class Postgresql:
    """PostgreSQL on the machine, which answers each statement so."""

    def __init__(self, answer=""):
        self.told, self.answer = [], answer

    def is_installed(self):
        return True

    def ensure(self, _):
        return False

    def run(self, statement):
        self.told.append(statement)
        return self.answer


@pytest.fixture
def unit(context, rooms, tmp_path):
    """A web that is ready, whose database is a file."""
    table = Table(tmp_path / "table")
    here = release.Release("8.3.0", tmp_path)
    stop = rooms.note("stopped", answer=True)
    backups = action.Backups(tmp_path / "backups", lambda: here, table, Tables(), stop)
    rooms.hand_in(backups=backups)
    rooms.table = table.path
    return context.run(context.on.update_status(), state("web", [related()], leader=True))


def run(context, action_name, before, **params):
    after = context.run(context.on.action(action_name, params=params), before)
    return dict(context.action_results), after


def keys(after):
    (found,) = (one for one in after.secrets if "tsa-host-key" in one.latest_content)
    return found.latest_content


def test_web_is_saved_and_brought_back_with_the_keys_that_its_workers_know(
    context, rooms, unit, tmp_path
):
    had = keys(unit)
    path = str(tmp_path / "backups/b.tar")
    saved, _ = run(context, "backup", unit, path=path)
    assert (saved["path"], saved["concourse"]) == (path, "8.3.0")
    assert not any(secret in str(saved) for secret in had.values())
    assert saved["next"].startswith("juju ssh --pty=false unit/0 sudo cat "), "through no terminal"

    rooms.table.write_text("nothing yet")
    other = {**had, "admin-password": OTHERS, "tsa-host-key": had["session-signing-key"]}
    (secret,) = (one for one in unit.secrets if "tsa-host-key" in one.latest_content)
    fresh = dataclasses.replace(secret, latest_content=other, tracked_content=other)
    done, after = run(
        context, "restore", dataclasses.replace(unit, secrets=[fresh]), path=path, confirm="unit"
    )
    assert rooms.table.read_text() == "pipelines"
    assert done["was"] == "kept as schema of nothing yet"
    assert keys(after) == had
    assert "web.apply" in rooms.calls[rooms.calls.index("stopped") :], "it runs again"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"path": "/etc/shadow", "confirm": "unit"},
            r"is not allowed: use .*/backups/<name>\.tar",
        ),
        ({"path": "{0}/none.tar", "confirm": "unit"}, "none.tar: No such file or directory"),
        ({"path": "{0}/none.tar", "confirm": "web"}, "confirm=unit replaces all pipelines"),
    ],
)
def test_what_can_not_be_restored_fails_in_words_and_web_runs_on(
    context, rooms, unit, tmp_path, params, words
):
    params = {name: text.format(tmp_path / "backups") for name, text in params.items()}
    with pytest.raises(testing.ActionFailed, match=words):
        run(context, "restore", unit, **params)
    assert "stopped" not in rooms.calls
    assert rooms.table.read_text() == "pipelines"


@pytest.mark.parametrize(
    "wrong",
    [
        *({"worker-keys": None}, {"database.dump": None}, {"secrets.json": None}),
        *({"secrets.json": b"{}"}, {"secrets.json": b'{"keys": {}, "encryption": {}}'}),
        {"secrets.json": NO_KEYS},
    ],
    ids=str,
)
def test_a_file_that_somebody_made_changes_nothing(context, rooms, unit, tmp_path, wrong):
    """Whole, and of our kind, but it is no backup."""
    kept = {"keys": {**NAMES, **dict.fromkeys(("tsa_host_key", "session_signing_key"), HOST_PEM)}}
    members = {
        "secrets.json": json.dumps({**kept, "encryption": {}}).encode(),
        "worker-keys": b"",
        "database.dump": b"others",
        **wrong,
    }
    about = {"unit": "web/0", "time": "now", "concourse": "8.3.0", "schema": "7"}
    (tmp_path / "backups").mkdir()
    path = tmp_path / "backups/b.tar"
    there = {name: content for name, content in members.items() if content is not None}
    archive.write(path, action._KIND, about, there)
    with pytest.raises(testing.ActionFailed, match="is not one of this charm's backups"):
        run(context, "restore", unit, path=str(path), confirm="unit")
    assert "stopped" not in rooms.calls
    assert rooms.table.read_text() == "pipelines"


def test_a_worker_has_nothing_to_save(context, rooms):
    with pytest.raises(testing.ActionFailed, match="runs no web"):
        run(context, "backup", state())


def test_database_that_made_place_is_shown_and_goes_by_its_name(context, rooms, unit, tmp_path):
    server, aside = Postgresql(), tmp_path / "local-postgresql-aside"
    rooms.hand_in(database=LocalDatabase(tmp_path, server))
    (tmp_path / "local-postgresql").write_text("15")
    aside.write_text("concourse_20261123_190501\nconcourse_20261124_190501\n")
    shown = context.run(context.on.update_status(), unit).unit_status.message
    for day in ("23", "24"):
        assert f"kept database concourse_202611{day}_190501: juju run " in shown
    name = "concourse_20261123_190501"
    done, _ = run(context, "remove-local-database", unit, confirm=name)
    assert done == {"was": f"database {name}", "state": "removed"}
    assert server.told == [f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"]
    assert aside.read_text() == "concourse_20261124_190501\n"
    with pytest.raises(testing.ActionFailed, match="does not name a database on this machine"):
        run(context, "remove-local-database", unit, confirm=name)


def test_database_that_web_no_longer_uses_has_the_day_of_that(tmp_path):
    database = LocalDatabase(tmp_path)
    assert not database.note_unused(), "there is none"
    (tmp_path / "local-postgresql").write_text("")
    assert database.note_unused()
    assert len(database.kept()) == len("concourse, unused since 2026-11-01")
    (tmp_path / "local-postgresql-unused-since").write_text("2026-11-01")
    assert not database.note_unused()
    assert database.kept() == "concourse, unused since 2026-11-01"


@pytest.mark.parametrize(
    ("found", "left"),
    [
        ("role concourse concourse_coming", ""),
        (f"role concourse concourse_coming {ASIDE}", f"{ASIDE}\n"),
        ("role concourse concourse_other", ""),
    ],
)
def test_what_a_killed_restore_left_goes_at_the_next_event(tmp_path, found, left):
    """Status names no database that is not there, and none lies about half full."""
    server = Postgresql(found)
    database = LocalDatabase(tmp_path, server)
    (tmp_path / "local-postgresql").write_text("15")
    (tmp_path / "local-postgresql-aside").write_text(f"{ASIDE}\n")
    changed = database.ensure(lambda _: None)
    assert "".join(f"{name}\n" for name in database.aside()) == left
    drops = [statement for statement in server.told if statement.startswith("DROP")]
    halves = "concourse_coming" in found
    assert drops == ["DROP DATABASE IF EXISTS concourse_coming WITH (FORCE)"] * halves
    assert changed == (halves or not left)
