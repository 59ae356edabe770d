# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which Concourse a unit is to have: its own option's, or that of the web that it serves."""

import dataclasses

import pytest

from ci.concourse.plan import messages
from ci.concourse.plan.model import planned
from ci.concourse.upstream import PINNED_SHA256
from plan import status
from plan.messages import Level
from tests.unit.situations import TSA, Running, changed, make_plan, refused, status_lines, unit

NAMED = f"8.4.0@sha256:{'ab' * 32}"


def follower(*webs, **given):
    return unit(tsa=dataclasses.replace(TSA, versions=webs), **given)


def lines(found):
    return status_lines(found, make_plan(found), Running(worker=True, connected=True))


@pytest.mark.parametrize(
    ("webs", "version"),
    [
        (("8.2.5",), "8.2.5"),
        (("8.3.0",), "8.3.0"),
        ((), "8.3.0"),
        # While webs are being upgraded: a worker serves older ones of the same API too.
        (("8.2.4", "8.2.5"), "8.2.5"),
    ],
)
def test_worker_follows_its_web_where_the_checksum_is_known(webs, version):
    made = make_plan(follower(*webs))
    assert (planned(made).release.version, planned(made).release.sha256) == (
        version,
        PINNED_SHA256[version],
    )
    assert planned(made).release.webs == webs
    assert made.problems == ()


@pytest.mark.parametrize("version", ["8.2.5", NAMED])
def test_worker_with_a_version_of_its_own_does_not_follow(version):
    made = make_plan(follower("8.3.0", options={"concourse-version": version})).ci.own.release
    assert made.version == version[:5]
    assert made.sha256 == PINNED_SHA256.get(version, "ab" * 32)
    assert made.is_named is (version == NAMED)


UNKNOWN = "its checksum is unknown"
TOO_OLD = "older than 8.0.0, the oldest supported one"
ODD = "not a release X.Y.Z"
NEW = "juju config ci-gpu concourse-version=8.4.0@sha256:<checksum>; "


@pytest.mark.parametrize(
    ("web", "installed", "own", "why", "setting"),
    [
        ("8.4.0", "", "8.3.0", UNKNOWN, NEW),
        ("8.4.0", "8.3.0", "8.3.0", UNKNOWN, NEW),
        ("8.3.0+dev", "", "8.3.0", ODD, ""),
        ("9.0.0-rc.1", "", "8.3.0", ODD, ""),
    ],
)
def test_worker_stays_on_its_release_if_it_cannot_follow_and_both_work_together(
    web, installed, own, why, setting
):
    found = follower(web, installed=installed)
    made = make_plan(found)
    assert (planned(made).release.version, made.problems) == (own, ())
    (line,) = lines(found)
    assert line.level is Level.ACTIVE
    assert "web-release-unknown" in line.notes
    assert f"Concourse {web}, which this worker cannot install ({why})" in line.text
    assert f": {setting}to stay, juju config ci-gpu concourse-version={own}" in line.text


@pytest.mark.parametrize(
    ("web", "installed", "own", "why", "setting"),
    [
        ("7.14.3", "", "8.3.0", TOO_OLD, ""),
        ("8.4.0", "8.2.5", "8.2.5", UNKNOWN, NEW),
    ],
)
def test_worker_that_cannot_follow_a_web_that_gives_it_no_work_is_blocked(
    web, installed, own, why, setting
):
    found = follower(web, installed=installed)
    assert make_plan(found).ci.own.release.version == own
    (text,) = [line.text for line in lines(found) if line.code == "web-not-followed"]
    assert f"{web} ({why})" in text
    assert text.endswith(f": {setting}to stay, juju config ci-gpu concourse-version={own}")


def test_resource_goes_before_the_web_too():
    made = make_plan(follower("8.4.0", tarball="/r/concourse.tgz"))
    assert (planned(made).release.tarball, made.problems) == ("/r/concourse.tgz", ())


@pytest.mark.parametrize("mode", ["web", "all"])
def test_web_follows_nobody(mode):
    made = make_plan(unit(mode, tsa=dataclasses.replace(TSA, versions=("8.2.5",))))
    assert planned(made).release.version == "8.3.0"
    assert planned(made).release.webs == ()


def test_without_the_option_a_worker_of_another_release_says_how_to_fix_it():
    found = unit(tsa=dataclasses.replace(TSA, versions=("8.2.5",)), installed="8.3.0")
    (line,) = lines(found)
    assert line.code == "web-is-other-release"
    assert line.text.endswith("juju config ci-gpu concourse-version=8.2.5")


def test_release_that_waits_is_told_of_a_worker_that_is_ready():
    waits = messages.line("release-waits-for-web", wanted="8.3.0", web="8.2.5")
    found = unit(installed="8.2.5", waits=waits)
    found = changed(found, tsa=dataclasses.replace(TSA, versions=("8.2.5",)))
    running = Running(worker=True, connected=True)
    (line,) = status_lines(found, make_plan(found), running)
    assert (line.level, line.notes) == (status.Level.ACTIVE, ("release-waits-for-web",))


def test_release_that_was_rolled_back_is_blocked_and_the_worker_runs():
    found = unit(failed="Upgrade failed", installed="8.2.5")
    found = changed(found, tsa=dataclasses.replace(TSA, versions=("8.2.5",)))
    running = Running(worker=True, connected=True)
    (line,) = status_lines(found, make_plan(found), running)
    assert (line.level, line.code) == (status.Level.BLOCKED, "release-rolled-back")
    assert line.text == "Upgrade failed"
    assert make_plan(found).ci.own.worker.tags == ()


@pytest.mark.parametrize(
    "mirror", ["mirror/concourse", "ftp://mirror", "https://u:p@mirror", "http://", "http://a b"]
)
def test_bad_release_mirror(mirror):
    assert refused(concourse_mirror=mirror).endswith("use http://HOST or https://HOST")


def test_release_mirror():
    made = make_plan(unit(options={"concourse-mirror": "http://mirror.test/concourse/"}))
    assert planned(made).release.mirror == "http://mirror.test/concourse"
