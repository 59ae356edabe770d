# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options of Concourse's web, typed and validated. Pure."""

import dataclasses
import typing

from ci.concourse.options import values, web_values
from ci.concourse.options.encryption import Keys
from ci.concourse.upstream import TAKEN_PORTS, TSA_PORT
from options import readers
from options import values as option_values
from options.certificates import Tls
from options.declaration import Group, Option
from options.part import Part
from options.readers import Raw, text

ADMIN: typing.Final = "admin"


@dataclasses.dataclass(frozen=True)
class WebOptions:
    """What the operator chose for web.

    Attributes:
        port: TCP port of its UI and API.
        external_url: URL at which people reach it; empty: the unit's own address.
        advertise_address: address, host name or network (with its `/`) under which other machines
            reach this unit's web; empty: the address that Juju offers.
        encryption: the keys of what the database holds encrypted.
        users: name and password of each local user except the administrator.
        settings: further settings of Concourse, and the members of the main team.
        metrics_port: TCP port of web's metrics on 127.0.0.1; 0: none.
        tls: the operator's certificate for web; None: there is none.
        tls_port: TCP port of UI and API if web has a certificate.
    """

    port: int
    external_url: str
    advertise_address: str
    encryption: Keys
    users: tuple[tuple[str, str], ...] = dataclasses.field(repr=False)
    settings: web_values.Settings = dataclasses.field(repr=False)
    metrics_port: int
    tls: Tls | None
    tls_port: int


def _encryption(raw: Raw) -> Keys:
    fields = values.fields(raw, "database-encryption-key")
    return Keys(*web_values.encryption_keys(fields)) if fields else Keys()


def _settings(raw: Raw) -> web_values.Settings:
    # If local-users cannot be read, its own error says so.
    unread = raw.get("local-users", "") is None
    users = None if unread else values.fields(raw, "local-users")
    return web_values.settings(values.fields(raw, "web-settings-secret"), users, ADMIN)


def _ports(raw: Raw, *options: str) -> tuple[int, ...]:
    """Return the ports of other options, if they are ports."""
    found = (readers.whole(text(raw, name)) for name in options)
    return tuple(port for port in found if port)


def _metrics_port(raw: Raw) -> int:
    others = _ports(raw, "web-port", "gpu-metrics-port")
    return readers.port(raw, "web-metrics-port", (*TAKEN_PORTS, *others), 0)


def _tls_port(raw: Raw) -> int:
    others = _ports(raw, "web-metrics-port")
    return readers.port(raw, "web-tls-port", (*TAKEN_PORTS, *others), 1)


_TAKEN: typing.Final = ", ".join(map(str, TAKEN_PORTS)).replace(
    str(TSA_PORT), f"{TSA_PORT} (the TSA)"
)

OPTIONS: typing.Final = (
    Option(
        "external-url",
        default="",
        text=(
            "URL at which people reach the web UI. Empty: the address of the unit, with web-port, "
            "or with web-tls-port if web has a certificate."
        ),
        group=Group.EVERYDAY,
        part=Part.WEB,
        field="external_url",
        read=lambda raw: option_values.url("external-url", text(raw, "external-url")),
    ),
    Option(
        "web-metrics-port",
        default=9391,
        text=(
            "TCP port on 127.0.0.1 where web serves Prometheus metrics, also to cos-agent. 0: no "
            "web metrics."
        ),
        group=Group.REPORTS,
        part=Part.WEB,
        field="metrics_port",
        read=_metrics_port,
    ),
    Option(
        "web-port",
        default=8080,
        text=(
            "TCP port of the web UI and API, 1 to 65535 except those that Concourse uses "
            f"otherwise: {_TAKEN}."
        ),
        group=Group.WEB,
        part=Part.WEB,
        field="port",
        read=lambda raw: readers.port(raw, "web-port", TAKEN_PORTS, 1),
    ),
    Option(
        "web-tls-port",
        default=443,
        text=(
            "TCP port of the web UI and API if web has a certificate. Plain HTTP on web-port then "
            "only redirects to HTTPS, and Juju does not open web-port."
        ),
        group=Group.WEB,
        part=Part.WEB,
        field="tls_port",
        read=_tls_port,
    ),
    Option(
        "web-tls-secret",
        default=None,
        text=(
            "URI of a Juju secret with web's certificate: fields `certificate` and `private-key` "
            "in PEM, and `chain` if the certificate has intermediate issuers. Web then serves "
            "HTTPS on web-tls-port. Alternatively integrate `certificates` with a TLS provider "
            "charm."
        ),
        group=Group.WEB,
        part=Part.WEB,
        field="tls",
        read=lambda raw: web_values.tls(values.fields(raw, "web-tls-secret")),
    ),
    Option(
        "web-advertise-address",
        default="",
        text=(
            "Address or host name under which other machines reach this web unit, for example "
            "behind NAT or a load balancer; or the network in which each unit has its address, "
            "such as 10.0.0.0/16. Empty: the unit's Juju address, ignoring container bridges."
        ),
        group=Group.WEB,
        part=Part.WEB,
        field="advertise_address",
        read=lambda raw: values.advertised(text(raw, "web-advertise-address")),
    ),
    Option(
        "local-users",
        default=None,
        text=(
            "URI of a Juju secret with further local users: each field is a user name, its value "
            "the user's password or a bcrypt hash of it, without commas. Local users can log in; "
            "what they may do depends on their teams."
        ),
        group=Group.WEB,
        part=Part.WEB,
        field="users",
        read=lambda raw: web_values.local_users(values.fields(raw, "local-users"), ADMIN),
    ),
    Option(
        "web-settings-secret",
        default=None,
        text=(
            "URI of a Juju secret with further settings of Concourse's web: logins (OIDC, OAuth, "
            "GitHub, GitLab, LDAP, SAML, CF and others), credential managers (Vault, CredHub, "
            "AWS, Conjur, Kubernetes), syslog, tracing. A field has the name of a setting, such "
            "as `oidc-client-secret`; if Concourse expects a file, the value is the text of that "
            "file. The field `main-team-local-user` names the local-users who are members of the "
            "main team, comma-separated. The main team owns everything; the user admin is always "
            "a member. See docs/how-to/log-in-and-secrets.md."
        ),
        group=Group.WEB,
        part=Part.WEB,
        field="settings",
        read=_settings,
    ),
    Option(
        "database-encryption-key",
        default=None,
        text=(
            "URI of a Juju secret whose field `encryption-key` is the key with which Concourse "
            "encrypts secrets in its database: 16 or 32 characters, or 16 or 32 bytes in base64, "
            "or 32 bytes in hex. Changing the key re-encrypts the database; removing it decrypts "
            "the database. The charm knows its previous key. If the database is encrypted with "
            "another key, such as that of a former deployment, set the field "
            "`old-encryption-key` to that key."
        ),
        group=Group.WEB,
        part=Part.WEB,
        field="encryption",
        read=_encryption,
    ),
)
