# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""When Juju is asked for a resource, which takes it seconds where that is a release."""

import json
import pathlib

import pytest

from ci.concourse import release
from relations import juju


class Resources:
    """Juju's, of which each call is noted."""

    def __init__(self, path):
        self.path, self.asked = path, 0

    def fetch(self, _name):
        self.asked += 1
        return self.path


@pytest.fixture(params=["concourse.tgz", "concourse/concourse.tgz"], ids=["juju 4", "juju 3"])
def site(monkeypatch, tmp_path, request):
    """A unit that has unpacked its resource; `ask` answers, in a hook of this name."""
    tarball = tmp_path / "agent/resources" / request.param
    tarball.parent.mkdir(parents=True)
    tarball.write_text("a release")
    monkeypatch.setattr(release, "ROOT", tmp_path / "opt")
    folder = tmp_path / "opt/8.3.0"
    folder.mkdir(parents=True)

    def unpack():
        found = tarball.stat()
        note = {"sha256": "ab", "source": [found.st_size, found.st_mtime_ns], "version": "8.3.0"}
        (folder / release._NOTE).write_text(json.dumps(note))

    class Site:
        resources = Resources(tarball)

        def ask(self, hook):
            monkeypatch.setenv("JUJU_DISPATCH_PATH", f"hooks/{hook}")
            monkeypatch.setenv("JUJU_CHARM_DIR", str(tmp_path / "agent/charm"))
            return pathlib.Path(juju.resource(self, "concourse", release.is_from))

    site = Site()
    site.tarball, site.unpack = tarball, unpack
    unpack()
    return site


def test_at_an_update_status_and_a_wake_nobody_asks_for_what_is_unpacked(site):
    assert site.ask("update-status") == site.tarball
    assert site.resources.asked == 0


@pytest.mark.parametrize("hook", ["upgrade-charm", "config-changed", "install", "start"])
def test_any_other_event_may_bring_another_one(site, hook):
    assert site.ask(hook) == site.tarball
    assert site.resources.asked == 1


def test_a_file_that_is_not_the_one_that_was_unpacked_is_asked_for(site):
    site.tarball.write_text("half of anoth")
    site.ask("update-status")
    assert site.resources.asked == 1
    site.unpack()
    site.ask("update-status")
    assert site.resources.asked == 1
    site.resources.path = site.tarball.rename(site.tarball.parent / "other")
    site.ask("update-status")
    assert site.resources.asked == 2
