# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which public key a text holds: exactly one, or words that say what else.

A mirror, or who stands before it, makes keys that gpg tells the pinned fingerprint of.
"""

import re
import shutil
import subprocess
import sys
import time

import pytest

from host import nvidia_toolkit as toolkit
from host import openpgp
from machine import process
from tests.fakes import forger

pytestmark = pytest.mark.skipif(not shutil.which("gpg"), reason="not installed: gpg")

DAY = 86400


class Ring:
    """A gpg of the tests' own."""

    def __init__(self, home):
        self.home = home
        home.mkdir(mode=0o700)

    def gpg(self, *arguments, stdin=""):
        plain = ["--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
        argv = ["gpg", "--homedir", str(self.home), *plain, *arguments]
        return subprocess.run(
            argv, input=stdin, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def make(self, name, ends="0", usage="sign", at="20200101T000000"):
        """A new key's fingerprint; `at` is when it seems to be made."""
        clock = ["--faked-system-time", at]
        self.gpg(*clock, "--quick-gen-key", f"{name} <{name}@test>", "ed25519", usage, ends)
        listed = self.gpg("--list-keys", "--with-colons", f"{name}@test")
        return re.search(r":{9}([0-9A-F]{40}):", listed)[1]

    def add(self, fingerprint, ends, at="20200102T000000"):
        clock = ["--faked-system-time", at]
        self.gpg(*clock, "--quick-add-key", fingerprint, "ed25519", "sign", ends)

    def public(self, *fingerprints):
        return self.gpg("--armor", "--export", *fingerprints)

    def revoke(self, fingerprint):
        paper = (self.home / f"openpgp-revocs.d/{fingerprint}.rev").read_text()
        self.gpg("--import", stdin=paper.replace("\n:-----", "\n-----"))


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    ring = Ring(tmp_path_factory.mktemp("openpgp") / "home")
    yield ring
    subprocess.run(["gpgconf", "--homedir", str(ring.home), "--kill", "all"], check=True)


@pytest.fixture(scope="module")
def one(ring):
    return ring.make("one")


@pytest.fixture(scope="module")
def other(ring):
    return ring.make("other", ends="2020-02-01")


def test_one_key_is_told_by_its_primary_fingerprint(ring, one):
    text = ring.public(one)
    key = openpgp.read(f"Some words\r\n{text}and more".replace("\n", "\r\n"))
    assert key == openpgp.SigningKey(text, one, expires=0, expired=False)
    assert openpgp.read(key.text) == key


def test_nothing_is_left_on_the_machine(ring, one, tmp_path):
    program = "import sys; from host import openpgp; openpgp.read(sys.stdin.read())"
    paths = {"PYTHONPATH": ":".join(sys.path), "TMPDIR": str(tmp_path)}
    env = paths | {"GNUPGHOME": str(tmp_path / "not-this")}
    argv = [sys.executable, "-B", "-c", program]
    process.run(argv, timeout=60, stdin=ring.public(one), env=env)
    assert list(tmp_path.iterdir()) == []


def test_expired_key_says_so_and_when(ring, other):
    key = openpgp.read(ring.public(other))
    assert key.expired
    assert time.strftime("%Y-%m", time.gmtime(key.expires)) == "2020-02"


def test_a_new_subkey_makes_an_old_key_valid_until_that_ends(ring):
    primary = ring.make("renewed", usage="cert")
    ring.add(primary, "2020-02-01")
    assert openpgp.read(ring.public(primary)).expired
    end = time.strftime("%Y-%m-%d", time.gmtime(time.time() + 30 * DAY))
    ring.add(primary, end)
    key = openpgp.read(ring.public(primary))
    assert not key.expired
    assert time.time() + 28 * DAY < key.expires < time.time() + 32 * DAY
    assert key.fingerprint == primary


def test_subkeys_end_with_their_primary_key(ring):
    primary = ring.make("short", usage="cert", ends="2020-02-01")
    ring.add(primary, "0")
    key = openpgp.read(ring.public(primary))
    assert key.expired
    assert time.strftime("%Y-%m", time.gmtime(key.expires)) == "2020-02"


def test_revoked_key_is_refused(ring):
    fingerprint = ring.make("revoked")
    ring.revoke(fingerprint)
    with pytest.raises(openpgp.KeyUnreadableError, match=f"{fingerprint} has been revoked"):
        openpgp.read(ring.public(fingerprint))


def test_key_that_signs_nothing_is_refused(ring):
    with pytest.raises(openpgp.KeyUnreadableError, match="can sign nothing"):
        openpgp.read(ring.public(ring.make("certifies", usage="cert")))


def test_second_key_in_one_block_is_refused(ring, one, other):
    with pytest.raises(openpgp.KeyUnreadableError, match="2 keys, not one"):
        openpgp.read(ring.public(one, other))


def test_second_block_is_refused(ring, one, other):
    with pytest.raises(openpgp.KeyUnreadableError, match="several blocks"):
        openpgp.read(ring.public(one) + ring.public(other))


def test_private_key_is_refused(ring, one):
    secret = ring.gpg("--armor", "--export-secret-keys", one)
    for text in (secret, secret + ring.public(one)):
        with pytest.raises(openpgp.KeyUnreadableError, match="not one public key"):
            openpgp.read(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not an ASCII-armoured"),
        ("\ufffd\x99\x01", "not an ASCII-armoured"),
        ("<!DOCTYPE html><html>log in</html>", "a web page"),
        (
            "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAAAA\n-----END PGP PUBLIC KEY BLOCK-----\n",
            "not a packet of OpenPGP",
        ),
        ("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDME", "not one public key"),
    ],
)
def test_what_is_no_key_is_named(text, said):
    with pytest.raises(openpgp.KeyUnreadableError, match=said):
        openpgp.read(text)


def test_missing_gpg_is_no_bad_key(ring, one, tmp_path):
    with pytest.raises(process.CommandError, match="can't be started"):
        openpgp.read(ring.public(one), str(tmp_path / "no-gpg"))


def test_pin_as_a_revoker_is_not_the_keys_fingerprint():
    false = forger.Forger()
    text = forger.armour(false.primary + false.revocable_by(toolkit.FINGERPRINT) + false.user_id)
    assert toolkit.FINGERPRINT in openpgp._listed(text)
    assert openpgp.read(text).fingerprint == false.fingerprint


def test_pin_as_a_revoker_by_gpg_itself(ring, one):
    false = ring.make("revocable")
    ring.gpg("--command-fd", "0", "--edit-key", false, stdin=f"addrevoker\n{one}\ny\nsave\n")
    text = ring.public(false)
    assert re.search(rf"^rvk.*{one}", openpgp._listed(text), re.MULTILINE)
    assert openpgp.read(text).fingerprint == false


def test_pin_as_a_subkey_is_not_the_keys_fingerprint(ring, one):
    """gpg exports an attacker's key by the fingerprint of a subkey that he bound to it."""
    false = forger.Forger()
    bound = false.bound(forger.taken_apart(ring.public(one))[0][1])
    text = forger.armour(false.primary + false.user_id + bound)
    assert f":{one}:" in openpgp._listed(text)
    assert openpgp.read(text).fingerprint == false.fingerprint


def test_pin_in_a_user_id_is_not_the_keys_fingerprint(ring):
    false = ring.make(f"fpr{':' * 9}{toolkit.FINGERPRINT}:")
    assert openpgp.read(ring.public(false)).fingerprint == false


@pytest.mark.parametrize("first", [True, False])
def test_pin_beside_another_primary_key_is_refused(ring, one, first):
    """Whichever is first: apt takes signatures of every key of a keyring."""
    false = forger.Forger()
    both = [forger.taken_apart(ring.public(one)), forger.taken_apart(forger.armour(false.primary))]
    packets = [packet for packets in both[:: 1 if first else -1] for packet in packets]
    with pytest.raises(openpgp.KeyUnreadableError, match="2 keys, not one"):
        openpgp.read(forger.armour(b"".join(forger.packet(*packet) for packet in packets)))


def packed(packets, form="old"):
    return b"".join(forger.packet(*packet, form) for packet in packets)


# What is behind a key, and what is said of it.
BEHIND = {
    "garbage": (b"\x00garbage", "not a packet of OpenPGP"),
    "zeros": (bytes(1000), "not a packet of OpenPGP"),
    "a secret key": (forger.packet(5, b"\x04"), "a packet of type 5"),
    "compressed data": (forger.packet(8, b"\x00"), "a packet of type 8"),
    "a marker": (forger.packet(10, b"PGP"), "a packet of type 10"),
    "in parts": (forger.packet(forger.USER_ID, b"n" * 20, "parts"), "length can't be right"),
    "of no told length": (forger.packet(forger.USER_ID, b"n", "untold"), "length can't be right"),
    "of no told length, to gpg a subkey": (b"\xbb\x04", "length can't be right"),
    "too long": (b"\xb4\x05name", "length can't be right"),
    "too long, new form": (b"\xcd\xff\xff\xff\xff\xffname", "length can't be right"),
    "no length": (b"\xb4", "length can't be right"),
    "half a length": (b"\xcd\xff\x00", "length can't be right"),
}


@pytest.mark.parametrize(("more", "said"), BEHIND.values(), ids=BEHIND)
def test_nothing_else_is_taken_with_a_key(ring, one, more, said):
    whole = packed(forger.taken_apart(ring.public(one)))
    with pytest.raises(openpgp.KeyUnreadableError, match=said):
        openpgp.read(forger.armour(whole + more))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "a form that"),
        (b"\x03" + bytes(90), "a form that"),
        (b"\x06" + bytes(90), "a form that"),
        (b"\x04" + bytes(70000), "a form that"),
        (b"\x04", "gpg can't read the key"),
        (b"\x04" + bytes(60), "can sign nothing"),
    ],
)
def test_primary_key_of_another_form_is_refused(body, said):
    with pytest.raises(openpgp.KeyUnreadableError, match=said):
        openpgp.read(forger.armour(forger.packet(forger.PRIMARY, body, "new")))


def test_what_does_not_begin_with_a_primary_key_is_refused(ring, one):
    packets = forger.taken_apart(ring.public(one))
    for some in (packets[1:], [*packets[1:], packets[0]]):
        with pytest.raises(openpgp.KeyUnreadableError, match="begin with a primary key"):
            openpgp.read(forger.armour(packed(some)))


def test_key_is_written_anew_without_what_it_needs_not(ring, one):
    packets = forger.taken_apart(ring.public(one))
    picture = [(forger.ATTRIBUTE, b"\x05\x01face"), packets[-1]]
    loose = "\n\n".join(forger.armour(packed(packets + picture, "new")).split("\n"))
    text = f"a letter\n=\n{loose.replace('BLOCK-----', 'BLOCK-----  ')}\n{'x' * 70}\n"
    assert openpgp.read(text).text == ring.public(one)


def test_subkey_that_the_pinned_key_has_not_signed_signs_nothing(ring, one, tmp_path):
    """It has the right primary key and is taken into the keyring: gpgv has to refuse it."""
    attacker = ring.make("attacker")
    (tmp_path / "data").write_text("all is well")
    signature, keyring = str(tmp_path / "signature"), tmp_path / "keyring"
    ring.gpg("-u", attacker, "-o", signature, "--detach-sign", str(tmp_path / "data"))

    def verified(text):
        keyring.write_bytes(packed(forger.taken_apart(openpgp.read(text).text)))
        argv = ["gpgv", "--keyring", str(keyring), signature, str(tmp_path / "data")]
        return not subprocess.run(argv, capture_output=True, check=False, timeout=60).returncode

    assert verified(ring.public(attacker))
    theirs = forger.taken_apart(ring.public(attacker))
    right = ring.make("with-subkey", usage="cert")
    ring.add(right, "0")
    packets = forger.taken_apart(ring.public(right))
    subkey, own = (forger.SUBKEY, theirs[0][1]), packets[-1]
    for more in ([subkey], [subkey, own], [subkey, theirs[-1]], [subkey, packets[2], own]):
        text = forger.armour(packed([*packets, *more]))
        assert openpgp.read(text).fingerprint == right
        assert not verified(text)
    # Nor in the place of the one that is signed.
    assert not verified(forger.armour(packed([*packets[:-2], subkey, own, *packets[-2:]])))


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\n" * 7000,
        "-----BEGIN PGP PUBLIC KEY BLOCK-----" + "\n" * 256000 + "!",
        forger.armour(forger.Forger().primary + b"\xb4\x00" * 90000 + b"\x00"),
        "<" * 256000,
    ],
    ids=["beginnings", "empty lines", "packets", "pages"],
)
def test_text_that_is_made_to_take_long_takes_no_time(text):
    began = time.monotonic()
    with pytest.raises(openpgp.KeyUnreadableError):
        openpgp.read(text)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("inside", ["", "mDME\n", "\nmDM\n", "\nmDM!\n", "\nm\n=\n=abcd\n"])
def test_broken_armour_is_named(inside):
    block = f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n{inside}-----END PGP PUBLIC KEY BLOCK-----\n"
    with pytest.raises(openpgp.KeyUnreadableError, match=r"armour is broken|begin with a primary"):
        openpgp.read(block)
