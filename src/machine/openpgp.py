# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads public keys that archives are signed with. Nothing is trusted, imported or kept."""

import dataclasses
import re
import tempfile
import typing

from machine import process

PROGRAM: typing.Final = "/usr/bin/gpg"

_TIMEOUT: typing.Final = 30.0  # seconds; it takes some hundredths of one
# RFC 9580, 6.2. gpg reads every block of a text, and others might not.
_BLOCK: typing.Final = re.compile(
    r"^-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*$.*?^-----END PGP PUBLIC KEY BLOCK-----[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_ANY_BLOCK: typing.Final = re.compile(r"^-----BEGIN ", re.MULTILINE)
# Fields of a line (GnuPG doc/DETAILS, "Format of the colon listings"), counted from 0.
_KIND, _VALIDITY, _EXPIRES, _FINGERPRINT, _ABLE = 0, 1, 6, 9, 11
_REVOKED, _EXPIRED = "r", "e"


class KeyUnreadableError(Exception):
    """A text is not one public key that can sign. The error's text says what it is instead."""


@dataclasses.dataclass(frozen=True)
class SigningKey:
    """One public key with its subkeys.

    Attributes:
        text: itself, ASCII-armoured, without anything around it.
        fingerprint: of the primary key: capital hex digits.
        expires: when the last of its keys that sign expires, or has: seconds since the epoch; 0 if
            one never does.
        expired: none that signs is valid any more.
    """

    text: str
    fingerprint: str
    expires: int
    expired: bool


def armoured(text: str) -> str:
    """The one public key block of a text, with a newline at its end; empty if it has not one."""
    text = text.replace("\r\n", "\n")
    blocks = _BLOCK.findall(text)
    return f"{blocks[0]}\n" if len(blocks) == len(_ANY_BLOCK.findall(text)) == 1 else ""


def read(text: str) -> SigningKey:
    """The one key that a text holds.

    Raises:
        KeyUnreadableError: it holds none, or several, or one that is revoked or can't sign.
        machine.process.CommandError: gpg can't be run, or says nothing in time.
    """
    block = armoured(text)
    if not block:
        raise KeyUnreadableError(_what(text))
    lines = [line.split(":") for line in _listed(block).splitlines()]
    primary = [line for line in lines if line[_KIND] == "pub"]
    if not primary:
        raise KeyUnreadableError("it holds no key that gpg can read")
    if len(primary) > 1:
        raise KeyUnreadableError(f"it holds {len(primary)} keys, not one")
    fingerprint = lines[lines.index(primary[0]) + 1][_FINGERPRINT]
    if primary[0][_VALIDITY] == _REVOKED:
        raise KeyUnreadableError(f"the key {fingerprint} has been revoked by its owner")
    signing = [
        line for line in lines
        if line[_KIND] in ("pub", "sub") and "s" in line[_ABLE]
        and line[_VALIDITY] not in (_REVOKED, "i", "d", "n")
    ]  # fmt: skip
    if not signing:
        raise KeyUnreadableError(f"the key {fingerprint} can sign nothing")
    # Of those that are valid, as long as there is one. A subkey ends with its primary key.
    valid = [line for line in signing if line[_VALIDITY] != _EXPIRED]
    ends = [int(line[_EXPIRES] or 0) for line in valid or signing]
    last = 0 if 0 in ends else max(ends)
    bounds = [end for end in (last, int(primary[0][_EXPIRES] or 0)) if end]
    return SigningKey(block, fingerprint, min(bounds, default=0), expired=not valid)


def _listed(block: str) -> str:
    with tempfile.TemporaryDirectory(prefix="gpu-ci-gpg-") as home:
        argv = [
            PROGRAM, "--homedir", home, "--no-options", "--no-autostart", "--batch",
            "--show-keys", "--with-colons",
        ]  # fmt: skip
        done = process.run(argv, timeout=_TIMEOUT, stdin=block, check=False, told=False)
    failure = process.CommandError(argv, done.returncode, done.stderr)
    if done.returncode and failure.starved:
        raise failure
    return done.stdout


def _what(text: str) -> str:
    if len(_BLOCK.findall(text)) > 1:
        return "it holds several blocks of keys, not one"
    if re.search(r"<(!doctype )?html", text, re.IGNORECASE):
        return "it is a web page, not a key"
    if _ANY_BLOCK.search(text):
        return "it is PGP data, but not one public key"
    return "it is not an ASCII-armoured public key"
