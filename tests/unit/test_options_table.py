# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Every option: what it takes, what it makes of it, and what it says to a value it can't use."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.concourse.options.release import ReleaseOptions
from ci.concourse.options.web import WebOptions
from ci.concourse.options.worker import WorkerOptions
from ci.concourse.upstream import PINNED_SHA256
from options.part import Part
from options.ssh import public_key
from options.table import Minimums, Options
from options.table import parse as parse_options
from tests.unit.situations import DEFAULTS, parse, refused

RSA = rsa.generate_private_key(65537, 2048)
PEM = serialization.Encoding.PEM
PKCS8 = serialization.PrivateFormat.PKCS8
PKCS1 = serialization.PrivateFormat.TraditionalOpenSSL
OPENSSH = serialization.PrivateFormat.OpenSSH
PLAIN = serialization.NoEncryption()
LOCKED = serialization.BestAvailableEncryption(b"x")


def line(key):
    public = key.public_key()
    return public.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode()


def private(key, form=PKCS8, encryption=PLAIN):
    return key.private_bytes(PEM, form, encryption).decode()


KEY = line(RSA)


def test_the_defaults_of_config_yaml():
    assert parse() == Options(
        deployment_mode="worker",
        enable_gpu=False,
        gpu_device_ids=(),
        gpu_vendor="auto",
        gpu_allocation="exclusive",
        gpus_per_task=1,
        gpu_wait_timeout=240,
        hijack_gpu_limit=30,
        privileged_tasks="no-gpu",
        selftest_on_start=True,
        host_packages=(),
        minimums=Minimums(),
        release=ReleaseOptions(version="8.3.0", sha256="", mirror="", follows_web=False),
        worker=WorkerOptions(
            tags=(), tsa_hosts=(), tsa_public_key="", private_key="", dns_servers=()
        ),
        web=WebOptions(port=8080, external_url="", advertise_address=""),
    )


@pytest.mark.parametrize(
    ("mode", "worker", "web"),
    [("worker", True, False), ("web", False, True), ("all", True, True)],
)
def test_deployment_mode(mode, worker, web):
    options = parse(deployment_mode=mode)
    assert (options.has_worker, options.has_web) == (worker, web)


@pytest.mark.parametrize("mode", ["", "Worker", "both", "web,worker", "worker\nweb"])
def test_bad_deployment_mode(mode):
    text = refused(deployment_mode=mode)
    assert text.endswith("is unknown: use worker, web, all")
    assert text.startswith(f"deployment-mode '{ascii(mode)[1:-1]}'")


def test_tags_keep_their_order_without_repeats():
    assert parse(tag=" big, fast ,,big,a=b c ").worker.tags == ("big", "fast", "a=b c")


@pytest.mark.parametrize("tag", ["a\nb", "a,b\x00", "a\x1b[31m", "a\u2028b", "a\u202eb"])
def test_bad_tags(tag):
    assert refused(tag=tag).endswith("has a character that can't be printed: remove it")


@pytest.mark.parametrize("version", ["8.3.0", "7.14.2", "10.0.11"])
def test_concourse_version(version):
    assert parse(concourse_version=version).release.version == version


@pytest.mark.parametrize(
    "version", ["", "8.3", "v8.3.0", "8.3.0-rc.1", "8.3.0/../x", "latest", f"{'9' * 5000}.0.0"]
)
def test_bad_concourse_version(version):
    assert refused(concourse_version=version).endswith("is no release: use X.Y.Z")


def test_concourse_sha256():
    for text in (f" {'0a' * 32} ", "0A" * 32):
        assert parse(concourse_sha256=text).release.sha256 == "0a" * 32


def test_a_checksum_in_capitals_is_the_same():
    assert parse(concourse_sha256="0A" * 32).release.sha256 == "0a" * 32


@pytest.mark.parametrize("checksum", ["0a", "0a" * 33, "sha256:" + "0a" * 32, "xy" * 32])
def test_bad_concourse_sha256(checksum):
    assert refused(concourse_sha256=checksum).endswith("is no SHA-256: use 64 hex digits")


def test_every_pinned_checksum_is_one():
    for version, checksum in PINNED_SHA256.items():
        parse(concourse_version=version, concourse_sha256=checksum)
    assert len(set(PINNED_SHA256.values())) == len(PINNED_SHA256)
    assert DEFAULTS["concourse-version"] in PINNED_SHA256


def test_a_tsa_outside_juju():
    hosts = "ci.example.com:2222, 10.0.0.5:22,[fd00::5]:2222"
    options = parse(tsa_host=hosts, tsa_public_key=f"{KEY} root@web\n")
    assert options.worker.tsa_hosts == ("ci.example.com:2222", "10.0.0.5:22", "[fd00::5]:2222")
    assert options.worker.tsa_public_key == KEY


@pytest.mark.parametrize(
    "host",
    [
        "ci.example.com",
        ":2222",
        "a:0",
        "a:65536",
        "a:b",
        "fd00::5:2222",
        "a b:1",
        "a\nb:1",
        "$x:1",
    ],
)
def test_bad_tsa_host(host):
    text = refused(tsa_host=host, tsa_public_key=KEY)
    assert text.endswith("is no HOST:PORT: use ci.example.com:2222")


def test_several_host_keys_of_a_tsa_outside_juju_are_all_trusted():
    """As while that Concourse rotates its own."""
    options = parse(tsa_host="a:1", tsa_public_key=f"{KEY} one, {KEY}\n")
    assert options.worker.tsa_public_key.splitlines() == [KEY, KEY]
    assert "is not one line" in refused(tsa_host="a:1", tsa_public_key=f"{KEY},{KEY}\n{KEY}")
    assert refused(tsa_host="a:1", tsa_public_key=f"{KEY},").startswith("tsa-public-key")


def test_tsa_host_and_key_belong_together():
    assert refused(tsa_host="a:1") == (
        "tsa-host 'a:1' needs tsa-public-key beside it: set both or none"
    )
    assert refused(tsa_public_key=KEY).endswith("needs tsa-host beside it: set both or none")


@pytest.mark.parametrize(
    "key", [ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1()), RSA]
)
def test_public_keys_of_the_known_types(key):
    assert public_key(f"  {line(key)} a comment with $(words)  \n") == line(key)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not one line"),
        (f"{KEY}\n{KEY}", "is not one line"),
        (f"{KEY}\r{KEY}", "is not one line"),
        (f"# comment\n{KEY}", "is not one line"),
        ("ssh-rsa", "is no OpenSSH public key"),
        (f'command="sh" {KEY}', "is no OpenSSH public key of a known type"),
        (f"cert-authority {KEY}", "is no OpenSSH public key of a known type"),
        (KEY.replace("ssh-rsa", "ssh-ed25519"), "is no OpenSSH public key of a known type"),
        (KEY[:-40], "is no OpenSSH public key of a known type"),
        ("ssh-rsa ////", "is no OpenSSH public key of a known type"),
        ("ssh-ünknown AAAA", "is no OpenSSH public key of a known type"),
        (private(RSA), "is not one line"),
    ],
)
def test_what_is_no_public_key(text, why):
    with pytest.raises(ValueError, match=why):
        public_key(text)
    if text:
        said = refused(tsa_host="a:1", tsa_public_key=text)
        assert said.endswith(f"{why}: use the line of tsa_host_key.pub")


def test_what_is_no_base64_does_not_come_through():
    assert public_key(f"{KEY[:40]}$():{KEY[40:]}") == KEY


@settings(deadline=None, database=None)
@given(st.text(max_size=80), st.sampled_from(["", KEY, "ssh-rsa ", "ssh-ed25519 AAAA", "\n"]))
def test_a_public_key_is_one_safe_line_or_refused(text, piece):
    for whole in (text + piece, piece + text, f"{piece} {text}"):
        try:
            found = public_key(whole)
        except ValueError:
            continue
        assert found == KEY


@pytest.mark.parametrize("form", [PKCS8, PKCS1])
def test_worker_private_key(form):
    pem = private(RSA, form)
    options = parse(worker_private_key=pem)
    assert options.worker.private_key == pem
    assert "PRIVATE" not in repr(options)


@pytest.mark.parametrize(
    "pem",
    [
        "secret words",
        KEY,
        private(RSA, PKCS8, LOCKED),
        private(RSA, OPENSSH),
        private(ed25519.Ed25519PrivateKey.generate()),
        private(ec.generate_private_key(ec.SECP256R1()), PKCS1),
        private(RSA)[:200],
        "\udcff",
    ],
)
def test_bad_worker_private_key_is_not_shown(pem):
    assert refused(worker_private_key=pem) == (
        "worker-private-key '(secret)' holds no unencrypted RSA key in PEM: "
        "put one under the key private-key"
    )


@pytest.mark.parametrize("port", [1, 80, 443, 8080, 65535, "8081"])
def test_web_port(port):
    assert parse(web_port=port).web.port == int(port)


@pytest.mark.parametrize("port", [0, -1, 65536, 2222, 2221, 7777, 7788, 8079, 8888, 10**100 - 1])
def test_bad_web_port(port):
    shown = str(port) if port < 10**9 else "9" * 61 + "..."
    assert refused(web_port=port) == (
        f"web-port '{shown}' can't be used: use 1 to 65535 but not "
        "2221, 2222, 7776, 7777, 7787, 7788, 8079, 8888"
    )


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://ci.example.com", "https://ci.example.com"),
        ("http://10.0.0.5:8080/", "http://10.0.0.5:8080"),
        ("http://[fd00::5]:8080", "http://[fd00::5]:8080"),
        (" https://example.com/ci/ ", "https://example.com/ci"),
    ],
)
def test_external_url(url, kept):
    assert parse(external_url=url).web.external_url == kept


@pytest.mark.parametrize(
    "url",
    [
        *("ci.example.com", "//ci", "ftp://ci", "http://", "http:///path", "http://:8080"),
        *("http://[", "http://[x]", "http://ci:port", "http://ci:99999", "http://ci:0"),
        *("http://user:pw@ci", "http://user@ci", "http://c i", "http://ci/\nX=1", "http://ci?x"),
        *("http://ci#x", "javascript://ci", "http://c\u2028i"),
    ],
)
def test_bad_external_url(url):
    assert refused(external_url=url).endswith("is no URL: use http://HOST or https://HOST")


def test_container_dns_servers():
    options = parse(container_dns_servers="10.0.0.53, FD00::35,10.0.0.53")
    assert options.worker.dns_servers == ("10.0.0.53", "fd00::35")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("10.0.0.7", "10.0.0.7"),
        (" ci.example.com ", "ci.example.com"),
        ("gpu-web", "gpu-web"),
        ("10.0.0.0/16", "10.0.0.0/16"),
        ("FD00::0:7", "fd00::7"),
        ("fd00::/64", "fd00::/64"),
    ],
)
def test_advertise_address(given, kept):
    assert parse(advertise_address=given).web.advertise_address == kept


@pytest.mark.parametrize(
    "given",
    ["10.0.0.300", "10.0.0", "10.0.0.7/16", "10.0.0.7:2222", "http://ci", "a b", "-a", "a..b",
     "a_b", "ci.example.com/16", "fd00::1%eth0", "10.0.0.7,10.0.0.8", "a" * 64, "ü", "a\nb"],
)  # fmt: skip
def test_bad_advertise_address(given):
    text = refused(advertise_address=given)
    assert text.endswith(
        "is no address, host name or network: use 10.0.0.7, ci.example.com or 10.0.0.0/16"
    )


@pytest.mark.parametrize("given", ["127.0.0.1", "::1", "0.0.0.0", "169.254.1.1", "224.0.0.1"])
def test_an_address_that_no_other_machine_reaches(given):
    text = refused(advertise_address=given)
    assert text.endswith("is out of reach for other machines: use one that they know this unit by")


@pytest.mark.parametrize(
    "server",
    [
        "dns.example.com",
        "10.0.0",
        "10.0.0.53:53",
        "1",
        "10.0.0.0/8",
        "fe80::1%eth0",
        "fe80::1%\nx",
    ],
)
def test_bad_container_dns_servers(server):
    text = refused(container_dns_servers=server)
    assert text.endswith("is no IP address: use addresses such as 10.0.0.53")


@pytest.mark.parametrize("server", ["127.0.0.53", "::1", "0.0.0.0", "::", "ff02::fb"])
def test_dns_servers_that_a_container_can_not_reach(server):
    assert refused(container_dns_servers=f"10.0.0.53,{server}") == (
        f"container-dns-servers '{server}' is out of reach for containers: "
        "use addresses such as 10.0.0.53"
    )


@settings(deadline=None, database=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted({*DEFAULTS, "worker-private-key"} - {"enable-gpu"})),
        st.none() | st.integers() | st.text(),
    )
)
def test_no_value_does_more_than_be_refused(options):
    wrong = parse_options({**DEFAULTS, **options}).wrong
    assert {one.option for one in wrong} <= options.keys()
    assert all(one.text.isprintable() for one in wrong)


@pytest.mark.parametrize(
    ("option", "part"),
    [
        ("deployment_mode", Part.UNIT),
        ("concourse_version", Part.RELEASE),
        ("release_mirror", Part.RELEASE),
        ("gpu_driver", Part.HOST),
        ("gpu_wait_timeout", Part.GPU),
        ("tsa_host", Part.WORKER),
        ("container_dns_servers", Part.WORKER),
        ("web_port", Part.WEB),
        ("external_url", Part.WEB),
        ("gpu_health", Part.WATCH),
        ("max_quarantined", Part.WATCH),
        ("job_log", Part.WATCH),
        ("gpu_unused", Part.WATCH),
        ("gpu_metrics_port", Part.WATCH),
        ("gpu_recovery", Part.WATCH),
        ("gpu_run_group", Part.RUN),
    ],
)
def test_a_value_that_cannot_be_used_concerns_its_own_part_and_the_others_are_read(option, part):
    options = parse(
        **{option: "bad value", "tag": "rack-7", "deployment_mode": "all"} | {option: "bad value"}
    )
    assert options.frozen == {part}
    assert options.worker.tags == ("rack-7",)


def test_all_that_is_wrong_is_listed():
    options = parse(web_port="x", gpu_vendor="x", min_driver_version="x")
    assert [one.option for one in options.wrong] == [
        "gpu-vendor",
        "min-driver-version",
        "web-port",
    ]
    # Whose GPUs they are decides which software they need.
    assert options.frozen == {Part.GPU, Part.HOST, Part.WEB}
