# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A saved database is loaded into a real PostgreSQL as its owner, who may run no program."""

import subprocess

import pytest

from ci.concourse.backup import database
from ci.concourse.web import local_postgresql, web
from machine import process
from tests.functional import postgresql

pytestmark = postgresql.NEEDS

# A column's check becomes the administrator, where it is one that loads the rows.
HOSTILE = """
CREATE EXTENSION pgcrypto;
CREATE FUNCTION check_it(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
  PERFORM set_config('role', 'none', false);
  COPY (SELECT 1) TO PROGRAM 'id >{trace}; cat >/dev/null';
  RETURN true;
EXCEPTION WHEN insufficient_privilege THEN RETURN true; END $$;
CREATE TABLE pipelines (id serial PRIMARY KEY, name text CHECK (public.check_it(name)));
INSERT INTO pipelines (name) VALUES ('first');
"""


@pytest.fixture
def server(monkeypatch):
    """A cluster that knows its users as the one of the distribution does: by their names."""
    with postgresql.running() as server:
        # Nobody stands for the user concourse, whom this machine may lack.
        (server.folder / "data/pg_ident.conf").write_text(
            "people postgres postgres\npeople postgres concourse\npeople nobody concourse\n"
        )
        server.sql("CREATE ROLE concourse LOGIN", "postgres")
        server.sql("ALTER DATABASE concourse OWNER TO concourse", "postgres")
        (server.folder / "data/pg_hba.conf").write_text("local all all peer map=people\n")
        server.sql("SELECT pg_reload_conf()", "postgres")
        for name in ("run", "run_on_files"):
            monkeypatch.setattr(process, name, reaching(server, getattr(process, name)))
        owner = ("/usr/sbin/runuser", "--user", "nobody", "--")
        monkeypatch.setattr(local_postgresql, "AS_OWNER", owner)
        monkeypatch.setattr(web, "uses_local_database", lambda: True)
        yield server


def reaching(server, run):
    """Has PostgreSQL's programs find the test's own cluster."""

    def reached(argv, **more):
        where = {"PGHOST": str(server.folder), "PGPORT": str(server.port)}
        if "nobody" in argv:
            where["PGUSER"] = "concourse"
        return run(argv, **{**more, "env": {**more.get("env", {}), **where}})

    return reached


def test_hostile_database_runs_nothing_where_it_is_saved_or_loaded(server, tmp_path):
    trace = server.folder / "trace"
    server.folder.chmod(0o777)
    server.sql(HOSTILE.format(trace=trace), user="concourse")
    dump = tmp_path / "backups/.work/database.dump"
    dump.parent.mkdir(parents=True)
    database.save(dump)
    aside = local_postgresql.LocalDatabase(server.folder).load(dump, "20261124_120000")
    assert not trace.exists()
    assert server.sql("SELECT name FROM pipelines", user="concourse") == ["first"]
    assert server.sql("SELECT name FROM pipelines", aside, user="concourse") == ["first"]
    # All of it is web's, as if web had made it.
    server.sql("DROP EXTENSION pgcrypto; ALTER TABLE pipelines ADD more text", user="concourse")
    owners = "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relname ~ 'pipelines'"
    assert server.sql(owners) == ["concourse"]
    # The same load by an administrator would have run it: the database above is as dangerous.
    load = ["runuser", "-u", "postgres", "--", "pg_restore", "--no-owner", "--role=concourse"]
    load += ["--dbname=concourse", "--clean", f"--host={server.folder}", f"--port={server.port}"]
    with dump.open("rb") as file:
        subprocess.run(load, stdin=file, cwd="/", check=False, capture_output=True, timeout=60)
    assert "postgres" in trace.read_text()
