# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads public keys that archives are signed with. Nothing is trusted, imported or kept.

Which key a text holds is computed here, of the packets themselves. gpg lists fingerprints of other
keys beside it (designated revokers), and finds a key by the fingerprint of a subkey too. What gpg
is asked is only what the self-signatures say: until when the key is good, and what for.
"""

import base64
import collections.abc
import dataclasses
import hashlib
import re
import tempfile
import typing

from machine import process

PROGRAM: typing.Final = "/usr/bin/gpg"

_TIMEOUT: typing.Final = 30.0  # seconds; it takes some hundredths of one
# RFC 9580, 6.2: the lines around armour, and how long those are within it.
_BEGINNING: typing.Final = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
_END: typing.Final = "-----END PGP PUBLIC KEY BLOCK-----"
_ANY_BEGINNING: typing.Final = "-----BEGIN "
_LINE: typing.Final = 64
# Types of packets (RFC 9580, 5) that the key of an archive consists of.
_SIGNATURE, _PRIMARY, _USER_ID, _SUBKEY = 2, 6, 13, 14
# Left out with the signatures on it: a picture of the owner.
_ATTRIBUTE: typing.Final = 17
_VERSION: typing.Final = b"\x04"  # the only one that every gpg reads
# The length of a primary key is hashed in two bytes (RFC 9580, 5.5.4.2).
_LONGEST: typing.Final = 0xFFFF
# Fields of a line (GnuPG doc/DETAILS, "Format of the colon listings"), counted from 0.
_KIND, _VALIDITY, _EXPIRES, _ABLE = 0, 1, 6, 11
_REVOKED, _EXPIRED = "r", "e"


class KeyUnreadableError(Exception):
    """A text is not a single public key that can sign. The error's text says what is wrong."""


@dataclasses.dataclass(frozen=True)
class SigningKey:
    """One public key with its subkeys.

    Attributes:
        text: the key alone, ASCII-armoured.
        fingerprint: of the primary key: capital hex digits.
        expires: when the last of its keys that sign expires, or has: seconds since the epoch; 0 if
            one never does.
        expired: none that signs is valid any more.
    """

    text: str
    fingerprint: str
    expires: int
    expired: bool


def alone(text: str) -> tuple[str, str]:
    """The fingerprint of the one primary key in a text, and that key without anything else.

    What it holds beside the primary key are its user ids, subkeys and signatures. A subkey or a
    user id that the primary key has not signed may be among them: who verifies does not take it.

    Returns:
        40 capital hex digits: the SHA-1 of the primary key's packet (RFC 9580, 5.5.4.2); and the
        key, ASCII-armoured.

    Raises:
        KeyUnreadableError: it holds no key, or anything beside one.
    """
    packets = list(_packets(_decoded(text)))
    primaries = [body for kind, body in packets if kind == _PRIMARY]
    if len(primaries) > 1:
        raise KeyUnreadableError(f"it holds {len(primaries)} keys, not one")
    if not primaries or packets[0][0] != _PRIMARY:
        raise KeyUnreadableError("it does not begin with a primary key")
    if primaries[0][:1] != _VERSION or len(primaries[0]) > _LONGEST:
        raise KeyUnreadableError("it holds a key of a form that gpg does not read everywhere")
    whole = b"\x99" + len(primaries[0]).to_bytes(2, "big") + primaries[0]
    fingerprint = hashlib.sha1(whole, usedforsecurity=False).hexdigest().upper()
    return fingerprint, _armoured(b"".join(_needed(packets)))


def read(text: str, gpg: str = PROGRAM) -> SigningKey:
    """Return the one key that a text holds.

    Args:
        text: the key, ASCII-armoured.
        gpg: the program that is asked about it.

    Raises:
        KeyUnreadableError: it holds none, or several, or one that is revoked or can't sign.
        machine.process.CommandError: gpg can't be run, or says nothing in time.
    """
    fingerprint, block = alone(text)
    lines = [line.split(":") for line in _listed(block, gpg).splitlines()]
    primary = [line for line in lines if line[_KIND] == "pub"]
    if len(primary) != 1:
        raise KeyUnreadableError(f"gpg can't read the key {fingerprint}")
    if primary[0][_VALIDITY] == _REVOKED:
        raise KeyUnreadableError(f"the key {fingerprint} has been revoked by its owner")
    signing = [
        line for line in lines
        if line[_KIND] in ("pub", "sub") and "s" in line[_ABLE]
        and line[_VALIDITY] not in (_REVOKED, "i", "d", "n")
    ]  # fmt: skip
    if not signing:
        raise KeyUnreadableError(f"the key {fingerprint} can sign nothing")
    # Valid subkeys are preferred. A subkey expires with its primary key.
    valid = [line for line in signing if line[_VALIDITY] != _EXPIRED]
    ends = [int(line[_EXPIRES] or 0) for line in valid or signing]
    last = 0 if 0 in ends else max(ends)
    bounds = [end for end in (last, int(primary[0][_EXPIRES] or 0)) if end]
    return SigningKey(block, fingerprint, min(bounds, default=0), expired=not valid)


def _decoded(text: str) -> bytes:
    """What the only armour in a text holds."""
    lines = [line.rstrip() for line in text.split("\n")]
    beginnings = [at for at, line in enumerate(lines) if line.startswith(_ANY_BEGINNING)]
    if len(beginnings) != 1 or lines[beginnings[0]] != _BEGINNING or _END not in lines:
        raise KeyUnreadableError(_what(lines))
    inside = lines[beginnings[0] + 1 : lines.index(_END)]
    # Headers, an empty line, and base64. A checksum may follow, which is to be ignored (6.1).
    letters = inside[inside.index("") + 1 :] if "" in inside else []
    try:
        return base64.b64decode("".join(x for x in letters if x[:1] != "="), validate=True)
    except ValueError as error:
        raise KeyUnreadableError("its ASCII armour is broken") from error


def _armoured(data: bytes) -> str:
    letters = base64.b64encode(data).decode()
    lines = [letters[at : at + _LINE] for at in range(0, len(letters), _LINE)]
    # Without a checksum gpg 2.2 can't read armour whose last line needs no padding.
    checksum = base64.b64encode(_crc24(data)).decode()
    return "\n".join([_BEGINNING, "", *lines, f"={checksum}", f"{_END}\n"])


def _crc24(data: bytes) -> bytes:
    """The checksum of armour (RFC 9580, 6.1.1)."""
    rest = 0xB704CE
    for byte in data:
        rest ^= byte << 16
        for _ in range(8):
            rest <<= 1
            if rest & 0x1000000:
                rest ^= 0x1864CFB
    return rest.to_bytes(3, "big")


def _packets(data: bytes) -> collections.abc.Iterator[tuple[int, bytes]]:
    """Each packet: its type, and what it holds (RFC 9580, 4.2)."""
    at = 0
    while at < len(data):
        first, second = data[at], int.from_bytes(data[at + 1 : at + 2], "big")
        # A packet in parts, or of no told length, is never one of a key (4.2.1.4).
        untold = False
        if first & 0xC0 == 0xC0:
            kind = first & 0x3F
            if second < 192:
                start, size = at + 2, second
            elif second < 224:
                third = int.from_bytes(data[at + 2 : at + 3], "big")
                start, size = at + 3, ((second - 192) << 8) + third + 192
            else:
                start, size = at + 6, int.from_bytes(data[at + 2 : at + 6], "big")
                untold = second < 255
        elif first & 0x80:
            kind, start = first >> 2 & 0xF, at + 1 + (1, 2, 4, 0)[first & 3]
            size, untold = int.from_bytes(data[at + 1 : start], "big"), first & 3 == 3
        else:
            raise KeyUnreadableError("it holds something that is not a packet of OpenPGP")
        if untold or start + size > len(data):
            raise KeyUnreadableError("it holds a packet whose length can't be right")
        at = start + size
        yield kind, data[start:at]


def _needed(
    packets: collections.abc.Iterable[tuple[int, bytes]],
) -> collections.abc.Iterator[bytes]:
    """The packets of a key, each with a header of the old form, as gpg writes them."""
    taken = False
    for kind, body in packets:
        if kind not in (_PRIMARY, _USER_ID, _SUBKEY, _SIGNATURE, _ATTRIBUTE):
            raise KeyUnreadableError(f"it holds a packet of type {kind}, which is none of a key")
        if kind != _SIGNATURE:
            taken = kind != _ATTRIBUTE
        if taken:
            form = 0 if len(body) < 1 << 8 else 1 if len(body) < 1 << 16 else 2
            yield bytes([0x80 | kind << 2 | form]) + len(body).to_bytes(1 << form, "big") + body


def _listed(block: str, gpg: str = PROGRAM) -> str:
    with tempfile.TemporaryDirectory(prefix="gpu-ci-gpg-") as home:
        argv = [
            gpg, "--homedir", home, "--no-options", "--no-autostart", "--batch",
            "--show-keys", "--with-colons",
        ]  # fmt: skip
        done = process.run(argv, timeout=_TIMEOUT, stdin=block, check=False, told=False)
    failure = process.CommandError(argv, done.returncode, done.stderr)
    if done.returncode and failure.starved:
        raise failure
    return done.stdout


def _what(lines: collections.abc.Sequence[str]) -> str:
    if lines.count(_BEGINNING) > 1:
        return "it holds several blocks of keys, not one"
    if any(re.search(r"<(!doctype )?html", line, re.IGNORECASE) for line in lines):
        return "it is a web page, not a key"
    if any(line.startswith(_ANY_BEGINNING) for line in lines):
        return "it is PGP data, but not one public key"
    return "it is not an ASCII-armoured public key"
