# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""When the key of NVIDIA's repository is asked for, and what is remembered of it.

What apt makes of it all is proved in functional/test_host_nvidia_toolkit.py.
"""

import dataclasses
import json
import time

import pytest

from gpu_agent.model.host import Packaged
from host import nvidia_toolkit as toolkit
from host import openpgp
from host.nvidia_toolkit import NvidiaToolkit
from machine import download, packages
from plan.model import ToolkitPlan

DAY = 86400
PLAN = ToolkitPlan("1.20.0-1", "https://mirror.test/x")
GIVEN = dataclasses.replace(PLAN, key="their key")


class Packages:
    """The toolkit's packages, as apt would leave them.

    Attributes:
        have: those that are installed.
        mine: those that the charm brought.
        refused: what apt says to each call, before it works.
        dies: whether the process is killed in the next installation.
        refreshed: how often the lists were fetched.
    """

    def __init__(self):
        self.have, self.mine, self.refused = {}, {}, []
        self.dies, self.refreshed = False, 0

    def installed(self, *names):
        return {name: self.have[name] for name in names if name in self.have}

    def owned(self, _):
        return self.mine

    def begun(self, _):
        return self.mine.keys() - self.have.keys()

    def refresh(self):
        self.refreshed += 1
        if self.refused:
            raise self.refused.pop(0)

    def ensure_installed(self, name):
        assert name == "gpg"
        return False

    def ensure(self, owner, versions, _):
        assert owner == "toolkit"
        if self.dies:
            raise KeyboardInterrupt
        if self.refused:
            raise self.refused.pop(0)
        changed, self.have = self.have != versions, dict(versions)
        self.mine = self.have
        return changed


class Repositories:
    """The one repository that apt knows by the charm; `dies` is as for Packages."""

    def __init__(self):
        self.only, self.dies = None, False

    def ensure(self, repository):
        if self.dies:
            raise KeyboardInterrupt
        changed, self.only = self.only != repository, repository
        return changed

    def remove(self, _):
        changed, self.only = self.only is not None, None
        return changed

    def uris(self):
        return [self.only.uri] if self.only else []


class Rooms:
    """A machine with packages and repositories, and a web with one key.

    Attributes:
        served: the key, or the error that the web ends with.
        asked: how often the web was asked.
    """

    def __init__(self, folder):
        self.packages, self.repositories = Packages(), Repositories()
        self.served, self.asked, self.said = self.key(), 0, []
        self.toolkit = NvidiaToolkit(
            folder / "state/toolkit.json", self.packages, self.repositories, self, self.fetch
        )

    def key(self, text="key", days=100.0, fingerprint=toolkit.FINGERPRINT):
        expires = int(time.time() + days * DAY) if days else 0
        return openpgp.SigningKey(text, fingerprint, expires, 0 < expires < time.time())

    def fetch(self, url, _bounds, _remedy):
        assert url in ("https://mirror.test/x/gpgkey", "https://wrong.test/gpgkey")
        self.asked += 1
        if isinstance(self.served, Exception):
            raise self.served
        return self.served.text

    def read(self, text):
        if text == GIVEN.key:
            return self.key(text, fingerprint="F" * 40)
        return self.served

    def alone(self, text):
        fingerprints = {GIVEN.key: "F" * 40, "a false key": "0" * 40}
        return fingerprints.get(text, toolkit.FINGERPRINT), text

    @property
    def repository(self):
        return self.repositories.only

    def ensure(self, plan=PLAN):
        return self.toolkit.ensure(plan, self.said.append)

    def ages(self, days):
        """So many days pass, as far as the record can tell."""
        path = self.toolkit.record
        record = json.loads(path.read_text())
        record["key"]["sought"] -= days * DAY
        record["key"]["expires"] -= days * DAY
        path.write_text(json.dumps(record))


@pytest.fixture
def rooms(tmp_path):
    return Rooms(tmp_path)


def test_key_is_fetched_once_and_not_by_each_hook(rooms):
    assert rooms.ensure()
    assert not rooms.ensure()
    assert rooms.ensure(dataclasses.replace(PLAN, version="1.19.1-1"))
    assert rooms.asked == 1
    assert rooms.repository.key == "key"


def test_key_that_has_expired_is_renewed_without_any_need(rooms):
    rooms.ensure()
    rooms.served = rooms.key("renewed")
    rooms.ages(101)
    assert rooms.ensure()
    assert (rooms.repository.key, rooms.asked) == ("renewed", 2)
    assert not rooms.ensure()


def test_false_key_that_an_older_charm_took_is_not_kept(rooms):
    rooms.ensure()
    record = rooms.toolkit.record.read_text()
    rooms.toolkit.record.write_text(record.replace('"text": "key"', '"text": "a false key"'))
    rooms.served = rooms.key("the right key")
    assert rooms.ensure()
    assert (rooms.repository.key, rooms.asked) == ("the right key", 2)


WRONG = {
    "unreachable": download.UnreachableError("no route"),
    "gone": download.DownloadError("404"),
    "another": openpgp.SigningKey("key", "0" * 40, 0, expired=False),
    "expired": openpgp.SigningKey("key", toolkit.FINGERPRINT, 86400, expired=True),
}


@pytest.mark.parametrize("served", WRONG.values(), ids=WRONG)
def test_toolkit_that_is_installed_does_without_a_key_and_asks_once_a_day(rooms, served, caplog):
    rooms.ensure()
    rooms.ages(101)
    rooms.served = served
    for _ in range(3):
        assert not rooms.ensure()
    assert rooms.asked == 2
    assert "the toolkit is not changed" in caplog.text
    rooms.ages(1.1)
    rooms.served = rooms.key("renewed")
    assert rooms.ensure()
    assert rooms.repository.key == "renewed"


@pytest.mark.parametrize(
    ("served", "said", "passes"),
    [
        ("unreachable", "no route", True),
        ("gone", "404", False),
        ("another", f"should be {toolkit.FINGERPRINT} but is {'0' * 40}", False),
        ("expired", r"expired on 1970-01-02", False),
    ],
)
def test_toolkit_that_is_not_installed_needs_one(rooms, served, said, passes):
    rooms.served = WRONG[served]
    with pytest.raises(toolkit.ToolkitError, match=said) as caught:
        rooms.ensure()
    assert caught.value.passes == passes
    assert rooms.repository is None
    assert not rooms.toolkit.record.exists()


def test_key_by_option_is_taken_as_it_is_and_nothing_fetched(rooms):
    assert rooms.ensure(GIVEN)
    assert not rooms.ensure(GIVEN)
    assert (rooms.repository.key, rooms.asked) == ("their key", 0)
    rooms.ages(1000)
    assert not rooms.ensure(GIVEN)
    # Without the option only NVIDIA's own is taken.
    assert rooms.ensure()
    assert (rooms.repository.key, rooms.asked) == ("key", 1)
    assert rooms.ensure(GIVEN)
    assert rooms.repository.key == "their key"


def test_refused_signature_is_tried_with_a_newer_key_once(rooms):
    rooms.ensure()
    rooms.served = rooms.key("renewed")
    rooms.packages.refused = [packages.PackageError("NO_PUBKEY", signature=True)]
    assert rooms.ensure(dataclasses.replace(PLAN, version="1.19.1-1"))
    assert (rooms.repository.key, rooms.asked) == ("renewed", 2)
    rooms.packages.refused = [packages.PackageError("NO_PUBKEY", signature=True)] * 2
    with pytest.raises(packages.PackageError, match="NO_PUBKEY"):
        rooms.ensure()
    assert rooms.asked == 3  # it was the same


@pytest.mark.parametrize("plan", [PLAN, GIVEN])
def test_other_errors_and_given_keys_are_not_tried_again(rooms, plan):
    rooms.packages.refused = [packages.PackageError("BADSIG", signature=plan is GIVEN)]
    with pytest.raises(packages.PackageError, match="BADSIG"):
        rooms.ensure(plan)
    assert rooms.asked == (plan is PLAN)


def test_refused_signature_is_told_where_no_newer_key_can_be_had(rooms):
    rooms.ensure()
    rooms.served = WRONG["unreachable"]
    rooms.packages.refused = [packages.PackageError("NO_PUBKEY", signature=True)]
    with pytest.raises(packages.PackageError, match="NO_PUBKEY") as caught:
        rooms.ensure(dataclasses.replace(PLAN, version="1.19.1-1"))
    assert not caught.value.passes


@pytest.mark.parametrize("more", [{}, {"key": GIVEN.key}, {"version": "1.21.0-1"}])
def test_new_address_without_the_repository_does_not_stay(rooms, more):
    rooms.ensure()
    before, record = rooms.repository, rooms.toolkit.record.read_text()
    moved = dataclasses.replace(PLAN, mirror="https://wrong.test", **more)
    for _ in range(2):
        rooms.packages.refused = [packages.PackageError("404 Not Found")]
        with pytest.raises(packages.PackageError, match="404"):
            rooms.ensure(moved)
        assert (rooms.repository, rooms.toolkit.record.read_text()) == (before, record)
    assert rooms.ensure(moved)
    assert rooms.repository.uri.startswith("https://wrong.test/stable/deb/")
    assert not rooms.ensure(moved)
    assert rooms.packages.refreshed == 3


def test_toolkit_of_somebody_else_is_not_named_where_it_would_be_refused(rooms):
    for have, named in (("1.19.1-1", True), ("1.19.0-1", False), ("1.12.0-1", False)):
        rooms.packages.have = dict.fromkeys(toolkit.PACKAGES, have)
        with pytest.raises(toolkit.ToolkitError, match="sudo apt-get remove") as caught:
            rooms.ensure()
        text = f": set nvidia-container-toolkit-version={have}, or remove it"
        assert (text in str(caught.value)) == named
        assert "juju config" not in str(caught.value)


def test_bad_version_is_remembered_before_the_way_back(rooms):
    rooms.ensure()
    rooms.packages.refused = [packages.PackageError("no such version")]
    with pytest.raises(packages.PackageError, match="no such version"):
        rooms.toolkit.roll_back(PLAN, "1.19.1-1", rooms.said.append)
    assert rooms.toolkit.look() == Packaged(
        "1.20.0-1", ours=True, previous="1.19.1-1", bad=("1.20.0-1",)
    )
    assert rooms.ensure(dataclasses.replace(PLAN, version="1.19.1-1"))
    assert rooms.toolkit.look() == Packaged("1.19.1-1", ours=True, bad=("1.20.0-1",))
    # From here the next version is tried, and this is what it would go back to.
    rooms.ensure(dataclasses.replace(PLAN, version="1.21.0-1"))
    assert rooms.toolkit.look() == Packaged(
        "1.21.0-1", ours=True, previous="1.19.1-1", bad=("1.20.0-1",)
    )


def test_what_a_killed_hook_has_left_by_halves_is_ours(rooms):
    rooms.ensure()
    rooms.ensure(dataclasses.replace(PLAN, version="1.21.0-1"))
    rooms.packages.have = {}
    assert rooms.toolkit.look() == Packaged("", ours=True, previous="1.20.0-1")


def test_nothing_else_of_nvidias_host_can_come_but_of_a_mirrors_host_it_can(rooms):
    def others(mirror):
        return toolkit._repository(dataclasses.replace(PLAN, mirror=mirror), "key").pins[1]

    assert others("https://nvidia.github.io/libnvidia-container") == ("*", "", -1)
    names, version, priority = others("https://mirror.test/nvidia")
    assert "*" not in names.split()
    assert (version, priority) == ("", -1)


@pytest.mark.parametrize("part", ["repositories", "packages"])
def test_hook_that_was_killed_is_finished_by_the_next(rooms, part):
    dying = getattr(rooms, part)
    dying.dies = True
    with pytest.raises(KeyboardInterrupt):
        rooms.ensure()
    dying.dies = False
    assert rooms.ensure()
    assert (rooms.repository.key, rooms.asked) == ("key", 1)
    assert rooms.packages.have == dict.fromkeys(toolkit.PACKAGES, "1.20.0-1")
