# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Checks the secrets of web's options: each function returns the form that is used. Pure.

No text here repeats the value of a secret.
"""

import base64
import binascii
import dataclasses
import re

from ci.concourse.options import web_variables as variables
from ci.concourse.options.values import Fields
from options import certificates, readers
from options.values import OptionError

# bcrypt, with which Concourse hashes passwords, reads no more bytes. Concourse refuses hashes of
# a lower cost (concourse 95872ce1a skymarshal/skycmd/flags.go:50).
_LONGEST_PASSWORD = 72  # bytes
_LEAST_COST = 10
_BCRYPT = re.compile(r"\$2[abxy]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
_USER = re.compile(r"[a-z](?:-?[a-z0-9]){0,63}")
# The only setting of local users that is the operator's: the charm adds its administrator.
_MEMBERS = "main-team-local-user"


def _refused(option: str, why: str) -> OptionError:
    # The text may have the name of a field, which may have any characters.
    return OptionError(option, "(secret)", why if why.isprintable() else ascii(why)[1:-1])


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is in web-settings-secret.

    Attributes:
        variables: value of each setting, by its name in `ci.concourse.options.web_variables`.
        main_team: the local users who are members of the main team, beside the administrator.
    """

    variables: tuple[tuple[str, str], ...] = ()
    main_team: tuple[str, ...] = ()


def local_users(fields: Fields, admin: str) -> tuple[tuple[str, str], ...]:
    """Return names and passwords of local users, in the order of their names.

    Args:
        fields: of the secret.
        admin: the name of the charm's own administrator.

    Raises:
        OptionError: one cannot be used.
    """
    option = "local-users"
    for name, password in fields.items():
        if name == admin or not _USER.fullmatch(name):
            why = "belongs to the charm" if name == admin else "is not a user name"
            raise _refused(option, f"has the user {name}, which {why}: use another name")
        hashed = _BCRYPT.fullmatch(password)
        if not password or not password.isprintable():
            why = "is empty or has an unprintable character: use another password"
        elif "," in password:
            why = "has a comma, where Concourse would cut it: use another one, or its bcrypt hash"
        elif len(password.encode()) > _LONGEST_PASSWORD:
            why = f"is longer than {_LONGEST_PASSWORD} bytes: use a shorter one"
        elif hashed and int(hashed[1]) < _LEAST_COST:
            why = f"is a bcrypt hash of a cost below {_LEAST_COST}: use a higher cost"
        else:
            continue
        raise _refused(option, f"has a password of {name} that {why}")
    return tuple(sorted(fields.items()))


def encryption_keys(fields: Fields) -> tuple[str, str]:
    """Return the key of the database's secrets and the previous key; each empty if not given.

    Raises:
        OptionError: one cannot be used.
    """
    option = "database-encryption-key"
    unknown = sorted(set(fields) - {"encryption-key", "old-encryption-key"})
    if unknown or not fields:
        said = f"has the field {unknown[0]}" if unknown else "has no field"
        raise _refused(option, f"{said}: use encryption-key and old-encryption-key")
    for name, key in fields.items():
        if key_form(key) is None:
            raise _refused(
                option, f"has no key in {name}: use 16 or 32 characters without spaces, or as "
                "many bytes in base64, or 32 in hex"
            )  # fmt: skip
    new, old = fields.get("encryption-key", ""), fields.get("old-encryption-key", "")
    if new and new == old:
        raise _refused(
            option, "has the same key twice: use the previous key in old-encryption-key"
        )
    return new, old


def key_form(key: str) -> str | None:
    """Return the end of the name of the variable that Concourse reads a key from; None: no key.

    Concourse takes 16 or 32 characters for the key itself, even if they could be hex or base64.
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
    """Return the certificate and the key of web; None if the secret has no fields.

    Raises:
        OptionError: they cannot be used.
    """
    option = "web-tls-secret"
    if not fields:
        return None
    missing = [name for name in ("certificate", "private-key") if not fields.get(name)]
    unknown = sorted(set(fields) - {"certificate", "private-key", "chain"})
    if missing or unknown:
        said = f"has no field {missing[0]}" if missing else f"has the field {unknown[0]}"
        raise _refused(option, f"{said}: use certificate, private-key and, if needed, chain")
    try:
        chain = certificates.chain(fields["certificate"], fields.get("chain", ""))
    except ValueError as error:
        raise _refused(option, "has no readable certificates in PEM") from error
    if not certificates.fits(chain, fields["private-key"]):
        raise _refused(
            option, "has a certificate that does not match its private-key (in PEM, without a "
            "password): use both of the same server"
        )  # fmt: skip
    return certificates.Tls(chain, fields["private-key"].strip() + "\n")


def settings(fields: Fields, users: Fields | None, admin: str) -> Settings:
    """Return the operator's settings of Concourse's web, in the order of their names.

    Args:
        fields: of the secret web-settings-secret.
        users: the fields of the secret local-users; None: they cannot be read.
        admin: the name of the charm's own administrator.

    Raises:
        OptionError: a name or a value cannot be used.
    """
    option = "web-settings-secret"
    found: dict[str, str] = {}
    for name, raw in sorted(fields.items()):
        value = raw.strip("\n")
        if name == _MEMBERS:
            continue
        if name not in variables.NAMES:
            family = name.partition("-")[0]
            alike = sorted(one for one in variables.NAMES if one.startswith(f"{family}-"))
            have = ", ".join(alike[:6]) or "names such as oidc-client-secret or vault-client-token"
            raise _refused(option, f"has the unknown field {name}: use {have}")
        if not value or (name not in variables.FILES and not value.isprintable()):
            raise _refused(option, f"has in {name} a value that is empty or not one line")
        if "\0" in value:
            raise _refused(
                option, f"has in {name} a null character, which a text file cannot have"
            )
        found[name] = f"{value}\n" if name in variables.FILES else value
    for family, needed in variables.LOGINS.items():
        given = [name for name in found if name.startswith(f"{family}-")]
        missing = [name for name in needed if name not in found]
        if given and missing:
            raise _refused(
                option, f"has {given[0]} without {missing[0]}, so that Concourse would ignore "
                "this login: set both"
            )  # fmt: skip
    return Settings(tuple(found.items()), _main_team(fields.get(_MEMBERS, ""), users, admin))


def _main_team(names: str, users: Fields | None, admin: str) -> tuple[str, ...]:
    members = dict.fromkeys(name.lower() for name in readers.split(names))
    members.pop(admin, None)  # is one anyway
    known = all(_USER.fullmatch(name) and (users is None or name in users) for name in members)
    if not known:
        have = ", ".join(sorted(users or ())) or "none"
        raise _refused(
            "web-settings-secret", f"has in {_MEMBERS} a name that is not in local-users, which "
            f"has {have}: for other users, set a field such as main-team-github-user"
        )  # fmt: skip
    return tuple(members)
