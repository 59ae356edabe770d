# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A backup of another PostgreSQL, a restore that is killed, a disk that is full."""

import os
import re
import signal
import subprocess
import time

import pytest

from ci.concourse.backup import backup as action
from ci.concourse.backup import database
from machine import process
from tests.functional import postgresql
from tests.functional.backup_site import (
    SECRETS,
    everything,
    kept,
    pipelines,
    restore,
    running,
    save,
    unchanged,
    unit_on,
    writes_script,
)  # fmt: skip

pytestmark = postgresql.NEEDS


@pytest.fixture(scope="module")
def server():
    with running() as server:
        yield server


@pytest.fixture
def here(server, tmp_path, monkeypatch):
    return unit_on(server, tmp_path, monkeypatch)


def altered(here, monkeypatch, change):
    """A backup whose dump is another than pg_dump wrote."""
    write = process.run_on_files

    def writes(argv, **more):
        write(argv, **more)
        if "/usr/bin/pg_dump" in argv:
            path = more["stdout"]
            path.write_bytes(change(path.read_bytes()))

    with monkeypatch.context() as patch:
        patch.setattr(process, "run_on_files", writes)
        return save(here)["path"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # The version of the server stands in the dump's head as text.
        (
            lambda dump: re.sub(rb"\d\d(?=\.\d+ \()", b"98", dump, count=1),
            "is from PostgreSQL 98,",
        ),
        # The form that a newer pg_dump writes: PGDMP, and its version.
        (lambda dump: dump[:6] + b"\x63" + dump[7:], "postgresql-client of the backup"),
    ],
    ids=["server", "form"],
)
def test_what_a_newer_postgresql_saved_is_refused(here, monkeypatch, change, words):
    path = altered(here, monkeypatch, change)
    unchanged(here, path, words)
    assert here.stopped == []


def test_programs_that_are_newer_than_the_server_fill_it(here, monkeypatch):
    path, write = kept(here), process.run_on_files
    setting = b"\nSET transaction_timeout = 0;\n"

    def newer(argv, **more):
        write(argv, **more)
        if writes_script(argv):
            script = more["stdout"]
            script.write_bytes(script.read_bytes().replace(b"\nSET ", setting + b"SET ", 1))

    monkeypatch.setattr(process, "run_on_files", newer)
    times = iter(["20261123_190501", "20261123_190502"])
    monkeypatch.setattr(action, "_now", lambda: next(times))
    restore(here, path)
    assert pipelines(here.server) == ["50"]
    here.server.changed = True
    monkeypatch.setattr(database, "_HAS_TIMEOUT", 1)
    if database._server() < 17:
        with pytest.raises(action.BackupError, match="transaction_timeout"):
            restore(here, path)


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def sessions(server):
    """Of a restore that waits for more of its script."""
    return server.sql(
        "SELECT pid FROM pg_stat_activity WHERE usename = 'web' AND state LIKE 'idle in tr%'",
        "postgres",
    )


def test_killed_half_way_it_has_changed_nothing_and_runs_again(here, monkeypatch):
    path, write = kept(here), process.run_on_files
    here.server.changed = True
    here.server.sql("DELETE FROM pipelines WHERE id > 3")
    before = everything(here.server)
    more_of_it = here.server.folder / "more"
    os.mkfifo(more_of_it)
    more_of_it.chmod(0o666)

    def waiting(argv, **more):
        if writes_script(argv):
            write(argv, **more)
            with open(more["stdout"], "a") as script:
                script.write(f"\n\\i {more_of_it}\n")
        else:
            write(argv, **more)

    child = os.fork()
    if not child:
        monkeypatch.setattr(process, "run_on_files", waiting)
        restore(here, path)
        os._exit(0)
    until(lambda: sessions(here.server))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    # What the action had started goes with it, and fills nothing behind its back.
    until(lambda: not sessions(here.server))
    assert everything(here.server) == before
    assert pipelines(here.server) == ["3"]
    assert here.secrets == SECRETS
    restore(here, path)
    assert pipelines(here.server) == ["50"]
    assert not (here.folder / ".work").exists()


@pytest.mark.parametrize("room", ["64k", "512k"])
def test_a_disk_that_is_full_is_named_and_keeps_no_file(here, room):
    """With no room for the dump, and with none for the file that is made of it."""
    here.server.changed = True
    here.server.sql("UPDATE pipelines SET config = (SELECT string_agg(md5(n::text || name), '') "
                    "FROM generate_series(1, 300) n)")  # fmt: skip
    here.folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "b", here.folder], check=True)
    try:
        with pytest.raises(action.BackupError, match=f"isk of {here.folder}"):
            save(here)
        assert list(here.folder.iterdir()) == []
    finally:
        subprocess.run(["umount", here.folder], check=True)
