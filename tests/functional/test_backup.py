# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Web's database and keys go into a file and come back, by a real PostgreSQL over TLS."""

import json
import pathlib
import re
import stat
import tarfile

import pytest

from ci.concourse.backup import archive, database
from ci.concourse.backup import backup as action
from ci.concourse.web import web
from machine import files, process
from relations.model import WebSecrets
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


def test_what_was_saved_comes_back_and_what_was_there_is_kept(here, monkeypatch):
    saved = save(here)
    path = saved["path"]
    assert (
        saved["next"] == f"juju ssh --pty=false web/0 sudo cat {path} > {pathlib.Path(path).name}"
    )
    here.server.changed = True
    here.server.sql("DELETE FROM pipelines WHERE id > 3; DROP TABLE events CASCADE")
    here.secrets = WebSecrets("other", "other", "other")
    done = restore(here, path)
    assert here.stopped == [web.SERVICE]
    assert pipelines(here.server) == ["50"]
    assert "public.events_1" in everything(here.server)
    assert here.secrets == SECRETS
    assert done["state"].startswith("restored web/0 of 20")
    assert done["workers"] == "2, which reconnect by themselves"
    kept = done["was"].split()[3]
    assert pipelines(here.server, kept) == ["3"]
    here.backups.authorized.write_text("ssh-rsa CCCC\n")
    monkeypatch.setattr(action, "_now", lambda: "20261123_190501")
    assert restore(here, path)["workers"] == (
        "1, which reconnect by themselves; the backup has 2: juju integrate the others"
    )
    # What Concourse does next with it works: its own types, sequences and functions.
    here.server.sql(
        "INSERT INTO pipelines (name, state) VALUES (encode(digest('a', 'sha256'), 'hex'), "
        "'paused')",
        user="web",
    )
    assert here.server.sql("SELECT max(id) FROM pipelines") == ["51"]


def test_only_root_reads_it_and_nothing_else_is_left(here, tmp_path, monkeypatch):
    seen = []
    run = process.run_on_files

    def watched(argv, **more):
        seen.extend(argv)
        passwords = pathlib.Path(more["env"]["PGPASSFILE"])
        assert (stat.S_IMODE(passwords.stat().st_mode), passwords.owner()) == (0o600, "nobody")
        folder = passwords.parent
        assert (stat.S_IMODE(folder.stat().st_mode), folder.owner()) == (0o700, "nobody")
        return run(argv, **more)

    monkeypatch.setattr(process, "run_on_files", watched)
    path = pathlib.Path(save(here)["path"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(here.folder.stat().st_mode) == 0o700
    assert [entry.name for entry in here.folder.iterdir()] == [path.name]
    assert not (here.server.folder / "access").exists()
    assert seen
    assert not any(postgresql.PASSWORD in argument for argument in seen)
    with tarfile.open(path) as members:
        assert members.getnames() == [
            "manifest.json", "secrets.json", "worker-keys", "database.dump",
        ]  # fmt: skip


def test_second_restore_keeps_both_that_were_there(here, monkeypatch):
    path = save(here)["path"]
    times = iter(["20261123_190501", "20261123_190502"])
    monkeypatch.setattr(action, "_now", lambda: next(times))
    for _ in range(2):
        restore(here, path)
    schemas = {name.partition(".")[0] for name in everything(here.server)}
    assert schemas == {"public", "concourse_20261123_190501", "concourse_20261123_190502"}
    assert pipelines(here.server) == ["50"]


def test_nothing_is_written_over(here):
    path = f"{here.folder}/one.tar"
    save(here, path)
    before = pathlib.Path(path).read_bytes()
    with pytest.raises(action.BackupError, match="exists already"):
        save(here, path)
    assert pathlib.Path(path).read_bytes() == before


@pytest.mark.parametrize(
    "path",
    [
        "one.tar", "/etc/passwd", "/etc/cron.d/x.tar", "{0}/../x.tar", "{0}/a/x.tar", "{0}/.x.tar",
        "{0}/x", "{0}/x y.tar", "{0}/$(id).tar", "{0}//x.tar", "{0}/x.tar/", "{0}/-x.tar",
        "{0}/x\n.tar",
    ],
)  # fmt: skip
def test_path_elsewhere_is_refused(here, path):
    path = path.format(here.folder)
    for call in (save, restore):
        with pytest.raises(action.BackupError, match="is not allowed: use"):
            call(here, path)
    assert here.stopped == []
    assert not here.folder.exists()


def damage(path, change):
    data = bytearray(pathlib.Path(path).read_bytes())
    pathlib.Path(path).write_bytes(change(data))


@pytest.mark.parametrize("size", [0, 1, 511, 512, 600, 3000, -1024])
def test_part_of_a_file_is_refused(here, size):
    path = kept(here)
    damage(path, lambda data: data.rstrip(b"\0")[:size])
    unchanged(here, path, "damaged|not an archive|not one of this charm's")
    assert here.stopped == []


def test_file_with_another_byte_is_refused(here):
    path = kept(here)
    at = pathlib.Path(path).read_bytes().index(b"PGDMP") + 3000
    damage(path, lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    unchanged(here, path, "is damaged: database.dump was changed")


def foreign(path, *members, kind=action._KIND):
    listed = {name: list(archive._measured(content)) for name, content in members}
    about = {"unit": "web/0", "time": "x", "concourse": "8.3.0", "schema": "7"}
    manifest = {"kind": kind, "about": about, "files": listed}
    files.ensure_directory(path.parent, mode=0o700)
    with tarfile.open(path, "w") as tar:
        for name, content in (("manifest.json", json.dumps(manifest).encode()), *members):
            archive._add(tar, name, content)


@pytest.mark.parametrize(
    ("kind", "members", "words"),
    [
        ("gpu-ci-worker web backup/0", (), r"is of the kind 'gpu-ci-worker web backup/0'; this"),
        ("gpu-ci-worker web backup/2", (), "this revision of the charm accepts"),
        (action._KIND, (("../../etc/shadow", b"x"),), "not one of this charm's archives"),
        (action._KIND, (("secrets.json", b"{}"),), "not one of this charm's backups"),
        (action._KIND, (("secrets.json", b'{"keys": {"a": 1}}'),), "this charm's backups"),
    ],
)
def test_foreign_or_other_file_is_refused(here, kind, members, words):
    path = here.folder / "foreign.tar"
    foreign(path, *members, kind=kind)
    unchanged(here, str(path), words)
    assert here.stopped == []


def test_link_in_a_file_is_refused(here):
    path = here.folder / "link.tar"
    foreign(path, ("secrets.json", b"x"))
    manifest = archive.content(path, "manifest.json")
    with tarfile.open(path, "w") as tar:
        archive._add(tar, "manifest.json", manifest)
        link = tarfile.TarInfo("secrets.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/shadow"
        tar.addfile(link)
    unchanged(here, str(path), "secrets.json is missing or out of order")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"number": 2}, "2 units of web share one database: remove all but one"),
        ({"leads": False}, "run the action on web/leader"),
        ({"form": 6}, "8.3.0 cannot read its database: first upgrade this application to"),
        ({"lost": True}, "replace-web-keys"),
        ({"secrets": None}, "runs no web"),
    ],
)
def test_unit_that_can_not_take_it_is_left_as_it_is(here, change, words):
    path = kept(here)
    vars(here).update(change)
    unchanged(here, path, words)
    assert here.stopped == []


def test_application_has_to_be_named(here):
    path = kept(here)
    with pytest.raises(action.BackupError, match="confirm=web replaces all pipelines and builds"):
        restore(here, path, "webb")
    assert here.stopped == []


def test_database_that_is_encrypted_takes_its_key(here):
    here.encryption = {"CONCOURSE_ENCRYPTION_KEY": "sixteen letters!"}
    path = save(here)["path"]
    restore(here, path)
    for other in ({}, {"CONCOURSE_ENCRYPTION_KEY": "sixteen others!!"}):
        here.encryption = other
        with pytest.raises(
            action.BackupError, match="is encrypted with another key than this web has"
        ):
            restore(here, path)


def end_load_with(monkeypatch, statement):
    """Have what PostgreSQL is to load end with that."""
    write = process.run_on_files

    def torn(argv, **more):
        write(argv, **more)
        if writes_script(argv):
            with open(more["stdout"], "a") as script:
                script.write(statement)

    monkeypatch.setattr(process, "run_on_files", torn)


def test_load_that_fails_in_the_middle_changes_nothing(here, monkeypatch):
    path = kept(here)
    end_load_with(monkeypatch, "\nSELECT no_such_function();\n")
    unchanged(here, path, "cannot be loaded; nothing was changed: .*no_such_function")


def test_what_a_row_says_is_not_told_where_it_can_not_be_loaded(here, monkeypatch):
    """PostgreSQL quotes it; it may be a pipeline's password."""
    path = kept(here)
    end_load_with(monkeypatch, "\nCOPY public.events (id) FROM stdin;\n1\thunter2\n\\.\n")
    with pytest.raises(action.BackupError, match="extra data after last expected") as failed:
        restore(here, path)
    assert "hunter2" not in str(failed.value)


def test_role_that_may_not_make_place_is_told(here):
    path = kept(here)
    here.server.changed = True
    here.server.sql("ALTER SCHEMA public OWNER TO postgres")
    unchanged(here, path, "ALTER SCHEMA public OWNER TO")


def test_database_that_is_away_leaves_no_file(here, monkeypatch):
    settings = here.server.settings() | {"CONCOURSE_POSTGRES_PORT": "1"}
    monkeypatch.setattr(web, "database_settings", lambda: settings)
    with pytest.raises(action.BackupError, match=r"cannot be saved: .*Connection refused"):
        save(here)
    assert list(here.folder.iterdir()) == []


def test_server_that_is_not_the_one_of_the_certificate_gets_no_password(here, monkeypatch):
    settings = here.server.settings() | {"CONCOURSE_POSTGRES_HOST": "localhost"}
    monkeypatch.setattr(web, "database_settings", lambda: settings)
    with pytest.raises(action.BackupError, match="does not match host name"):
        save(here)


def test_missing_programs_are_named(here, monkeypatch):
    monkeypatch.setattr(database, "_PG_DUMP", "/no/pg_dump")
    with pytest.raises(action.BackupError, match="apt-get install --yes postgresql-client"):
        save(here)
    assert not here.folder.exists()


def test_full_disk_leaves_no_file(here, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "_add", full)
    with pytest.raises(action.BackupError, match="is full: free some space"):
        save(here)
    assert list(here.folder.iterdir()) == []


def hostile(here, said):
    """A backup of a database that has its owner's own text between two statements."""
    room = "r" * len(said)
    here.server.changed = True
    here.server.sql(f"CREATE VIEW odd AS SELECT '{room}' AS text", user="web")
    dump = process.run_on_files

    def writes(argv, **more):
        dump(argv, **more)
        if "/usr/bin/pg_dump" in argv:
            path, whole = more["stdout"], more["stdout"].read_bytes()
            found = re.search(rb"SELECT '(" + room.encode() + rb")", whole)
            path.write_bytes(whole[: found.start(1)] + said.encode() + whole[found.end(1) :])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "run_on_files", writes)
        return save(here)["path"]


def test_command_of_psqls_in_a_dump_is_not_run(here, monkeypatch, tmp_path):
    """CVE-2025-8714: who has the database writes a line of what psql is to read."""
    trace = here.server.folder / "trace"
    path = hostile(here, f"';\n\\! id >{trace}\nSELECT '")
    # By this machine's own programs, and by older ones, which don't shut such commands out.
    with pytest.raises(action.BackupError, match=r"cannot be loaded; nothing.*restr"):
        restore(here, path)
    write = process.run_on_files

    def older(argv, **more):
        write(argv, **more)
        if writes_script(argv):
            text = more["stdout"].read_text()
            more["stdout"].write_text(re.sub(r"(?m)^\\(un)?restrict .*\n", "", text))

    monkeypatch.setattr(process, "run_on_files", older)
    with pytest.raises(action.BackupError, match=r"CVE-2025-8714.*upgrade postgresql-client to"):
        restore(here, path)
    assert not trace.exists()
    # Were one run all the same, it would be as web's user, who can become no other.
    here.server.folder.chmod(0o777)
    monkeypatch.setattr(database, "_RESTRICTED", re.compile(b""))
    restore(here, path)
    assert trace.read_text().startswith("uid=65534(nobody) gid=65534(nogroup)")
    assert "groups=65534" in trace.read_text()
