# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Releases that wait for their web, are left again, or are no longer what was unpacked."""

import dataclasses
import os
import shutil
import subprocess

import pytest

from ci.concourse import release
from machine import download, files
from tests.functional import test_concourse_release as releases
from tests.functional.test_concourse_release import Killed, die_at, given, sha8, tarball

root = releases.root


@pytest.fixture
def old(root, tmp_path):
    """The release before, on which web and worker have answered."""
    path = tarball(tmp_path / "old.tgz", "8.2.5")
    found = release.ensure(given(path), lambda _: None)
    release.prove(found.path)
    return path


@pytest.fixture
def new(tmp_path):
    return tarball(tmp_path / "new.tgz", "8.3.0")


def ensure(path, *webs):
    plan = dataclasses.replace(given(path), webs=webs)
    found = release.ensure(plan, lambda _: None)
    current = release.installed()
    assert (found.version, found.path) == (current.version, current.path)
    return found


def leave(path):
    """Leave the release of this tarball, as where web does not answer on it."""
    wanted = ensure(path)
    release.give_up(wanted.path, release.before(), "web gave no answer")


def test_worker_that_serves_its_web_goes_no_further_than_the_web(old, new):
    for _ in range(2):
        found = ensure(new, "8.2.5", "8.2.4")
        assert found.version == "8.2.5"
        assert found.waits.code == "release-waits-for-web"
    assert ensure(old, "8.2.5").waits is None
    assert ensure(new, "8.3.0") == release.Release("8.3.0", release.CURRENT.resolve())


def test_worker_that_serves_no_web_anyway_waits_for_none(old, new):
    assert ensure(new, "8.2.5", "8.3.0").version == "8.3.0"


def test_release_that_failed_is_left_until_another_is_asked_for(old, new, tmp_path):
    leave(new)
    for _ in range(2):
        found = ensure(new)
        assert (found.version, found.failed) == ("8.2.5", "web gave no answer")
    assert ensure(old).failed == ""
    assert ensure(new).version == "8.3.0", "asked for anew"
    leave(new)
    assert ensure(new).version == "8.2.5"
    other = tarball(tmp_path / "other.tgz", "8.3.1")
    assert ensure(other) == release.Release("8.3.1", release.CURRENT.resolve())
    assert sorted(os.listdir(release.ROOT)) == [
        f"8.2.5-{sha8(old)}", f"8.3.1-{sha8(other)}", "current",
    ]  # fmt: skip


def test_release_that_failed_is_tried_again_by_the_next_revision_of_the_charm(
    old, new, monkeypatch
):
    leave(new)
    assert ensure(new).version == "8.2.5"
    monkeypatch.setattr(release, "_charm", lambda: 1)
    assert ensure(new).version == "8.3.0"


def test_way_back_is_the_release_that_has_proven_itself(old, new, tmp_path):
    untried = ensure(new)
    newest = ensure(tarball(tmp_path / "newest.tgz", "8.3.1"))
    assert not untried.path.exists()
    assert release.before().version == "8.2.5"
    release.prove(newest.path)
    assert ensure(new).version == "8.3.0"
    assert release.before() == newest


def test_killed_while_it_is_left_it_is_left_by_the_next_hook(old, new):
    deaths = 0
    for step in range(40):
        release.remove()
        release.prove(release.ensure(given(old), lambda _: None).path)
        ensure(new)
        with pytest.MonkeyPatch.context() as monkeypatch:
            die_at(step, monkeypatch)
            try:
                leave(new)
                ensure(new)
            except Killed:
                deaths += 1
            else:
                break
        # What has not been noted is seen anew: web still gives no answer.
        if not (release.ROOT / ".failed.json").exists():
            leave(new)
        assert ensure(new).version == "8.2.5"
        assert ensure(new).failed == "web gave no answer"
    assert deaths >= 4


@pytest.mark.parametrize("damage", ["changed", "gone", "does not run"])
def test_release_that_is_no_longer_what_was_unpacked_is_unpacked_anew(old, new, damage):
    ensure(new)
    ensure(old)
    program = release.ROOT / f"8.3.0-{sha8(new)}/bin/containerd"
    if damage == "changed":
        program.write_text("#!/bin/sh\nexit 7\n")
    elif damage == "gone":
        program.unlink()
    else:
        shutil.copy("/bin/false", program.with_name("concourse"))
    assert ensure(new).version == "8.3.0"
    assert program.read_text() == "#!/bin/sh\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of a few MiB takes root")
def test_disk_that_is_full_leaves_what_runs_as_it_is(old, tmp_path, monkeypatch):
    # It shrinks so much that what it needs can't be foreseen.
    large = tarball(tmp_path / "large.tgz", "8.3.0", **{"concourse/zeros": "0" * (16 << 20)})
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", disk], check=True)
    try:
        for name in ("ROOT", "CURRENT", "_UNPACK", "_DOWNLOADS"):
            place = str(getattr(release, name)).replace(str(tmp_path), str(disk))
            monkeypatch.setattr(release, name, type(tmp_path)(place))
        before = ensure(old)
        with pytest.raises(release.ReleaseError, match=r"is full: make room there"):
            release.ensure(given(large), lambda _: None)
        assert release.installed() == before
        assert sorted(os.listdir(release.ROOT)) == [before.path.name, "current"]
        assert shutil.disk_usage(disk).free > 7 << 20
    finally:
        subprocess.run(["umount", disk], check=True)


def test_version_and_checksum_that_do_not_belong_together_are_told(old, tmp_path, monkeypatch):
    path = tarball(tmp_path / "c.tgz", "8.3.0")
    monkeypatch.setattr(release, "_download", lambda *_: path)
    wanted = dataclasses.replace(given(path), version="8.3.1", tarball="", sha256="ab" * 32)
    words = r"c\.tgz is Concourse 8\.3\.0 and not 8\.3\.1: correct the version or the checksum"
    with pytest.raises(release.ReleaseError, match=words):
        release.ensure(wanted, lambda _: None)
    assert release.installed().version == "8.2.5"


def test_mirror_goes_before_upstream(root, monkeypatch):
    asked = []

    def fetch(url, *_):
        asked.append(url)
        raise download.DownloadError("not now")

    monkeypatch.setattr(download, "fetch", fetch)
    wanted = dataclasses.replace(given(""), sha256="ab" * 32, mirror="http://mirror/concourse")
    with pytest.raises(download.DownloadError, match="not now"):
        release.ensure(wanted, lambda _: None)
    assert asked == ["http://mirror/concourse/v8.3.0/concourse-8.3.0-linux-amd64.tgz"]
    assert files.ensure_absent(root)
