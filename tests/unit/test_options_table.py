# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Every option: what it takes, what it makes of it, and what it says to a value it can't use."""

import re

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.concourse.options.encryption import Keys
from ci.concourse.options.web_values import Settings
from ci.concourse.upstream import PINNED_SHA256, RELEASE
from ci.systems import ALL, TABLE
from options.declaration import Group
from options.part import Part
from options.ssh import public_key
from options.table import Engines, Minimums
from tests.unit.situations import BY_NAME, DEFAULTS, ROOT, parse, parse_options, refused
from tests.unit.test_docs import texts

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


def test_what_the_defaults_come_to():
    options = parse_options({})
    assert options == parse()
    assert (options.deployment_mode, options.enable_gpu, options.wrong) == ("worker", False, ())
    assert options.minimums == Minimums()
    assert options.container_engines == Engines()
    assert (options.gpu_wait_timeout, options.drain_timeout) == (240, 7200)
    assert (options.ci.release.chosen, options.extra_tags) == (("", ""), ())
    assert (options.ci.web.encryption, options.ci.web.users) == (Keys(), ())
    assert (options.ci.web.settings, options.ci.web.tls) == (Settings(), None)


@pytest.mark.parametrize("option", TABLE, ids=lambda option: option.name)
def test_declaration(option):
    assert BY_NAME[option.name] is option
    assert option.text.strip() == option.text
    assert option.text.endswith(".")
    if option.values:
        assert option.default in option.values
    # YAML 1.1 reads them as booleans, in a bundle or a Terraform plan.
    booleans = {"y", "n", "yes", "no", "on", "off", "true", "false", "~", "null"}
    assert not booleans & {value.lower() for value in option.values}
    assert str(option.default).lower() not in booleans or isinstance(option.default, bool | None)


def test_everyday_options_are_first_and_groups_stay_together():
    groups = [option.group for option in TABLE]
    assert groups == sorted(groups, key=[*Group].index)
    assert {*groups} == {*Group}
    assert [option.name for option in TABLE if option.group is Group.EVERYDAY] == [
        *("ci-system", "deployment-mode", "enable-gpu", "gpu-device-ids", "gpus-per-task"),
        *("extra-tags", "task-mounts", "external-url"),
    ]


@pytest.mark.parametrize("option", BY_NAME)
def test_config_yaml_and_the_reference_have_each_option_once(option):
    config = yaml.safe_load((ROOT / "config.yaml").read_text())["options"]
    assert [*config] == [one.name for one in TABLE]
    page = (ROOT / "docs/reference/options.md").read_text()
    assert page.count(f"### `{option}`\n") == 1


SETS_OPTIONS = sorted(
    path
    for pattern in ("src/**/*.py", "lib/**/*.py", "src/**/*.rules", "docs/**/*.md", "*.md")
    for path in ROOT.glob(pattern)
    if "juju config" in path.read_text()
)


@pytest.mark.parametrize("path", SETS_OPTIONS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_option_that_a_command_sets_exists(path):
    for text in texts(path):
        command = r"juju config (?:<\w+>|\{?[\w-]+\}?)((?: [a-z][a-z-]*=\S*)+)"
        for words in re.findall(command, re.sub(r"\s+", " ", text)):
            assert {*re.findall(r" ([a-z][a-z-]*)=", words)} <= {*BY_NAME}, words


# A value that cannot be used, for each option but booleans and secrets.
BAD = {
    "ci-system": "concurse",
    "deployment-mode": "both",
    "gpu-device-ids": "none",
    "gpus-per-task": 129,
    "extra-tags": "a\nb",
    "task-mounts": "/etc",
    "external-url": "ci.example.com",
    "tsa-hosts": "ci.example.com",
    "tsa-public-keys": "ssh-rsa",
    "gpu-vendor": "nvida",
    "gpu-allocation": "none",
    "gpu-wait-timeout": "240",
    "container-engines": "lxd",
    "gpu-run-group": "gpu users",
    "gpu-driver": "latest",
    "auto-reboot": "true",
    "nvidia-container-toolkit-version": "latest",
    "nvidia-toolkit-mirror": "mirror",
    "nvidia-toolkit-key": "key",
    "minimums": "cpus",
    "gpu-health": "on",
    "quarantine-limit-percent": 0,
    "gpu-recovery": "reboot",
    "job-log": "on",
    "idle-gpu-action": "kill",
    "gpu-metrics-port": 2222,
    "web-metrics-port": 8080,
    "concourse-version": "latest",
    "concourse-mirror": "mirror",
    "web-port": 0,
    "web-tls-port": 9391,
    "web-advertise-address": "a b",
    "worker-settings": "mtu=1",
    "worker-ca-certificates": "ca",
    "only-team": "a b",
    "drain-timeout": "2",
    "runner-url": "gitea",
    "runner-scope": "a/b/c",
    "runner-group": "gpu\tgroup",
    "runners": 257,
    "runner-limits": "memory=16",
    "runner-containers": "docker",
    "runner-download": "https://dl.example.com/runner",
}
# The CI system that reads an option; the first one reads those of the charm.
READER = {one.name: room.options.name for room in ALL[1:] for one in room.options.declared}


def test_each_option_has_a_bad_value_here():
    booleans = {name for name, default in DEFAULTS.items() if isinstance(default, bool)}
    assert BAD.keys() == DEFAULTS.keys() - booleans


@pytest.mark.parametrize("option", BAD)
def test_a_bad_value_freezes_its_part_and_names_option_value_and_remedy(option):
    value = BAD[option]
    options = parse(**{"ci_system": READER.get(option, ALL[0].options.name), option: value})
    (wrong,) = options.wrong
    shown = ascii(str(value))[1:-1]
    assert wrong.option == option
    assert wrong.text.startswith(f"{option} '{shown}")
    assert ": " in wrong.text
    assert BY_NAME[option].part in options.frozen


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
    assert text.endswith("is not allowed: use worker, web or all")
    assert text.startswith(f"deployment-mode '{ascii(mode)[1:-1]}'")


def test_tags_keep_their_order_without_repeats():
    assert parse(extra_tags=" big, fast ,,big,a=b c ").extra_tags == ("big", "fast", "a=b c")


@pytest.mark.parametrize("tag", ["a\nb", "a,b\x00", "a\x1b[31m", "a\u2028b", "a\u202eb"])
def test_bad_tags(tag):
    assert refused(extra_tags=tag).endswith("has an unprintable character: remove it")


@pytest.mark.parametrize("version", ["8.3.0", "7.14.2", "10.0.11"])
def test_concourse_version(version):
    assert parse(concourse_version=version).ci.release.chosen == (version, "")
    for checksum in ("0a" * 32, "0A" * 32):
        named = f" {version}@sha256:{checksum} "
        assert parse(concourse_version=named).ci.release.chosen == (version, "0a" * 32)


@pytest.mark.parametrize(
    "version",
    [
        *("8.3", "v8.3.0", "8.3.0-rc.1", "8.3.0/../x", "latest", f"{'9' * 5000}.0.0"),
        *("8.3.0@", "8.3.0@sha256:", f"8.3.0@{'0a' * 32}", f"8.3.0@sha256:{'0a' * 33}"),
        *(f"@sha256:{'0a' * 32}", f"8.3.0@sha256:{'xy' * 32}", f"8.3.0@sha512:{'0a' * 32}"),
    ],
)
def test_bad_concourse_version(version):
    told = refused(concourse_version=version)
    assert told.endswith("is not a release: use X.Y.Z, or X.Y.Z@sha256:<64 hex digits>")


def test_every_pinned_checksum_is_one():
    for version, checksum in PINNED_SHA256.items():
        assert not parse(concourse_version=f"{version}@sha256:{checksum}").wrong
    assert len(set(PINNED_SHA256.values())) == len(PINNED_SHA256)
    assert RELEASE in PINNED_SHA256


def test_a_tsa_outside_juju():
    hosts = "ci.example.com:2222, 10.0.0.5:22,[fd00::5]:2222"
    options = parse(tsa_hosts=hosts, tsa_public_keys=f"{KEY} root@web\n")
    assert options.ci.worker.tsa_hosts == ("ci.example.com:2222", "10.0.0.5:22", "[fd00::5]:2222")
    assert options.ci.worker.tsa_public_key == KEY


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
    text = refused(tsa_hosts=host, tsa_public_keys=KEY)
    assert text.endswith("is not HOST:PORT: use ci.example.com:2222")


def test_several_host_keys_of_a_tsa_outside_juju_are_all_trusted():
    """As while that Concourse rotates its own."""
    options = parse(tsa_hosts="a:1", tsa_public_keys=f"{KEY} one, {KEY}\n")
    assert options.ci.worker.tsa_public_key.splitlines() == [KEY, KEY]
    assert "is not one line" in refused(tsa_hosts="a:1", tsa_public_keys=f"{KEY},{KEY}\n{KEY}")
    assert refused(tsa_hosts="a:1", tsa_public_keys=f"{KEY},").startswith("tsa-public-keys")


def test_tsa_host_and_key_belong_together():
    assert refused(tsa_hosts="a:1") == (
        "tsa-hosts 'a:1' requires tsa-public-keys: set both or none"
    )
    assert refused(tsa_public_keys=KEY).endswith("requires tsa-hosts: set both or none")


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
        ("ssh-rsa", "is not an OpenSSH public key"),
        (f'command="sh" {KEY}', "is not an OpenSSH public key of a known type"),
        (f"cert-authority {KEY}", "is not an OpenSSH public key of a known type"),
        (KEY.replace("ssh-rsa", "ssh-ed25519"), "is not an OpenSSH public key of a known type"),
        (KEY[:-40], "is not an OpenSSH public key of a known type"),
        ("ssh-rsa ////", "is not an OpenSSH public key of a known type"),
        ("ssh-ünknown AAAA", "is not an OpenSSH public key of a known type"),
        (private(RSA), "is not one line"),
    ],
)
def test_what_is_no_public_key(text, why):
    with pytest.raises(ValueError, match=why):
        public_key(text)
    if text:
        said = refused(tsa_hosts="a:1", tsa_public_keys=text)
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
    options = parse(worker_private_key={"private-key": pem})
    assert options.ci.worker.private_key == pem
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
    assert refused(worker_private_key={"private-key": pem}) == (
        "worker-private-key '(secret)' has no RSA key in PEM without a password: "
        "put one into its field private-key"
    )


@pytest.mark.parametrize("port", [1, 80, 443, 8080, 65535, "8081"])
def test_web_port(port):
    assert parse(web_port=port).ci.web.port == int(port)


@pytest.mark.parametrize("port", [0, -1, 65536, 2222, 2221, 7777, 7788, 8079, 8888, 10**100 - 1])
def test_bad_web_port(port):
    shown = str(port) if port < 10**9 else "9" * 61 + "..."
    assert refused(web_port=port) == (
        f"web-port '{shown}' cannot be used: use 1 to 65535 except "
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
    assert parse(external_url=url).ci.web.external_url == kept


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
    assert refused(external_url=url).endswith("is not a URL: use http://HOST or https://HOST")


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
    assert parse(web_advertise_address=given).ci.web.advertise_address == kept


@pytest.mark.parametrize(
    "given",
    ["10.0.0.300", "10.0.0", "10.0.0.7/16", "10.0.0.7:2222", "http://ci", "a b", "-a", "a..b",
     "a_b", "ci.example.com/16", "fd00::1%eth0", "10.0.0.7,10.0.0.8", "a" * 64, "ü", "a\nb"],
)  # fmt: skip
def test_bad_advertise_address(given):
    text = refused(web_advertise_address=given)
    assert text.endswith(
        "is not an address, host name or network: use 10.0.0.7, ci.example.com or 10.0.0.0/16"
    )


@pytest.mark.parametrize("given", ["127.0.0.1", "::1", "0.0.0.0", "169.254.1.1", "224.0.0.1"])
def test_an_address_that_no_other_machine_reaches(given):
    text = refused(web_advertise_address=given)
    assert text.endswith(
        "cannot be reached from other machines: use an address that they can reach"
    )


@settings(deadline=None, database=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted({*DEFAULTS} - {"enable-gpu"})),
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
        ("concourse_mirror", Part.RELEASE),
        ("gpu_driver", Part.HOST),
        ("gpu_wait_timeout", Part.GPU),
        ("tsa_hosts", Part.WORKER),
        ("worker_settings", Part.WORKER),
        ("web_port", Part.WEB),
        ("external_url", Part.WEB),
        ("gpu_health", Part.WATCH),
        ("quarantine_limit_percent", Part.WATCH),
        ("job_log", Part.WATCH),
        ("idle_gpu_action", Part.WATCH),
        ("gpu_metrics_port", Part.WATCH),
        ("gpu_recovery", Part.WATCH),
        ("auto_reboot", Part.HOST),
        ("gpu_run_group", Part.RUN),
    ],
)
def test_a_value_that_cannot_be_used_concerns_its_own_part_and_the_others_are_read(option, part):
    options = parse(
        **{option: "bad value", "extra_tags": "rack-7", "deployment_mode": "all"}
        | {option: "bad value"}
    )
    assert options.frozen == {part}
    assert options.extra_tags == ("rack-7",)


def test_all_that_is_wrong_is_listed():
    options = parse(web_port="x", gpu_vendor="x", minimums="x")
    assert [one.option for one in options.wrong] == [
        "gpu-vendor",
        "minimums",
        "web-port",
    ]
    # Whose GPUs they are decides which software they need.
    assert options.frozen == {Part.GPU, Part.HOST, Part.WEB}
