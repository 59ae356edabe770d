# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The action that drops a web's database on the machine, which nothing else does."""

import pytest
from ops import testing

from ci.concourse.web import web
from ci.concourse.web.local_postgresql import LocalDatabase
from tests.unit.situations import state, tsa


@pytest.fixture
def machine(rooms, monkeypatch, tmp_path):
    """A machine with a database of a web that is gone."""
    rooms.hand_in(database=LocalDatabase(tmp_path))
    monkeypatch.setattr(web, "ENVIRONMENT", tmp_path / "web.env")
    (tmp_path / "local-postgresql").write_text("15")
    return tmp_path


def remove(context, confirm="concourse"):
    action = context.on.action("remove-local-database", params={"confirm": confirm})
    return context.run(action, state(relations=[tsa()]))


@pytest.mark.parametrize("whose", ["", "web/0 of model ci"])
def test_it_is_dropped_when_it_is_named(context, rooms, machine, whose):
    if whose:
        (machine / "local-postgresql-of").write_text(whose)
    remove(context)
    kept = f"concourse of {whose}" if whose else "concourse"
    assert context.action_results == {"was": f"database {kept}", "state": "removed"}
    assert rooms.calls[0] == "database.remove"


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("postgres", "", "confirm 'postgres' does not name a database .* it has concourse"),
        ("concourse", 'A=1\nCONCOURSE_POSTGRES_SOCKET="/run/x"\n', "The web of this unit uses"),
    ],
)
def test_it_is_left_alone_if_not_named_or_in_use(context, rooms, machine, name, settings, words):
    (machine / "web.env").write_text(settings)
    with pytest.raises(testing.ActionFailed, match=words):
        remove(context, name)
    assert "database.remove" not in rooms.calls


def test_it_takes_none_with_it_that_was_not_named(context, rooms, machine):
    (machine / "local-postgresql-aside").write_text("concourse_20261123_190501\n")
    with pytest.raises(
        testing.ActionFailed, match="remove concourse_20261123_190501 with confirm"
    ):
        remove(context)
    assert "database.remove" not in rooms.calls


def test_it_goes_where_web_has_another_database(context, rooms, machine):
    (machine / "web.env").write_text('A=1\nCONCOURSE_POSTGRES_HOST="10.0.0.9"\n')
    remove(context)
    assert rooms.calls[0] == "database.remove"


def test_a_machine_without_one_says_so(context, rooms, machine):
    (machine / "local-postgresql").unlink()
    with pytest.raises(testing.ActionFailed, match="This machine has no database of web"):
        remove(context)


def test_status_says_that_it_is_kept(context, rooms, machine):
    after = context.run(context.on.update_status(), state(relations=[tsa()]))
    assert after.unit_status.message == (
        "Worker ready (kept database concourse: juju run unit/0 remove-local-database "
        "confirm=concourse deletes it)"
    )


@pytest.mark.parametrize("mode", ["worker", "web"])
def test_a_change_of_mode_does_not_drop_it(context, rooms, machine, mode):
    context.run(context.on.config_changed(), state(mode))
    assert "web.remove" in rooms.calls
    assert "database.remove" not in rooms.calls
    context.run(context.on.remove(), state(mode))
    assert "database.remove" in rooms.calls
