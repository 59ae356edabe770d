# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which Concourse a unit is to have: its own option's, or that of the web that it serves."""

import dataclasses

import pytest

from ci.concourse.upstream import PINNED_SHA256
from plan import plan, status
from tests.unit.situations import TSA, refused, unit

FOLLOWS = {"follow-web-version": True}


def follower(*webs, options=(), **given):
    tsa = dataclasses.replace(TSA, versions=webs)
    return unit(options={**FOLLOWS, **dict(options)}, tsa=tsa, **given)


def said(found):
    return [line.text for line in status.lines(found, plan.make(found), status.Running())]


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
    made = plan.make(follower(*webs))
    assert (made.release.version, made.release.sha256) == (version, PINNED_SHA256[version])
    assert made.release.webs == webs
    assert made.problems == ()


def test_checksum_of_the_option_is_for_a_release_that_is_not_known():
    options = {"concourse-sha256": "ab" * 32}
    made = plan.make(follower("8.4.0", options=options))
    assert (made.release.version, made.release.sha256) == ("8.4.0", "ab" * 32)
    # A known one has its own, which the option was not given for.
    known = plan.make(follower("8.2.5", options=options)).release
    assert known.sha256 == PINNED_SHA256["8.2.5"]
    made = plan.make(follower("8.2.5", options=options, machine={"architecture": "arm64"}))
    assert made.release.sha256 == "ab" * 32


@pytest.mark.parametrize(
    ("web", "why"),
    [
        ("8.4.0", "a release whose checksum this charm doesn't know, see concourse-sha256"),
        ("7.14.3", "older than 8.0.0, the oldest that this charm supports"),
        ("8.3.0+dev", "no release X.Y.Z"),
        ("9.0.0-rc.1", "no release X.Y.Z"),
    ],
)
def test_web_that_is_not_followed_is_named_and_the_worker_keeps_its_own(web, why):
    found = follower(web, installed="8.3.0")
    made = plan.make(found)
    assert made.release.version == "8.3.0"
    text = (
        f"Web runs Concourse {web}, which follow-web-version can't follow: it is {why}. This "
        "worker keeps to 8.3.0: juju config ci-gpu follow-web-version=false"
    )
    assert text in said(found)


def test_resource_goes_before_the_web_too():
    made = plan.make(follower("8.4.0", tarball="/r/concourse.tgz"))
    assert (made.release.tarball, made.problems) == ("/r/concourse.tgz", ())


@pytest.mark.parametrize("mode", ["web", "all"])
def test_web_follows_nobody(mode):
    made = plan.make(
        unit(mode, options=FOLLOWS, tsa=dataclasses.replace(TSA, versions=("8.2.5",)))
    )
    assert made.release.version == "8.3.0"
    assert made.release.webs == ()


def test_without_the_option_a_worker_of_another_release_says_how_to_mend_it():
    found = unit(tsa=dataclasses.replace(TSA, versions=("8.2.5",)), installed="8.3.0")
    (text,) = said(found)
    assert text.startswith("Web runs Concourse 8.2.5, which gives no work to 8.3.0: ")
    assert text.endswith("juju config ci-gpu concourse-version=8.2.5")


def test_release_that_waits_is_told_of_a_worker_that_is_ready():
    found = unit(
        installed="8.2.5", release_waits="Concourse 8.3.0 is ready here and waits for web"
    )
    found = dataclasses.replace(found, tsa=dataclasses.replace(TSA, versions=("8.2.5",)))
    running = status.Running(worker=True, connected=True)
    (line,) = status.lines(found, plan.make(found), running)
    assert line.kind is status.Kind.ACTIVE
    assert line.text == "Worker ready (Concourse 8.3.0 is ready here and waits for web)"


def test_release_that_was_left_is_for_the_operator_to_mend_and_the_worker_runs():
    found = unit(release_failed="Concourse 8.3.0 was left again", installed="8.2.5")
    found = dataclasses.replace(found, tsa=dataclasses.replace(TSA, versions=("8.2.5",)))
    running = status.Running(worker=True, connected=True)
    (line,) = status.lines(found, plan.make(found), running)
    assert (line.kind, line.text) == (status.Kind.BLOCKED, "Concourse 8.3.0 was left again")
    assert plan.make(found).worker.tags == ()


@pytest.mark.parametrize(
    "mirror", ["mirror/concourse", "ftp://mirror", "https://u:p@mirror", "http://", "http://a b"]
)
def test_bad_release_mirror(mirror):
    assert refused(release_mirror=mirror).endswith("use http://HOST or https://HOST")


def test_release_mirror():
    made = plan.make(unit(options={"release-mirror": "http://mirror.test/concourse/"}))
    assert made.release.mirror == "http://mirror.test/concourse"
