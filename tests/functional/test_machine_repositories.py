# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Repositories of our own by the real apt, over HTTP: keys, pins, what is refused, what stays."""

import contextlib
import shutil

import pytest

from tests.fakes import aptrepo
from tests.functional.apt_machine import NEEDS, apt_machine

pytestmark = NEEDS

URI = "http://localhost:8000/mirror"
PINS = [["gpuci-kit gpuci-kit-base", "1", 1001], ["*", "", -1]]
KIT = {"gpuci-kit": "1", "gpuci-kit-base": "1"}
ENSURE = "repositories.ensure(repository)"
INSTALL = f"packages.ensure('toolkit', {KIT}, said.append)"
SERVE = """
systemd-run --quiet --unit=mirror --collect --working-directory=/srv/test \\
    /usr/bin/python3 -m http.server 8000
until /usr/bin/python3 -c 'import socket; socket.create_connection(("localhost", 8000))' 2>&1
do sleep 0.1; done >/dev/null
"""
# All that a charm could leave of packages: what there is, holds, marks, apt's settings.
SEEN = """
dpkg -l; dpkg --get-selections; apt-mark showhold; apt-mark showmanual
find /etc/apt -printf '%M %u %p\\n' | sort
find /var/lib/gpu-ci -mindepth 1 2>/dev/null
find /etc/apt -type f | sort | xargs sha256sum
"""


def fill(host):
    aptrepo.package(host.archive, "gpuci-before", "1")
    aptrepo.package(host.archive, "gpuci-stranger", "1")
    for version in ("1", "2"):
        aptrepo.package(host.mirror, "gpuci-kit", version, f"gpuci-kit-base (= {version})")
        aptrepo.package(host.mirror, "gpuci-kit-base", version)
    aptrepo.package(host.mirror, "gpuci-stranger", "2")


@pytest.fixture(scope="module")
def host():
    with apt_machine(fill) as machine:
        machine.sh("apt-get -qqy install gpuci-before >/dev/null")
        machine.sh(SERVE)
        yield machine


@pytest.fixture(autouse=True)
def as_at_first(host):
    yield
    host.reset()
    host.sh("rm -rf /var/lib/apt/lists/localhost* /var/cache/apt/archives/gpuci-*")


def about(host, **more):
    key = host.keys["mirror"].public
    return {"name": "kit", "uri": URI, "suites": "/", "key": key, "pins": PINS, **more}


@contextlib.contextmanager
def changed(host, *names):
    """Let a test do as it likes with files of the mirror."""
    kept = {name: (host.mirror / name).read_bytes() for name in names}
    try:
        yield
    finally:
        for name, content in kept.items():
            aptrepo.replace(host.mirror / name, content)


def test_all_is_as_before_when_it_has_gone(host):
    before = host.sh(SEEN)
    assert host.value(ENSURE, repository=about(host)) is True
    assert host.value(INSTALL) is True
    assert host.have() == {**KIT, "gpuci-before": "1"}
    assert host.holds() == set(KIT)
    # Once more changes nothing, and asks no one.
    again = host.do(f"({ENSURE}, {INSTALL})", repository=about(host))
    assert again["value"] == [False, False]
    assert {command[0] for command in again["commands"]} == {"/usr/bin/dpkg-query"}
    # The first half alone: pins, holds and source go, packages stay.
    host.value("repositories.remove('kit') + packages.release_holds('toolkit')")
    assert host.have() == {**KIT, "gpuci-before": "1"}
    assert host.holds() == set()
    assert host.value("packages.remove_installed()") is True
    assert host.sh(SEEN) == before
    assert host.value("repositories.remove('kit')") is False


def test_its_files_say_who_signs_and_what_may_move(host):
    host.value(ENSURE, repository=about(host))
    shown = host.sh("cat /etc/apt/sources.list.d/gpu-ci-kit.sources")
    assert shown == (
        f"Types: deb\nURIs: {URI}\nSuites: /\nSigned-By: /etc/apt/keyrings/gpu-ci-kit.asc\n"
    )
    assert host.value("repositories.uris()") == [URI]
    host.sh("apt-get -qq update")
    # The pinned version, and nothing else of that host's, though it is newer.
    shown = host.sh("apt-cache policy gpuci-kit gpuci-stranger | grep Candidate")
    assert shown.split() == ["Candidate:", "1", "Candidate:", "1"]
    # A pin that goes leaves no file.
    assert host.value(ENSURE, repository=about(host, pins=[])) is True
    assert host.sh("find /etc/apt/preferences.d -name 'gpu-ci*'") == ""
    shown = host.sh("apt-cache policy gpuci-kit | grep Candidate")
    assert shown.split() == ["Candidate:", "2"]


@pytest.mark.parametrize(
    "wrong", [{"name": "../kit"}, {"key": " "}, {"uri": "http://x/\nTrusted: yes"}, {"uri": ""}]
)
def test_what_is_no_repository_is_never_written(host, wrong):
    with pytest.raises(Exception, match="ValueError"):
        host.do(ENSURE, repository=about(host, **wrong))
    assert host.sh("find /etc/apt -name 'gpu-ci-*'") == ""


def test_another_key_is_refused_and_the_right_one_mends_it(host):
    other = host.keys["archive"].public
    host.value(ENSURE, repository=about(host, key=other))
    for call in (INSTALL, "packages.refresh()"):
        wrong = host.error(call)
        assert wrong["signature"] is True
        assert wrong["passes"] is False
        assert "the signature of a repository was refused" in wrong["error"]
        assert "NO_PUBKEY" in wrong["error"]
    assert host.have() == {"gpuci-before": "1"}
    host.value(ENSURE, repository=about(host))
    assert host.value(INSTALL) is True


def test_what_was_signed_by_another_later_is_told_though_old_lists_are_there(host):
    host.value(ENSURE, repository=about(host))
    assert host.value("packages.refresh()") == ""
    with changed(host, "InRelease", "Release", "Packages"):
        aptrepo.publish(host.mirror, host.keys["archive"])
        wrong = host.error(INSTALL)
    assert wrong["signature"] is True
    assert URI in wrong["error"]


def test_without_a_signature_nothing_is_taken(host):
    with changed(host, "InRelease"):
        (host.mirror / "InRelease").unlink()
        host.value(ENSURE, repository=about(host))
        wrong = host.error(INSTALL)
    assert wrong["signature"] is True
    assert "is not signed" in wrong["error"]


def test_what_was_tampered_with_is_refused(host):
    host.value(ENSURE, repository=about(host))
    with changed(host, "InRelease"):
        text = (host.mirror / "InRelease").read_text()
        text = text.replace("Label: tests", "Label: texts")
        aptrepo.replace(host.mirror / "InRelease", text.encode())
        wrong = host.error(INSTALL)
    assert wrong["signature"] is True
    assert "BADSIG" in wrong["error"]
    with changed(host, "Packages"):
        text = (host.mirror / "Packages").read_text()
        text = text.replace("gpuci-stranger", "gpuci-strange1")
        aptrepo.replace(host.mirror / "Packages", text.encode())
        wrong = host.error(INSTALL)
    assert "does not match its signature" in wrong["error"]
    deb = "gpuci-kit-base_1_all.deb"
    with changed(host, deb):
        content = bytearray((host.mirror / deb).read_bytes())
        content[-2000] ^= 1
        aptrepo.replace(host.mirror / deb, bytes(content))
        wrong = host.error(INSTALL)
        assert "does not match its signature" in wrong["error"]
        aptrepo.replace(host.mirror / deb, bytes(content + b"more"))
        wrong = host.error(INSTALL)
        assert "does not match its signature" in wrong["error"]
    assert host.have() == {"gpuci-before": "1"}
    assert host.value(INSTALL) is True


def test_an_address_without_a_repository_is_told(host):
    host.value(ENSURE, repository=about(host, uri="http://localhost:8000/nowhere"))
    wrong = host.error(INSTALL)
    assert "a repository's address does not exist" in wrong["error"]
    assert wrong["passes"] is False


def test_one_that_cannot_be_reached_passes(host):
    host.value(ENSURE, repository=about(host, uri="http://localhost:9/mirror"))
    for call in (INSTALL, "packages.refresh()"):
        wrong = host.error(call)
        assert wrong["passes"] is True
        assert "a repository can't be reached" in wrong["error"]
        assert "localhost:9" in wrong["error"]


def test_another_ones_that_fails_stops_nothing(host):
    host.value(ENSURE, repository=about(host))
    host.sh("echo 'deb http://127.0.0.1:9/theirs /' >/etc/apt/sources.list.d/theirs.list")
    try:
        assert "127.0.0.1:9/theirs" in host.value("packages.refresh()")
        assert host.value(INSTALL) is True
    finally:
        host.sh("rm /etc/apt/sources.list.d/theirs.list")


def test_a_rival_source_of_the_same_repository_is_named(host):
    host.value(ENSURE, repository=about(host))
    host.sh(
        f"echo 'deb [signed-by=/srv/test/archive.asc] {URI} /' >/etc/apt/sources.list.d/a.list"
    )
    try:
        wrong = host.error(INSTALL)
    finally:
        host.sh("rm /etc/apt/sources.list.d/a.list")
    assert "another source of the same repository" in wrong["error"]


def test_the_proxy_of_the_model_is_used(host):
    # What a client asks a proxy for is a whole address, here a path of that server.
    proxied = host.folder / "http:"
    proxied.mkdir()
    (proxied / "nvidia.invalid").symlink_to("../mirror")
    try:
        host.value(ENSURE, repository=about(host, uri="http://nvidia.invalid"))
        env = {"JUJU_CHARM_HTTP_PROXY": "http://localhost:8000"}
        assert host.value(INSTALL, env=env) is True
    finally:
        shutil.rmtree(proxied)
