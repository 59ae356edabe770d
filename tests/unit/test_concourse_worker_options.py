# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The worker's own options: team, numbers, CAs; task-mounts are in test_options_task_mounts.py."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.unit.situations import parse, refused

PEM = serialization.Encoding.PEM
KEY = ec.generate_private_key(ec.SECP256R1())
PLAIN = KEY.private_bytes(
    PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()


def shown(value):
    return value if len(value) <= 64 else f"{value[:61]}..."


@pytest.mark.parametrize("name", ["team-a", "main", "a.b_c", "équipe", "7th", "A"])
def test_the_team_of_a_worker(name):
    assert parse(team=name).worker.team == name


@pytest.mark.parametrize("name", ["a,b", "-a", "a b", ".a", 'a"b', "a/b", "x" * 65])
def test_what_no_team_is_called(name):
    assert refused(team=name) == f"team '{shown(name)}' is no team's name: use one such as team-a"


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("max-containers", ("0", 1, 65000), (-1, "x", 65001, "")),
        ("container-mtu", (0, 1280, 9000, 65535), (1, 1279, 65536, -1, "auto")),
    ],
)
def test_numbers_of_a_worker(option, good, bad):
    for value in good:
        assert not parse(**{option: value}).wrong
    for value in bad:
        assert f"{option} '{value}' is out of range: use " in refused(**{option: value})


def test_cas():
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
    moment = datetime.datetime(2026, 1, 1)
    made = x509.CertificateBuilder(name, name, KEY.public_key(), 1, moment, moment)
    pem = made.sign(KEY, hashes.SHA256()).public_bytes(PEM).decode()
    assert parse(ca_certificates="").worker.certificates == ""
    assert parse(ca_certificates=f"# ours\n{pem}\n# too\n{pem}").worker.certificates == 2 * pem
    for bad in ("x", pem.replace("MII", "XII", 1), PLAIN, pem[:-30]):
        assert "holds no certificates in PEM: use the text" in refused(ca_certificates=bad)
