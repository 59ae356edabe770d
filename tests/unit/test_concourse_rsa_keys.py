# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keys are what Concourse and OpenSSH read. (systemd's and Concourse's view: tests/functional.)"""

import base64
import shutil
import subprocess

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from ci.concourse import rsa_keys as keys
from ci.concourse.web import web
from machine import systemd_escaping as escaping
from options.ssh import public_key
from tests import once

PEM = once.rsa_key(1)


def pem_of(key, form=serialization.PrivateFormat.PKCS8, secret=None):
    locked = serialization.BestAvailableEncryption(secret) if secret else None
    return key.private_bytes(
        serialization.Encoding.PEM, form, locked or serialization.NoEncryption()
    ).decode()


def test_generated_key_is_pkcs1_of_4096_bits_and_accepted_by_the_options():
    pem = keys.generate_private_key()
    assert pem.startswith("-----BEGIN RSA PRIVATE KEY-----\n")
    key = serialization.load_pem_private_key(pem.encode(), None)
    assert key.key_size == 4096
    line = keys.public_key_line(pem)
    assert line.startswith("ssh-rsa AAAA")
    assert public_key(line) == line
    assert keys.generate_private_key() != pem


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")
def test_public_half_is_what_openssh_makes_of_it(tmp_path):
    path = tmp_path / "key"
    path.write_text(PEM)
    path.chmod(0o600)
    told = subprocess.run(["ssh-keygen", "-y", "-f", path], capture_output=True, check=True)
    assert keys.public_key_line(PEM) == told.stdout.decode().strip()


def test_pkcs8_is_read_too():
    key = rsa.generate_private_key(65537, 2048)
    traditional = pem_of(key, serialization.PrivateFormat.TraditionalOpenSSL)
    assert keys.public_key_line(pem_of(key)) == keys.public_key_line(traditional)


@pytest.mark.parametrize(
    "pem",
    [
        "",
        "ssh-rsa AAAA",
        PEM[:200],
        pem_of(ec.generate_private_key(ec.SECP256R1())),
        pem_of(rsa.generate_private_key(65537, 2048), secret=b"locked"),
    ],
)
def test_anything_else_is_refused(pem):
    with pytest.raises(ValueError):  # noqa: PT011 the library's own texts vary
        keys.public_key_line(pem)


def rsa_line(modulus, exponent):
    parts = b"ssh-rsa", exponent.to_bytes(300, "big").lstrip(b"\0"), b"\0" + modulus
    packed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return f"ssh-rsa {base64.b64encode(packed).decode()}"


@pytest.mark.parametrize(
    ("bits", "exponent"),
    [(512, 65537), (8200, 65537), (1 << 25, 65537), (2048, (1 << 25) + 1)],
)
def test_public_keys_that_concourse_can_not_use_are_refused(bits, exponent):
    modulus = b"\x80" + bytes(bits // 8 - 2) + b"\x01"
    with pytest.raises(ValueError, match="RSA key"):
        public_key(rsa_line(modulus, exponent))
    usable = rsa_line(b"\x80" + bytes(254) + b"\x01", 65537)
    assert public_key(usable) == usable


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "nul\0", "tab\t", "\x7f"])
def test_control_characters_get_into_no_setting_and_no_argument(text):
    for escape in (escaping.environment_value, escaping.exec_argument):
        with pytest.raises(ValueError, match="control character"):
            escape(text)


def test_no_password_can_be_taken_for_an_option():
    passwords = {web.new_secrets(str).admin_password for _ in range(1000)}
    assert len(passwords) == 1000
    assert not [password for password in passwords if password.startswith("-")]
    assert min(map(len, passwords)) >= 32
