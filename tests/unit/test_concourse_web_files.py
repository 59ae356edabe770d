# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What web's settings and files say of the operator's options; a second run, and their removal."""

import dataclasses

import pytest

from ci.concourse import service
from ci.concourse.web import files as web_files
from ci.concourse.web import web as concourse_web
from machine import systemd_escaping as escaping
from machine import templates
from tests.unit.situations import make_plan, unit

K16, OTHER = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def site(tmp_path):
    """Web's files, in a folder of the test's own."""
    return web_files.Files(tmp_path / "keys", tmp_path / "web.env", owner=None)


def write(site, **options):
    """Have files and settings as these options say. Return settings, change, revision."""
    given = {name.replace("_", "-"): value for name, value in options.items()}
    made = make_plan(unit("web", options=given)).ci.own.web
    read_once, changed = site.write(made)
    revision, wrote = service.ensure_settings(
        site.environment, "web.env", site.settings(made), *read_once
    )
    told = {}
    for line in site.environment.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.startswith("#"):
            assert name not in told, f"{name} is said twice"
            told[name] = escaping.plain_value(value)
    assert told.pop("GPUCI_REVISION") == revision
    return told, changed or wrote, revision


def test_users_and_members(site):
    told, _, _ = write(
        site, local_users={"ann": 'p"w$'}, web_settings_secret={"main-team-local-user": "ann"}
    )
    assert told["CONCOURSE_ADD_LOCAL_USER"] == 'admin:password,ann:p"w$'
    assert told["CONCOURSE_MAIN_TEAM_LOCAL_USER"] == "admin,ann"
    told, _, _ = write(site)
    assert told["CONCOURSE_ADD_LOCAL_USER"] == "admin:password"
    assert told["CONCOURSE_MAIN_TEAM_LOCAL_USER"] == "admin"


def test_settings_are_written_once_and_go_with_their_secret(site):
    fields = {
        "oidc-client-id": "ci", "oidc-client-secret": "s `x` $y", "oidc-ca-cert": "PEM\nPEM\n",
        "ldap-ca-cert": "CA",
    }  # fmt: skip
    told, changed, first = write(site, web_settings_secret=fields)
    assert changed
    assert told["CONCOURSE_OIDC_CLIENT_SECRET"] == "s `x` $y"
    path = site.keys / "web-oidc-ca-cert"
    assert told["CONCOURSE_OIDC_CA_CERT"] == str(path)
    assert path.read_text() == "PEM\nPEM\n"
    for one in (path, site.environment):
        assert one.stat().st_mode & 0o777 == 0o600
    again = write(site, web_settings_secret=fields)
    assert again == (told, False, first)
    _, _, second = write(site, web_settings_secret={**fields, "oidc-ca-cert": "PEM2"})
    assert second != first, "web has to read the file anew"
    told, _, _ = write(site)
    assert not [name for name in told if "OIDC" in name or "LDAP" in name]
    assert not list(site.keys.glob("web-*"))
    write(site, web_settings_secret=fields)
    assert site.remove()
    assert list(site.keys.iterdir()) == []


def test_a_key_is_told_with_the_one_before(site):
    secret = {"encryption-key": K16}
    first, _, _ = write(site, database_encryption_key=secret)
    assert first["CONCOURSE_ENCRYPTION_KEY"] == K16
    assert "CONCOURSE_OLD_ENCRYPTION_KEY" not in first
    rotated, _, _ = write(site, database_encryption_key={"encryption-key": OTHER * 4})
    assert rotated["CONCOURSE_ENCRYPTION_KEY_HEX"] == OTHER * 4
    assert rotated["CONCOURSE_OLD_ENCRYPTION_KEY"] == K16
    assert "CONCOURSE_ENCRYPTION_KEY" not in rotated
    again, changed, _ = write(site, database_encryption_key={"encryption-key": OTHER * 4})
    assert (again, changed) == (rotated, False)
    removed, _, _ = write(site)
    assert removed["CONCOURSE_OLD_ENCRYPTION_KEY_HEX"] == OTHER * 4
    assert not [name for name in removed if name.startswith("CONCOURSE_ENCRYPTION_KEY")]
    assert write(site)[1] is False


def test_another_ca_of_the_database_is_read_anew(site):
    made = make_plan(unit("web")).ci.own.web
    one, two = (
        site.write(
            dataclasses.replace(made, database=dataclasses.replace(made.database, ca=text))
        )[0]
        for text in ("one", "two")
    )
    assert one != two


def test_metrics_stay_on_the_machine(site):
    told, _, _ = write(site)
    assert told["CONCOURSE_PROMETHEUS_BIND_IP"] == "127.0.0.1"
    assert (
        concourse_web.metrics_port(site.environment)
        == int(told["CONCOURSE_PROMETHEUS_BIND_PORT"])
        == 9391
    )
    told, _, _ = write(site, web_metrics_port=0)
    assert not [name for name in told if "PROMETHEUS" in name]
    assert concourse_web.metrics_port(site.environment) is None


def test_several_hosts_of_a_database_are_tried_in_turn(site):
    made = make_plan(unit("web")).ci.own.web
    database = dataclasses.replace(made.database, others=("10.0.0.8",))
    values = site.settings(dataclasses.replace(made, database=database))
    text = templates.render(
        service.TEMPLATES, "web.env", quoted=escaping.environment_value, revision="", **values
    )
    assert 'CONCOURSE_POSTGRES_HOST="10.0.0.9,10.0.0.8"\n' in text
    assert "PGTARGETSESSIONATTRS=read-write\n" in text
