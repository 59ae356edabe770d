# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The web's options and what their secrets may hold; no sentence repeats a secret."""

import pytest

from ci.concourse.options import web_variables as variables
from ci.concourse.options.encryption import Keys, keys
from ci.concourse.options.web_values import Settings, key_form
from tests.unit.situations import codes, parse, refused, unit

K16, K32, OTHER = "0123456789abcdef", "0123456789abcdef0123456789abcdef", "fedcba9876543210"
HEX = K32 * 2
B64 = "MDEyMzQ1Njc4OWFiY2RlZg=="
HASH = "$2b$10$" + "a" * 53


def wrong(option, fields):
    """What is said of a secret's fields, without any value of theirs."""
    text = refused(**{option: fields})
    for value in fields.values():
        assert not value or value not in text
    return text


def test_without_any_there_is_the_administrator_alone():
    web = parse().ci.web
    assert (web.users, web.settings) == ((), Settings())
    assert web.encryption == Keys()
    assert web.metrics_port == 9391


def test_local_users_and_members_of_the_main_team():
    fields = {"bob": "p:w \"'$%", "ann": HASH, "ann-marie": "x" * 72}
    members = {"main-team-local-user": " Ann, bob,ann,admin"}
    web = parse(local_users=fields, web_settings_secret=members).ci.web
    assert web.users == (("ann", HASH), ("ann-marie", "x" * 72), ("bob", "p:w \"'$%"))
    assert web.settings.main_team == ("ann", "bob")
    assert "p:w" not in repr(web)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"ann": "a,b"}, "password of ann that has a comma"),
        ({"ann": ""}, "password of ann that is empty"),
        ({"ann": "a\nCONCOURSE_X=1"}, "an unprintable character"),
        ({"ann": "a\0"}, "an unprintable character"),
        ({"ann": "ü" * 37}, "is longer than 72 bytes"),
        ({"ann": HASH.replace("10", "09")}, "of a cost below 10"),
        ({"admin": "password-1"}, "has the user admin, which belongs to the charm"),
        ({"ann:x": "password-1"}, "is not a user name"),
        ({"ann,bob": "password-1"}, "is not a user name"),
    ],
)
def test_local_users_that_can_not_be_used(fields, why):
    assert why in wrong("local_users", fields)


@pytest.mark.parametrize("name", ["carl", "an n", "ann:bob", "$(id)"])
def test_a_member_who_is_no_local_user(name):
    options = {"local_users": {"ann": "password-1"}}
    text = refused(**options, web_settings_secret={"main-team-local-user": f"ann,{name}"})
    assert text == (
        "web-settings-secret '(secret)' has in main-team-local-user a name that is not in "
        "local-users, which has ann: for other users, set a field such as main-team-github-user"
    )


def test_members_are_not_doubted_where_their_secret_can_not_be_read():
    """That is said already, and web stays as it is."""
    members = {"main-team-local-user": "ann"}
    assert parse(local_users=None, web_settings_secret=members).wrong == ()


@pytest.mark.parametrize(
    ("key", "form"),
    [
        (K16, ""),
        # As the Concourses before took it, though it could be hex.
        (K32, ""),
        (HEX, "_HEX"),
        (B64, "_BASE64"),
        ("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "_BASE64"),
        ("", None),
        (K16[1:], None),
        (f"{K16}x", None),
        (f" {K16[1:]}", None),
        (f"{K16[1:]}\n", None),
        ("ü" * 16, None),
        ("g" * 64, None),
    ],
)
def test_forms_of_keys(key, form):
    assert key_form(key) == form
    if form is not None:
        assert parse(database_encryption_key={"encryption-key": key}).ci.web.encryption == Keys(
            key
        )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"encryption-key": "short"}, "has no key in encryption-key"),
        (
            {"encryption-key": K16, "old-encryption-key": "short"},
            "has no key in old-encryption-key",
        ),
        ({"encryption-key": K16, "old-encryption-key": K16}, "has the same key twice"),
        ({"key": K16}, "has the field key"),
    ],
)
def test_encryption_keys_that_can_not_be_used(fields, why):
    assert why in wrong("database_encryption_key", fields)


def test_the_old_key_alone_decrypts():
    assert parse(database_encryption_key={"old-encryption-key": K16}).ci.web.encryption == Keys(
        "", K16
    )


@pytest.mark.parametrize(
    ("version", "key", "good"),
    [("8.1.1", HEX, False), ("8.2.0", HEX, True), ("8.0.0", K32, True), ("8.1.1", B64, False)],
)
def test_a_form_that_this_concourse_does_not_know(version, key, good):
    options = {"concourse-version": version, "database-encryption-key": {"encryption-key": key}}
    problems = [] if good else [("blocked", "key-form-unknown")]
    assert codes(unit("web", options=options)) == problems


@pytest.mark.parametrize(
    ("given", "had", "then"),
    [
        (Keys(), Keys(), Keys()),
        (Keys("a"), Keys(), Keys("a")),
        (Keys("a"), Keys("a"), Keys("a")),
        (Keys("b"), Keys("a"), Keys("b", "a")),
        (Keys("b"), Keys("b", "a"), Keys("b", "a")),
        (Keys("c"), Keys("b", "a"), Keys("c", "b")),
        (Keys(), Keys("b", "a"), Keys("", "b")),
        (Keys(), Keys("", "b"), Keys("", "b")),
        (Keys("c"), Keys("", "b"), Keys("c", "b")),
        (Keys("b"), Keys("", "b"), Keys("b")),
        # What the operator says counts.
        (Keys("c", "x"), Keys("b", "a"), Keys("c", "x")),
        (Keys("", "x"), Keys("b", "a"), Keys("", "x")),
    ],
)
def test_the_key_before_is_never_lost(given, had, then):
    assert keys(given, had) == then
    assert keys(given, then) == then, "a second run changes nothing"


def test_settings_by_their_names():
    fields = {
        "oidc-client-id": "ci",
        "oidc-client-secret": "s",
        "oidc-ca-cert": "-----BEGIN\nCERT-----\n",
        "ldap-host": "h\n",
    }
    web = parse(web_settings_secret=fields).ci.web
    assert dict(web.settings.variables) == {
        "oidc-client-id": "ci",
        "oidc-client-secret": "s",
        "oidc-ca-cert": "-----BEGIN\nCERT-----\n",
        "ldap-host": "h",
    }
    assert "BEGIN" not in repr(web)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"oidc-client-secert": "hidden"},
            "has the unknown field oidc-client-secert: use oidc-ca",
        ),
        ({"nonsense": "hidden"}, "use names such as oidc-client-secret"),
        (
            {"oidc-client-secret": "hid\nden"},
            "has in oidc-client-secret a value that is empty or not one line",
        ),
        ({"oidc-client-secret": ""}, "has in oidc-client-secret a value that is empty"),
        (
            {"oidc-client-secret": "x\nLD_PRELOAD=/tmp/x.so"},
            "has in oidc-client-secret a value that is empty",
        ),
        (
            {"oidc-client-secret": "x\rCONCOURSE_ADD_LOCAL_USER=me:me"},
            "a value that is empty or not one line",
        ),
        ({"oidc-client-secret": "x\u2028y"}, "a value that is empty or not one line"),
        ({"vault-ca-cert": "hid\0den"}, "a null character"),
        # Concourse starts without that login, and says nothing.
        ({"oidc-client-secret": "hidden"}, "has oidc-client-secret without oidc-client-id"),
        ({"github-host": "g.example.com"}, "has github-host without github-client-id"),
        ({"cf-client-id": "hidden1"}, "has cf-client-id without cf-client-secret"),
    ],
)
def test_settings_that_can_not_be_used(fields, why):
    assert why in wrong("web_settings_secret", fields)


@pytest.mark.parametrize(
    "name",
    [
        *("bind-port", "bind-ip", "tls-bind-port", "tls-key", "postgres-password", "peer-address"),
        *("tsa-host-key", "tsa-authorized-keys", "session-signing-key", "encryption-key"),
        *("add-local-user", "main-team-config", "prometheus-bind-port"),
        *("external-url", "client-secret", "add-client", "garden-request-timeout", "config-rbac"),
        *("PATH", "oidc", "oidc-", "datadog-prefix", "vault-client-token-path", "ld-preload"),
        *(
            "LD_PRELOAD",
            "CONCOURSE_TSA_HOST_KEY",
            "CONCOURSE_OIDC_ISSUER",
            "concourse-oidc-issuer",
        ),
        *(
            "oidc-issuer\nLD_PRELOAD",
            "oidc-issuer=x",
            "--oidc-issuer",
            "oidc_issuer",
            "OIDC-ISSUER",
        ),
    ],
)
def test_what_the_charm_sets_is_nobody_elses(name):
    assert name not in variables.NAMES
    shown = name.replace("\n", "\\n")
    assert f"has the unknown field {shown}" in wrong("web_settings_secret", {name: "hidden"})


def test_each_name_is_one_that_a_juju_secret_takes():
    """Juju core/secrets: `^([a-z](?:[-]?[a-z0-9]){2,})$`."""
    import re

    assert all(re.fullmatch(r"[a-z](?:-?[a-z0-9]){2,}", name) for name in variables.NAMES)
    assert variables.environment("oidc-ca-cert") == "CONCOURSE_OIDC_CA_CERT"


@pytest.mark.parametrize("port", ["8080", "335", "2222", "65536", "-1", "x"])
def test_a_port_of_metrics_that_can_not_be_used(port):
    assert refused(web_metrics_port=port).startswith("web-metrics-port")


def test_whom_the_main_team_takes_and_what_is_no_login_stand_alone():
    fields = {"main-team-oidc-group": "admins", "credhub-url": "https://c", "ldap-host": "l"}
    assert dict(parse(web_settings_secret=fields).ci.web.settings.variables) == fields


def test_no_metrics():
    assert parse(web_metrics_port=0).ci.web.metrics_port == 0
