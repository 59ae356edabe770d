# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options of the worker: team, settings, CAs; task-mounts: test_options_task_mounts.py."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ci.concourse.options.worker import WorkerSettings
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
    assert parse(only_team=name).ci.worker.team == name


@pytest.mark.parametrize("name", ["a,b", "-a", "a b", ".a", 'a"b', "a/b", "x" * 65])
def test_what_no_team_is_called(name):
    assert refused(only_team=name) == (
        f"only-team '{shown(name)}' is not the name of a team: use one such as team-a"
    )


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", WorkerSettings()),
        ("mtu=1280", WorkerSettings(mtu=1280)),
        ("max-containers=65000, mtu=65535", WorkerSettings(mtu=65535, max_containers=65000)),
        (
            "dns-server=10.0.0.53, dns-server = FD00::35,dns-server=10.0.0.53",
            WorkerSettings(("10.0.0.53", "fd00::35")),
        ),
    ],
)
def test_worker_settings(text, settings):
    assert parse(worker_settings=text).ci.worker.settings == settings


NO_ADDRESS = "is not an IP address: use one such as 10.0.0.53"
OUT_OF_REACH = "cannot be reached from a container: use one such as 10.0.0.53"


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ("dns=10.0.0.53", "is not a known setting: use dns-server, mtu, max-containers"),
        ("max-containers", "has no value: use max-containers=VALUE"),
        ("mtu=9000", "repeats mtu: give it once"),
        ("max-containers=0", "is out of range: use 1 to 65000"),
        ("max-containers=65001", "is out of range: use 1 to 65000"),
        ("max-containers=x", "is out of range: use 1 to 65000"),
        *((f"dns-server={one}", NO_ADDRESS) for one in (
            "dns.example.com", "10.0.0", "10.0.0.53:53", "1", "10.0.0.0/8", "fe80::1%eth0", "",
        )),
        *((f"dns-server={one}", OUT_OF_REACH) for one in (
            "127.0.0.53", "::1", "0.0.0.0", "::", "ff02::fb",
        )),
    ],
)  # fmt: skip
def test_bad_worker_settings(item, why):
    assert refused(worker_settings=f"mtu=1400,{item}") == f"worker-settings '{item}' {why}"


@pytest.mark.parametrize("mtu", [0, 1279, 65536, -1, "auto", ""])
def test_bad_mtu(mtu):
    assert refused(worker_settings=f"mtu={mtu}") == (
        f"worker-settings 'mtu={mtu}' is out of range: use 1280 to 65535"
    )


def test_cas():
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
    moment = datetime.datetime(2026, 1, 1)
    made = x509.CertificateBuilder(name, name, KEY.public_key(), 1, moment, moment)
    pem = made.sign(KEY, hashes.SHA256()).public_bytes(PEM).decode()
    assert parse(worker_ca_certificates="").ci.worker.certificates == ""
    assert (
        parse(worker_ca_certificates=f"# ours\n{pem}\n# too\n{pem}").ci.worker.certificates
        == 2 * pem
    )
    for bad in ("x", pem.replace("MII", "XII", 1), PLAIN, pem[:-30]):
        assert "has no certificates in PEM: use the text" in refused(worker_ca_certificates=bad)
