# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which public key a text holds, by the real gpg: exactly one, or words that say what else."""

import pathlib
import re
import shutil
import subprocess
import time

import pytest

from machine import openpgp, process

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


def test_nothing_is_left_on_the_machine(ring, one, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("GNUPGHOME", str(tmp_path / "not-this"))
    openpgp.read(ring.public(one))
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
            "no key that gpg can read",
        ),
        ("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDME", "not one public key"),
    ],
)
def test_what_is_no_key_is_named(text, said):
    with pytest.raises(openpgp.KeyUnreadableError, match=said):
        openpgp.read(text)


def test_missing_gpg_is_no_bad_key(ring, one, monkeypatch):
    monkeypatch.setattr(openpgp, "PROGRAM", str(pathlib.Path(ring.home, "no-gpg")))
    with pytest.raises(process.CommandError, match="can't be started"):
        openpgp.read(ring.public(one))
