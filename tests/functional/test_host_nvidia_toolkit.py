# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""NVIDIA's container toolkit by the real apt in a machine, from a signed mirror of its own.

In order: what a test leaves, the next one starts from.
"""

import contextlib
import os
import pathlib
import shutil
import tempfile

import ops
import pytest

from tests.fakes import aptrepo, forger
from tests.functional.apt_machine import ALONE
from tests.functional.forked_calls import Calls
from tests.lab.park import Park

ROOT = pathlib.Path(__file__).parents[2]

_MISSING = [name for name in ("systemd-nspawn", "gpg") if not shutil.which(name)]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines need root"),
    pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {', '.join(_MISSING)}"),
    # A machine's keeper is meant to outlive who started it.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

TOOLKIT = "nvidia-container-toolkit"
# Each with what it depends on, at its own version.
PACKAGES = {
    TOOLKIT: ("nvidia-container-toolkit-base", "libnvidia-container-tools"),
    "nvidia-container-toolkit-base": (),
    "libnvidia-container-tools": ("libnvidia-container1",),
    "libnvidia-container1": (),
}
VERSIONS = ("1.17.8-1", "1.19.1-1", "1.20.0-1", "1.21.0-1")
SOURCE = f"/etc/apt/sources.list.d/gpu-ci-{TOOLKIT}.sources"
PYTHONPATH = "/srv/repo/src:/srv/repo/lib:/srv/repo:/srv/packages"
MIRROR = "http://127.0.0.1:8080"
# One Python makes all calls, each in a child of its own.
CALLS = """
from host.nvidia_toolkit import NvidiaToolkit
from machine import download, packages, process
from plan.model import ToolkitPlan
from tests.functional.forked_calls import serve
once = download.Bounds(size=256 << 10, attempts=1)
commands, said, run = [], [], process.run
process.run = lambda argv, **more: commands.append(argv[0]) or run(argv, **more)
def answer(asked):
    toolkit = NvidiaToolkit(bounds=once, fingerprint=asked["fingerprint"])
    plan = asked["plan"]
    arguments = [ToolkitPlan(**plan), *asked["more"], said.append] if plan else []
    told = {"error": "", "passes": False, "result": None}
    try:
        told["result"] = getattr(toolkit, asked["name"])(*arguments)
    except packages.PackageError as error:
        told.update(error=str(error), passes=error.passes)
    return {**told, "commands": commands, "said": said}
serve(answer, plain=vars)
"""
UNTIL_SERVED = """
until /usr/bin/python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8080))' 2>&1
do sleep 0.1; done >/dev/null
"""
# What a refusal, and what the whole life of a toolkit, leaves as it was.
LOOK = """
dpkg -l; apt-mark showhold; apt-mark showauto
find /etc/apt /var/lib/gpu-ci -type f -exec cksum {} + | sort -k 3
"""
LOOK_WELL = f"{LOOK}find /etc -type f ! -name '*cache*' -exec cksum {{}} + | sort -k 3"


class Mirror:
    """The files that the machine's web server shows, laid out as NVIDIA's are."""

    def __init__(self, folder, key):
        self.folder, self.key = folder, key
        self.archive = folder / "stable/deb/amd64"
        self.archive.mkdir(parents=True)
        for version in VERSIONS:
            for name, needs in PACKAGES.items():
                depends = ", ".join(f"{need} (= {version})" for need in needs)
                aptrepo.package(self.archive, name, version, depends=depends)
        aptrepo.package(self.archive, "nvidia-docker2", "2.14.0-1")
        self.mend()

    def public(self):
        """The key as it is now."""
        return self.key.gpg("--armor", "--export")

    def mend(self):
        aptrepo.publish(self.archive, self.key)
        self.show_key(self.public())

    def show_key(self, text):
        (self.folder / "gpgkey").write_text(text)


class Host:
    """The machine, its room of the toolkit, and what dpkg has."""

    def __init__(self, machine, fingerprint):
        self.machine, self.fingerprint = machine, fingerprint
        self.settled = ""  # how it is before each refusal
        self._calls = Calls(machine, PYTHONPATH, "-c", CALLS)

    def close(self):
        self._calls.close()

    def sh(self, script):
        return self.machine.enter("/bin/sh", stdin=script, timeout=180).stdout

    def call(self, name, plan=None, *more):
        asked = {"name": name, "plan": plan, "more": more, "fingerprint": self.fingerprint}
        return self._calls.ask(asked)

    def found(self):
        """Version, whether it is ours, the one before the trial, the bad ones."""
        return tuple(self.call("look")["result"].values())

    def ensure(self, version, **more):
        return self.call("ensure", {"version": version, "mirror": MIRROR, **more})

    def refused(self, version="1.20.0-1", **more):
        """What is said where it can't be done; the machine stays as it was settled."""
        answer = self.ensure(version, **more)
        assert answer["error"]
        assert self.sh(LOOK) == self.settled
        return answer

    def have(self):
        form = "${Package} ${Version} ${db:Status-Want} ${db:Status-Status}\n"
        shown = self.sh(f"dpkg-query -W -f '{form}' '*nvidia-container*' 2>/dev/null || :")
        rows = [line.split() for line in shown.splitlines()]
        return {name: (version, want) for name, version, want, is_ in rows if is_ == "installed"}

    def serve(self, *, up):
        if up:
            serve = "/usr/bin/python3 -m http.server 8080 --bind 127.0.0.1 --directory /srv/mirror"
            self.sh(f"systemd-run -q --unit=mirror {serve}\n{UNTIL_SERVED}")
        else:
            self.sh("systemctl stop mirror; systemctl reset-failed mirror 2>/dev/null || :")


def all_at(version):
    return dict.fromkeys(PACKAGES, (version, "hold"))


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-test-") as folder:
        yield pathlib.Path(folder)


@pytest.fixture(scope="module")
def mirror(folder):
    folder.chmod(0o755)
    return Mirror(folder / "mirror", aptrepo.Key.make(folder / "key"))


@pytest.fixture(scope="module")
def host(folder, mirror):
    park = Park(folder / "park")
    packages = pathlib.Path(ops.__file__).parents[1]
    binds = {"/srv/repo": ROOT, "/srv/packages": packages, "/srv/mirror": mirror.folder}
    try:
        machine = park.up("toolkit", binds_ro=binds)
        with contextlib.closing(Host(machine, mirror.key.fingerprint)) as host:
            host.sh(
                f"{ALONE}\necho force-unsafe-io >/etc/dpkg/dpkg.cfg.d/test; "
                "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*; apt-get -qq update"
            )
            # Folders that stay are no difference.
            host.sh("mkdir -p /var/lib/gpu-ci /etc/apt/keyrings")
            host.serve(up=True)
            yield host
    finally:
        park.destroy()


@pytest.fixture(scope="module")
def other(folder):
    """A key that is not the mirror's."""
    return aptrepo.Key.make(folder / "other")


@pytest.fixture(scope="module")
def before(host):
    host.settled = host.sh(LOOK)
    return host.sh(LOOK_WELL)


def test_what_is_no_key_is_refused_and_nothing_written(host, mirror, before):
    mirror.show_key("<!DOCTYPE html><html>Log in</html>")
    page = host.refused()
    (mirror.folder / "gpgkey").unlink()
    missing = host.refused()
    for answer, said in (page, "a web page"), (missing, "the server answered 404"):
        assert said in answer["error"]
        assert "nvidia-toolkit-mirror" in answer["error"]
        assert not answer["passes"]
    mirror.mend()


def test_other_keys_are_refused_with_both_fingerprints(host, mirror, before, other):
    mirror.show_key(other.public)
    answer = host.refused()
    assert other.fingerprint in answer["error"]
    assert mirror.key.fingerprint in answer["error"]
    mirror.show_key(mirror.public() + other.public)
    assert "several blocks" in host.refused()["error"]
    assert "several blocks" in host.refused(key=mirror.public() + other.public)["error"]
    mirror.mend()


def deceptions(own, other):
    """Keys of an attacker's that have to do with the pinned one, by what gpg tells of them."""
    other.gpg("--import", stdin=own.public)
    theirs, ours = (forger.taken_apart(key.public) for key in (other, own))
    subkey = (forger.SUBKEY, ours[0][1])
    name = (forger.USER_ID, f"fpr:::::::::{own.fingerprint}:".encode())
    asked = f"addrevoker\n{own.fingerprint}\ny\nsave\n"
    other.gpg("--command-fd", "0", "--edit-key", other.fingerprint, stdin=asked)
    yield other.gpg("--armor", "--export", other.fingerprint), other.fingerprint
    for more in ([subkey, theirs[-1]], [name, theirs[-1]]):
        yield packed(theirs + more), other.fingerprint
    for both in (theirs + ours, ours + theirs):
        yield packed(both), "2 keys, not one"
    yield packed([*ours, (forger.ATTRIBUTE, b"\x05\x01face"), *theirs]), "2 keys, not one"


def packed(packets):
    return forger.armour(b"".join(forger.packet(*packet) for packet in packets))


def test_key_that_only_names_the_pinned_one_is_refused(host, mirror, before, other):
    aptrepo.publish(mirror.archive, other)
    for text, said in deceptions(mirror.key, other):
        mirror.show_key(text)
        assert said in host.refused()["error"]
    mirror.mend()


def test_unreachable_mirror_may_be_back_by_itself(host, before):
    host.serve(up=False)
    answer = host.refused()
    assert "Connection refused" in answer["error"]
    assert answer["passes"]
    host.serve(up=True)


def test_list_of_the_operators_for_the_same_repository_is_named_and_left(host, before):
    path = f"/etc/apt/sources.list.d/{TOOLKIT}.list"
    line = f"deb [signed-by=/usr/share/keyrings/x.gpg] {MIRROR}/stable/deb/$(ARCH) /"
    host.sh(f"echo '{line}' >{path}")
    answer = host.ensure("1.20.0-1")
    assert f"sudo mv {path} {path}.disabled" in answer["error"]
    assert "Signed-By" in answer["error"]
    assert host.sh(f"cat {path}; rm {path}").strip() == line
    assert host.sh(LOOK) == host.settled


def test_tampered_repository_gives_nothing_and_stands_in_nobodys_way(host, mirror, before):
    listed = mirror.archive / "Packages"
    aptrepo.replace(listed, listed.read_bytes().replace(b"1.20.0-1", b"1.20.0-9"))
    answer = host.ensure("1.20.0-1")
    assert "does not match its signature" in answer["error"]
    assert not answer["passes"]
    assert host.have() == {}
    host.sh(f"test ! -e {SOURCE} && apt-get update")
    mirror.mend()


def test_repository_signed_by_another_key_gives_nothing(host, mirror, before, other):
    aptrepo.publish(mirror.archive, other)
    answer = host.ensure("1.20.0-1")
    assert "signature" in answer["error"]
    assert not answer["passes"]
    assert host.have() == {}
    mirror.mend()


def test_subkey_that_the_pinned_key_has_not_signed_signs_no_repository(
    host, mirror, before, other
):
    """Its primary key is the right one, so it is taken, and apt has to refuse it."""
    aptrepo.publish(mirror.archive, other)
    theirs, ours = (forger.taken_apart(key.public) for key in (other, mirror.key))
    for signature in (ours[-1], theirs[-1]):
        mirror.show_key(packed([*ours, (forger.SUBKEY, theirs[0][1]), signature]))
        answer = host.ensure("1.20.0-1")
        assert "signature" in answer["error"]
        assert not answer["passes"]
        assert host.have() == {}
        host.sh(f"test ! -e {SOURCE}")
    mirror.mend()


def test_all_four_come_at_the_version_and_nothing_moves_them(host, before):
    assert host.found() == ("", False, "", [])
    answer = host.ensure("1.20.0-1")
    assert (answer["result"], answer["error"]) == (True, "")
    assert any(TOOLKIT in text for text in answer["said"])
    assert host.have() == all_at("1.20.0-1")
    assert host.found() == ("1.20.0-1", True, "", [])
    # Without the holds the pins do.
    host.sh(f"apt-mark unhold {' '.join(PACKAGES)} && apt-get -qqy dist-upgrade")
    assert host.have() == dict.fromkeys(PACKAGES, ("1.20.0-1", "install"))
    assert host.ensure("1.20.0-1")["result"] is True
    assert host.have() == all_at("1.20.0-1")
    assert "Candidate: (none)" in host.sh("apt-cache policy nvidia-docker2")


def test_second_time_only_looks(host):
    host.serve(up=False)
    at_first = host.sh(LOOK)
    answer = host.ensure("1.20.0-1")
    assert (answer["result"], answer["error"], answer["said"]) == (False, "", [])
    assert set(answer["commands"]) == {"/usr/bin/dpkg-query"}
    assert len(answer["commands"]) <= 4
    assert host.sh(LOOK) == at_first
    host.serve(up=True)


def test_mirror_that_lacks_the_repository_does_not_take_its_place(host):
    at_first = host.sh(LOOK)
    answer = host.ensure("1.20.0-1", mirror=f"{MIRROR}/nowhere")
    assert "a repository's address does not exist" in answer["error"]
    assert host.sh(LOOK) == at_first
    host.sh("apt-get update")


def test_it_goes_down_and_up_all_four_together(host):
    assert host.ensure("1.17.8-1")["result"] is True
    assert host.have() == all_at("1.17.8-1")
    assert host.ensure("1.21.0-1")["result"] is True
    assert host.have() == all_at("1.21.0-1")
    # On trial, and the last before all trials is what to go back to.
    assert host.found() == ("1.21.0-1", True, "1.20.0-1", [])


def test_version_that_was_bad_is_remembered_on_the_way_back(host):
    plan = {"version": "1.21.0-1", "mirror": MIRROR}
    assert host.call("roll_back", plan, "1.19.1-1")["result"] is True
    assert host.have() == all_at("1.19.1-1")
    assert host.found() == ("1.19.1-1", True, "", ["1.21.0-1"])


def test_version_that_there_is_not_changes_nothing(host):
    answer = host.ensure("1.30.0-1")
    assert "1.30.0-1" in answer["error"]
    assert "1.21.0-1" in answer["error"]
    assert host.have() == all_at("1.19.1-1")
    assert host.found() == ("1.19.1-1", True, "", ["1.21.0-1"])
    assert host.ensure("1.19.1-1")["error"] == ""


def test_new_subkey_of_the_same_key_is_fetched_when_a_signature_needs_it(host, mirror):
    mirror.key.gpg("--quick-add-key", mirror.key.fingerprint, "ed25519", "sign", "0")
    mirror.mend()  # which signs with the newest subkey
    assert host.ensure("1.20.0-1")["error"] == ""
    assert host.have() == all_at("1.20.0-1")
    asc = host.sh(f"cat /etc/apt/keyrings/gpu-ci-{TOOLKIT}.asc")
    assert asc.strip() == mirror.public().strip()


def test_key_that_has_expired_is_fetched_anew_and_nothing_else_done(host, mirror):
    edit = (
        "import json, sys; d = json.load(open(sys.argv[1])); d['key'].update(expires=1, sought=1)"
    )
    write = "json.dump(d, open(sys.argv[1], 'w'))"
    host.sh(f'python3 -c "{edit}; {write}" /var/lib/gpu-ci/toolkit.json')
    mirror.key.gpg("--quick-set-expire", mirror.key.fingerprint, "1y")
    mirror.mend()
    answer = host.ensure("1.20.0-1")
    assert (answer["result"], answer["error"]) == (True, "")
    assert "/usr/bin/apt-get" not in answer["commands"]
    asc = host.sh(f"cat /etc/apt/keyrings/gpu-ci-{TOOLKIT}.asc")
    assert asc.strip() == mirror.public().strip()
    host.sh("apt-get update 2>&1 | tee /dev/stderr | grep -q '^[WE]:' && exit 1 || :")


def test_release_gives_up_all_but_the_packages_which_go_with_the_unit(host, before):
    assert host.call("release")["result"] is True
    assert host.have() == dict.fromkeys(PACKAGES, ("1.20.0-1", "install"))
    host.sh(f"test ! -e {SOURCE} && test ! -e /var/lib/gpu-ci/toolkit.json")
    answer = host.call("release")
    assert (answer["result"], answer["commands"]) == (False, [])
    code = "from machine import packages; print(packages.remove_installed())"
    host.sh(f"PYTHONPATH={PYTHONPATH} python3 -B -c '{code}'")
    assert host.sh(LOOK_WELL) == before


def test_toolkit_of_somebody_else_is_left_alone(host, mirror, before):
    debs = " ".join(f"/srv/mirror/stable/deb/amd64/{name}_1.19.1-1_*.deb" for name in PACKAGES)
    host.sh(f"dpkg -i {debs}")
    host.settled = host.sh(LOOK)
    assert host.found() == ("1.19.1-1", False, "", [])
    answer = host.refused("1.20.0-1")
    assert f"{TOOLKIT} 1.19.1-1" in answer["error"]
    assert "nvidia-container-toolkit-version=1.19.1-1" in answer["error"]
    assert host.ensure("1.19.1-1")["result"] is False
    assert host.call("release")["result"] is False
    assert host.sh(LOOK) == host.settled


def test_key_by_option_needs_no_key_on_the_mirror(host, mirror, before, other):
    host.sh(f"dpkg -P {' '.join(PACKAGES)}")
    aptrepo.publish(mirror.archive, other)
    (mirror.folder / "gpgkey").unlink()
    answer = host.ensure("1.20.0-1", key=other.public)
    assert (answer["result"], answer["error"]) == (True, "")
    assert host.have() == all_at("1.20.0-1")
    assert host.ensure("1.20.0-1", key=other.public)["result"] is False
