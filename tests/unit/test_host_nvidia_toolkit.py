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
from machine import download, packages, repositories
from plan.model import ToolkitPlan

DAY = 86400
PLAN = ToolkitPlan("1.20.0-1", "https://mirror.test/x")
GIVEN = dataclasses.replace(PLAN, key="their key")


class Rooms:
    """The rooms below: a web with one key, and packages as apt would leave them."""

    def __init__(self):
        self.have, self.owned, self.said = {}, {}, []
        self.served, self.asked = self.key(), 0
        self.refused = []  # what apt says to each call, before it works
        self.repository, self.refreshed = None, 0

    def key(self, text="key", days=100.0, fingerprint=toolkit.FINGERPRINT):
        expires = int(time.time() + days * DAY) if days else 0
        return openpgp.SigningKey(text, fingerprint, expires, 0 < expires < time.time())

    def text(self, url, limit, remedy):
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

    def ensure_repository(self, repository):
        changed, self.repository = self.repository != repository, repository
        return changed

    def uris(self):
        return [self.repository.uri] if self.repository else []

    def refresh(self):
        self.refreshed += 1
        if self.refused:
            raise self.refused.pop(0)

    def ensure(self, owner, versions, progress):
        assert owner == "toolkit"
        if self.refused:
            raise self.refused.pop(0)
        changed, self.have = self.have != versions, dict(versions)
        self.owned = self.have
        return changed


@pytest.fixture
def rooms(monkeypatch, tmp_path):
    rooms = Rooms()
    monkeypatch.setattr(toolkit, "_RECORD", tmp_path / "state/toolkit.json")
    monkeypatch.setattr(download, "text", rooms.text)
    monkeypatch.setattr(openpgp, "read", rooms.read)
    monkeypatch.setattr(openpgp, "alone", rooms.alone)
    monkeypatch.setattr(repositories, "ensure", rooms.ensure_repository)
    monkeypatch.setattr(repositories, "uris", rooms.uris)
    monkeypatch.setattr(packages, "refresh", rooms.refresh)
    monkeypatch.setattr(packages, "ensure", rooms.ensure)
    monkeypatch.setattr(packages, "ensure_installed", lambda *_: False)
    monkeypatch.setattr(packages, "owned", lambda _: rooms.owned)
    monkeypatch.setattr(packages, "begun", lambda _: rooms.owned.keys() - rooms.have.keys())
    monkeypatch.setattr(
        packages, "installed", lambda *names: {n: rooms.have[n] for n in names if n in rooms.have}
    )
    return rooms


def ensure(plan=PLAN):
    return toolkit.ensure(plan, lambda _: None)


def ages(rooms, days):
    """So many days pass, as far as the record can tell."""
    record = json.loads(toolkit._RECORD.read_text())
    record["key"]["sought"] -= days * DAY
    record["key"]["expires"] -= days * DAY
    toolkit._RECORD.write_text(json.dumps(record))


def test_key_is_fetched_once_and_not_by_each_hook(rooms):
    assert ensure()
    assert not ensure()
    assert ensure(dataclasses.replace(PLAN, version="1.19.1-1"))
    assert rooms.asked == 1
    assert rooms.repository.key == "key"


def test_key_that_has_expired_is_renewed_without_any_need(rooms):
    ensure()
    rooms.served = rooms.key("renewed")
    ages(rooms, 101)
    assert ensure()
    assert (rooms.repository.key, rooms.asked) == ("renewed", 2)
    assert not ensure()


def test_false_key_that_an_older_charm_took_is_not_kept(rooms):
    ensure()
    record = toolkit._RECORD.read_text()
    toolkit._RECORD.write_text(record.replace('"text": "key"', '"text": "a false key"'))
    rooms.served = rooms.key("the right key")
    assert ensure()
    assert (rooms.repository.key, rooms.asked) == ("the right key", 2)


WRONG = {
    "unreachable": download.UnreachableError("no route"),
    "gone": download.DownloadError("404"),
    "another": openpgp.SigningKey("key", "0" * 40, 0, expired=False),
    "expired": openpgp.SigningKey("key", toolkit.FINGERPRINT, 86400, expired=True),
}


@pytest.mark.parametrize("served", WRONG.values(), ids=WRONG)
def test_toolkit_that_is_installed_does_without_a_key_and_asks_once_a_day(rooms, served, caplog):
    ensure()
    ages(rooms, 101)
    rooms.served = served
    for _ in range(3):
        assert not ensure()
    assert rooms.asked == 2
    assert "the toolkit is not changed" in caplog.text
    ages(rooms, 1.1)
    rooms.served = rooms.key("renewed")
    assert ensure()
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
        ensure()
    assert caught.value.passes == passes
    assert rooms.repository is None
    assert not toolkit._RECORD.exists()


def test_key_by_option_is_taken_as_it_is_and_nothing_fetched(rooms):
    assert ensure(GIVEN)
    assert not ensure(GIVEN)
    assert (rooms.repository.key, rooms.asked) == ("their key", 0)
    ages(rooms, 1000)
    assert not ensure(GIVEN)
    # Without the option only NVIDIA's own is taken.
    assert ensure()
    assert (rooms.repository.key, rooms.asked) == ("key", 1)
    assert ensure(GIVEN)
    assert rooms.repository.key == "their key"


def test_refused_signature_is_tried_with_a_newer_key_once(rooms):
    ensure()
    rooms.served = rooms.key("renewed")
    rooms.refused = [packages.PackageError("NO_PUBKEY", signature=True)]
    assert ensure(dataclasses.replace(PLAN, version="1.19.1-1"))
    assert (rooms.repository.key, rooms.asked) == ("renewed", 2)
    rooms.refused = [packages.PackageError("NO_PUBKEY", signature=True)] * 2
    with pytest.raises(packages.PackageError, match="NO_PUBKEY"):
        ensure()
    assert rooms.asked == 3  # it was the same


@pytest.mark.parametrize("plan", [PLAN, GIVEN])
def test_other_errors_and_given_keys_are_not_tried_again(rooms, plan):
    rooms.refused = [packages.PackageError("BADSIG", signature=plan is GIVEN)]
    with pytest.raises(packages.PackageError, match="BADSIG"):
        ensure(plan)
    assert rooms.asked == (plan is PLAN)


def test_refused_signature_is_told_where_no_newer_key_can_be_had(rooms):
    ensure()
    rooms.served = WRONG["unreachable"]
    rooms.refused = [packages.PackageError("NO_PUBKEY", signature=True)]
    with pytest.raises(packages.PackageError, match="NO_PUBKEY") as caught:
        ensure(dataclasses.replace(PLAN, version="1.19.1-1"))
    assert not caught.value.passes


@pytest.mark.parametrize("more", [{}, {"key": GIVEN.key}, {"version": "1.21.0-1"}])
def test_new_address_without_the_repository_does_not_stay(rooms, more):
    ensure()
    before, record = rooms.repository, toolkit._RECORD.read_text()
    moved = dataclasses.replace(PLAN, mirror="https://wrong.test", **more)
    for _ in range(2):
        rooms.refused = [packages.PackageError("404 Not Found")]
        with pytest.raises(packages.PackageError, match="404"):
            ensure(moved)
        assert (rooms.repository, toolkit._RECORD.read_text()) == (before, record)
    assert ensure(moved)
    assert rooms.repository.uri.startswith("https://wrong.test/stable/deb/")
    assert not ensure(moved)
    assert rooms.refreshed == 3


def test_toolkit_of_somebody_else_is_not_named_where_it_would_be_refused(rooms):
    for have, named in (("1.19.1-1", True), ("1.19.0-1", False), ("1.12.0-1", False)):
        rooms.have = dict.fromkeys(toolkit.PACKAGES, have)
        with pytest.raises(toolkit.ToolkitError, match="sudo apt-get remove") as caught:
            ensure()
        text = f": set nvidia-container-toolkit-version={have}, or remove it"
        assert (text in str(caught.value)) == named
        assert "juju config" not in str(caught.value)


def test_bad_version_is_remembered_before_the_way_back(rooms):
    ensure()
    rooms.refused = [packages.PackageError("no such version")]
    with pytest.raises(packages.PackageError, match="no such version"):
        toolkit.roll_back(PLAN, "1.19.1-1", rooms.said.append)
    assert toolkit.look() == Packaged(
        "1.20.0-1", ours=True, previous="1.19.1-1", bad=("1.20.0-1",)
    )
    assert ensure(dataclasses.replace(PLAN, version="1.19.1-1"))
    assert toolkit.look() == Packaged("1.19.1-1", ours=True, bad=("1.20.0-1",))
    # From here the next version is tried, and this is what it would go back to.
    ensure(dataclasses.replace(PLAN, version="1.21.0-1"))
    assert toolkit.look() == Packaged(
        "1.21.0-1", ours=True, previous="1.19.1-1", bad=("1.20.0-1",)
    )


def test_what_a_killed_hook_has_left_by_halves_is_ours(rooms):
    ensure()
    ensure(dataclasses.replace(PLAN, version="1.21.0-1"))
    rooms.have = {}
    assert toolkit.look() == Packaged("", ours=True, previous="1.20.0-1")


def test_nothing_else_of_nvidias_host_can_come_but_of_a_mirrors_host_it_can(rooms):
    def others(mirror):
        return toolkit._repository(dataclasses.replace(PLAN, mirror=mirror), "key").pins[1]

    assert others("https://nvidia.github.io/libnvidia-container") == ("*", "", -1)
    names, version, priority = others("https://mirror.test/nvidia")
    assert "*" not in names.split()
    assert (version, priority) == ("", -1)


@pytest.mark.parametrize("room", [repositories, packages])
def test_hook_that_was_killed_is_finished_by_the_next(rooms, monkeypatch, room):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(room, "ensure", killed)
        with pytest.raises(KeyboardInterrupt):
            ensure()
    assert ensure()
    assert (rooms.repository.key, rooms.asked) == ("key", 1)
    assert rooms.have == dict.fromkeys(toolkit.PACKAGES, "1.20.0-1")
