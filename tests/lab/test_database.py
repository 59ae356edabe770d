# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Web's database over the relation: other credentials come, and builds go on."""

import json
import secrets

from tests.lab import postgresql
from tests.lab.juju.context import add_revision
from tests.lab.site import READY


def test_other_credentials_are_used_at_once(site):
    """As when the database's application rotates them: in PostgreSQL, and in Juju's secret."""
    store, machine = site.lab.store, site.lab.park.get(postgresql.MACHINE)
    (uri,) = site.published("postgresql", "secret-user")
    secret = uri.rpartition(":")[2].rpartition("/")[2]
    newest = "SELECT content FROM secret_revision WHERE secret = ? ORDER BY revision DESC"
    had = json.loads(store.value(newest, secret))
    password = secrets.token_urlsafe(24)
    running = site.start_task("sleep 20; echo finished")
    postgresql.sql(machine, f"ALTER ROLE {had['username']} PASSWORD '{password}'")
    uris = had.get("uris", "").replace(had["password"], password)
    with store.transaction():
        add_revision(store, secret, {**had, "password": password, "uris": uris})
    site.lab.settle()
    assert site.status("web/0") == ("active", "Web ready")
    assert site.settings("web/0")["CONCOURSE_POSTGRES_PASSWORD"] == password
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    assert "finished" in output
    site.tags()
    assert site.task("true").returncode == 0
    site.lab.controller.fire("worker/0", "update-status")
    assert site.status() == READY
