# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options of Concourse's web, typed and validated. Pure."""

import dataclasses
import re
import typing

from ci.concourse.options import values, web_values
from ci.concourse.options.encryption import Keys
from options import values as option_values
from options.certificates import Tls
from options.readers import Raw, Readers, items, port, text

# Whose values are Juju secrets; each is read as the fields of its secret, None if that failed.
SECRETS: typing.Final = ("encryption-key", "local-users", "tls-secret", "web-secrets")

NAMES: typing.Final = (
    *("web-port", "external-url", "advertise-address", "main-team-members", "web-metrics-port"),
    "web-tls-port",
    *SECRETS,
)

ADMIN: typing.Final = "admin"


@dataclasses.dataclass(frozen=True)
class WebOptions:
    """What the operator wants of the web.

    Attributes:
        port: TCP port of its UI and API.
        external_url: where people reach it; empty: at the unit's own address.
        advertise_address: where others reach this unit's web: an address, a name, or the network
            that has the address, with its `/`; empty: what Juju offers.
        encryption: the keys of what the database holds encrypted.
        users: name and password of each local user but the administrator.
        main_team: which of them are members of the main team.
        settings: further settings of Concourse's, by their names in
            `ci.concourse.options.web_variables`.
        metrics_port: TCP port of web's metrics on 127.0.0.1; 0: none.
        tls: the certificate that web shows; None: none of the operator's own.
        tls_port: TCP port of UI and API where web has a certificate.
    """

    port: int = 8080
    external_url: str = ""
    advertise_address: str = ""
    encryption: Keys = Keys()
    users: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    main_team: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    metrics_port: int = 9391
    tls: Tls | None = None
    tls_port: int = 443


def _fields(raw: Raw, option: str) -> web_values.Fields:
    """The fields of an option's secret; none where it is not set."""
    return typing.cast(web_values.Fields, raw.get(option) or {})


def _encryption(raw: Raw) -> Keys:
    fields = _fields(raw, "encryption-key")
    return Keys(*web_values.encryption_keys(fields)) if fields else Keys()


def _members(raw: Raw) -> tuple[str, ...]:
    # Where the secret can't be read, that is said already.
    told = None if raw.get("local-users", "") is None else _fields(raw, "local-users")
    return items(raw, "main-team-members", lambda name: web_values.member(name, told))


def _ports(raw: Raw, *options: str) -> tuple[int, ...]:
    """The ports of other options, where they are any."""
    said = (text(raw, name) for name in options)
    return tuple(int(one) for one in said if re.fullmatch(r"[0-9]{1,5}", one) and int(one))


def _metrics_port(raw: Raw) -> int:
    return port(raw, "web-metrics-port", _ports(raw, "web-port", "gpu-metrics-port"), 0)


READERS: typing.Final[Readers] = {
    "port": lambda raw: port(raw, "web-port", (), 1),
    "external_url": lambda raw: option_values.url("external-url", text(raw, "external-url")),
    "advertise_address": lambda raw: values.advertised(text(raw, "advertise-address")),
    "encryption": _encryption,
    "users": lambda raw: web_values.local_users(_fields(raw, "local-users"), ADMIN),
    "main_team": _members,
    "settings": lambda raw: web_values.settings(_fields(raw, "web-secrets")),
    "metrics_port": _metrics_port,
    "tls": lambda raw: web_values.tls(_fields(raw, "tls-secret")),
    "tls_port": lambda raw: port(raw, "web-tls-port", _ports(raw, "web-metrics-port"), 1),
}
