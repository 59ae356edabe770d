# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the secrets of the web's options may hold: each function returns it as it is used. Pure.

No text here repeats a secret's value.
"""

import base64
import binascii
import collections.abc
import re

from ci.concourse.options import web_variables as variables
from options import certificates
from options.values import OptionError

Fields = collections.abc.Mapping[str, str]

# Concourse hashes passwords by bcrypt, which takes no more, and asks for this cost of those that
# are hashed already (concourse 95872ce1a skymarshal/skycmd/flags.go:50).
_LONGEST_PASSWORD = 72  # bytes
_LEAST_COST = 10
_BCRYPT = re.compile(r"\$2[abxy]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
_USER = re.compile(r"[a-z](?:-?[a-z0-9]){0,63}")


def _refused(option: str, why: str) -> OptionError:
    # A name of a field is in it, whatever that is made of.
    return OptionError(option, "(secret)", why if why.isprintable() else ascii(why)[1:-1])


def local_users(fields: Fields, admin: str) -> tuple[tuple[str, str], ...]:
    """Names and passwords of local users, in the order of their names.

    Args:
        fields: of the secret.
        admin: the name that the charm's own administrator has.

    Raises:
        OptionError: one can't be used.
    """
    option = "local-users"
    for name, password in fields.items():
        if name == admin or not _USER.fullmatch(name):
            why = "is the charm's own" if name == admin else "is no name"
            raise _refused(option, f"has the user {name}, which {why}: use another name")
        hashed = _BCRYPT.fullmatch(password)
        if not password or not password.isprintable():
            why = "is empty or has a character that can't be printed"
        elif "," in password:
            why = (
                "has a comma, at which Concourse would cut it: use one without, or its bcrypt hash"
            )
        elif len(password.encode()) > _LONGEST_PASSWORD:
            why = f"is longer than {_LONGEST_PASSWORD} bytes, of which bcrypt takes no more"
        elif hashed and int(hashed[1]) < _LEAST_COST:
            why = f"is a bcrypt hash of a cost below {_LEAST_COST}, which Concourse refuses"
        else:
            continue
        raise _refused(option, f"has a password of {name} that {why}")
    return tuple(sorted(fields.items()))


def member(name: str, users: Fields | None) -> str:
    """The name of a local user who is to be a member of the main team.

    Args:
        name: as it is given.
        users: the fields of the secret local-users; None: they can't be told.

    Raises:
        OptionError: there is no such user.
    """
    lower = name.lower()
    if not _USER.fullmatch(lower) or (users is not None and lower not in users):
        have = ", ".join(sorted(users or ())) or "none"
        raise OptionError(
            "main-team-members", name, f"is no local user: local-users has {have}; others join "
            "by web-secrets, such as main-team-github-user"
        )  # fmt: skip
    return lower


def encryption_keys(fields: Fields) -> tuple[str, str]:
    """The key of the database's secrets and the one before it; each empty where it is not given.

    Raises:
        OptionError: one can't be used.
    """
    option = "encryption-key"
    unknown = sorted(set(fields) - {"encryption-key", "old-encryption-key"})
    if unknown or not fields:
        said = f"has the field {unknown[0]}" if unknown else "has no field"
        raise _refused(option, f"{said}: use encryption-key, and old-encryption-key beside it")
    for name, key in fields.items():
        if key_form(key) is None:
            raise _refused(
                option, f"has in {name} no key: use 16 or 32 characters without spaces, or as "
                "many bytes in base64, or 32 in hex"
            )  # fmt: skip
    new, old = fields.get("encryption-key", ""), fields.get("old-encryption-key", "")
    if new and new == old:
        raise _refused(option, "has one key twice: old-encryption-key is the one before")
    return new, old


def key_form(key: str) -> str | None:
    """How Concourse is told such a key: the end of its variable's name; None: it is no key.

    16 or 32 characters are the key itself, whatever they look like, as they always were.
    """
    if not re.fullmatch(r"[!-~]+", key):
        return None
    if len(key) in (16, 32):
        return ""
    if re.fullmatch(r"[0-9a-fA-F]{64}", key):
        return "_HEX"
    try:
        return "_BASE64" if len(base64.b64decode(key, validate=True)) in (16, 32) else None
    except binascii.Error:
        return None


def tls(fields: Fields) -> certificates.Tls | None:
    """The certificate and the key of web; None where none are given.

    Raises:
        OptionError: they can't be used.
    """
    option = "tls-secret"
    if not fields:
        return None
    missing = [name for name in ("certificate", "private-key") if not fields.get(name)]
    unknown = sorted(set(fields) - {"certificate", "private-key", "chain"})
    if missing or unknown:
        said = f"has no field {missing[0]}" if missing else f"has the field {unknown[0]}"
        raise _refused(option, f"{said}: use certificate, private-key, and chain if there is one")
    try:
        chain = certificates.chain(fields["certificate"], fields.get("chain", ""))
    except ValueError as error:
        raise _refused(option, "has no certificates in PEM that can be read") from error
    if not certificates.fits(chain, fields["private-key"]):
        raise _refused(
            option, "has a certificate that is not that of its private-key (in PEM, without a "
            "password): give both of one server"
        )  # fmt: skip
    return certificates.Tls(chain, fields["private-key"].strip() + "\n")


def settings(fields: Fields) -> tuple[tuple[str, str], ...]:
    """Settings of Concourse's web that are the operator's, in the order of their names.

    Raises:
        OptionError: a name or a value can't be used.
    """
    option = "web-secrets"
    found: dict[str, str] = {}
    for name, raw in sorted(fields.items()):
        value = raw.strip("\n")
        if name not in variables.NAMES:
            family = name.partition("-")[0]
            alike = sorted(one for one in variables.NAMES if one.startswith(f"{family}-"))
            have = ", ".join(alike[:6]) or "names such as oidc-client-secret or vault-client-token"
            raise _refused(
                option, f"has the field {name}, which is none of Concourse's: use {have}"
            )
        if not value or (name not in variables.FILES and not value.isprintable()):
            raise _refused(option, f"has in {name} no value of one line")
        if "\0" in value:
            raise _refused(option, f"has in {name} a character that no file of text has")
        found[name] = f"{value}\n" if name in variables.FILES else value
    for family, needed in variables.LOGINS.items():
        given = [name for name in found if name.startswith(f"{family}-")]
        missing = [name for name in needed if name not in found]
        if given and missing:
            raise _refused(
                option, f"has {given[0]} and not {missing[0]}, without which Concourse leaves "
                "that login out: give both"
            )  # fmt: skip
    return tuple(found.items())
