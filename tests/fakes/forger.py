# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keys of OpenPGP as an attacker makes them, of packets by hand (RFC 9580; RFC 4880's EdDSA)."""

import base64
import hashlib
import itertools
import re
import time

from cryptography.hazmat.primitives.asymmetric import ed25519

SIGNATURE, PRIMARY, USER_ID, SUBKEY, ATTRIBUTE = 2, 6, 13, 14, 17
DIRECT, POSITIVE, BINDING = 0x1F, 0x13, 0x18  # types of signatures, section 5.2.1
_ED25519 = bytes.fromhex("092b06010401da470f01")  # its OID and how long that is


def packet(kind: int, body: bytes, form: str = "old") -> bytes:
    """A packet: its header of the old form, the new one, in parts, or of no told length."""
    if form == "new" or kind > 15:
        return bytes([0xC0 | kind, 255]) + len(body).to_bytes(4, "big") + body
    if form == "parts":  # 2**4 bytes, and the rest
        return bytes([0xC0 | kind, 0xE4]) + body[:16] + bytes([len(body) - 16]) + body[16:]
    if form == "untold":
        return bytes([0x80 | kind << 2 | 3]) + body
    return bytes([0x80 | kind << 2 | 1]) + len(body).to_bytes(2, "big") + body


def armour(data: bytes) -> str:
    """Data as text."""
    lines = re.findall(".{1,64}", base64.b64encode(data).decode())
    kind = "PGP PUBLIC KEY BLOCK-----"
    rest = 0xB704CE
    for byte, bit in itertools.product(data, range(7, -1, -1)):
        rest ^= (byte >> bit & 1) << 23
        rest = (rest << 1) ^ (0x1864CFB if rest & 0x800000 else 0)
    checksum = base64.b64encode(rest.to_bytes(3, "big")).decode()
    return "\n".join([f"-----BEGIN {kind}", "", *lines, f"={checksum}", f"-----END {kind}", ""])


def taken_apart(text: str) -> list[tuple[int, bytes]]:
    """The packets of armour that gpg wrote: each one's type and body."""
    data = base64.b64decode(re.sub(r"(?m)^([-=].*)?\n", "", text))
    found = list[tuple[int, bytes]]()
    while data:
        end = 1 + (1, 2, 4)[data[0] & 3]
        size = int.from_bytes(data[1:end], "big")
        found.append((data[0] >> 2 & 0xF, data[end : end + size]))
        data = data[end + size :]
    return found


class Forger:
    """An attacker's primary key, and what it signs."""

    def __init__(self) -> None:
        self._key = ed25519.Ed25519PrivateKey.generate()
        self._made = int(time.time()) - 60
        point = b"\x40" + self._key.public_key().public_bytes_raw()
        self.body = (
            b"\x04" + self._made.to_bytes(4, "big") + b"\x16" + _ED25519 + b"\x01\x07" + point
        )
        self._hashed = b"\x99" + len(self.body).to_bytes(2, "big") + self.body
        self.fingerprint = hashlib.sha1(self._hashed).hexdigest().upper()
        name = b"NVIDIA <cudatools@nvidia.com>"
        named = b"\xb4" + len(name).to_bytes(4, "big") + name
        self.primary = packet(PRIMARY, self.body)
        # May certify and sign: 5.2.3.29.
        self.user_id = packet(USER_ID, name) + self.signed(POSITIVE, {27: b"\x03"}, named)

    def revocable_by(self, fingerprint: str) -> bytes:
        """A signature that names somebody else as who may revoke this key: 5.2.3.23."""
        return self.signed(DIRECT, {12: b"\x80\x16" + bytes.fromhex(fingerprint)})

    def bound(self, body: bytes) -> bytes:
        """Another key as a subkey of this one, for what needs no consent of its own: 5.2.3.29."""
        over = b"\x99" + len(body).to_bytes(2, "big") + body
        return packet(SUBKEY, body) + self.signed(BINDING, {27: b"\x0c"}, over)

    def signed(self, kind: int, more: dict[int, bytes], over: bytes = b"") -> bytes:
        """A signature by this key over itself and something more."""
        made = {2: (self._made + 1).to_bytes(4, "big"), **more}
        said = b"".join(bytes([len(data) + 1, name]) + data for name, data in made.items())
        head = bytes([4, kind, 22, 8]) + len(said).to_bytes(2, "big") + said
        trailer = b"\x04\xff" + len(head).to_bytes(4, "big")
        digest = hashlib.sha256(self._hashed + over + head + trailer).digest()
        halves = self._key.sign(digest)
        numbers = (int.from_bytes(half, "big") for half in (halves[:32], halves[32:]))
        mpis = b"".join(
            number.bit_length().to_bytes(2, "big")
            + number.to_bytes((number.bit_length() + 7) // 8, "big")
            for number in numbers
        )
        issuer = b"\x09\x10" + bytes.fromhex(self.fingerprint[-16:])
        return packet(SIGNATURE, head + b"\x00\x0a" + issuer + digest[:2] + mpis)
