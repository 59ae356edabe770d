# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Another Concourse that does not come, or does not run: what status says, and how it is over."""

import contextlib
import hashlib
import io
import subprocess
import sys
import tarfile

import pytest

from tests.lab import concourse, mirror
from tests.lab.builds import Build
from tests.lab.network import GATEWAY
from tests.lab.site import PROBE
from tests.lab.test_drain import (
    BEGIN,
    BUILD,
    end_build,
    ready,
    release_of,
    states,
    succeeded,
    until_said,
)
from tests.lab.test_outages import status_of

pytestmark = pytest.mark.usefixtures("untested")

PORT = 8089
FILE = "v8.3.0/concourse-8.3.0-linux-amd64.tgz"
OPTIONS = ("concourse-mirror", "concourse-version")
# Instead of bin/concourse: it prints its version, and exits when it should work.
DEFECT = b"""#!/bin/sh
[ "$1" = --version ] || exit 1
echo 8.3.1
"""
SMALL = "mkdir -p /opt/concourse/.download; mount -t tmpfs -o size=16m none $_"


@pytest.fixture(scope="module")
def tarball(site):
    """What the lab's units have, which they get again once all is over."""
    path, _ = concourse.choose(site.lab)
    yield path
    for app in ("web", "worker"):
        site.lab.model.attach_resource(app, "concourse", path)
    site.lab.model.set_config("worker", {}, OPTIONS)
    site.lab.settle()
    # It may drain before.
    site.lab.controller.settle(lambda: states(site) == {"lab-worker-0": "running"}, 180)
    for unit in ("web/0", "worker/0"):
        site.lab.controller.fire(unit, "update-status")
    assert ready(site)
    assert site.status("web/0") == ("active", "Web ready")


@pytest.fixture
def defect(tarball, tmp_path):
    """A release whose programs are whole, but for Concourse itself."""
    path = tmp_path / "concourse-defect.tgz"
    with tarfile.open(tarball) as old, tarfile.open(path, "w:gz", compresslevel=1) as new:
        for member in old:
            data = old.extractfile(member) if member.isfile() else None
            if member.name == "concourse/bin/concourse":
                member.size, data = len(DEFECT), io.BytesIO(DEFECT)
            if member.name.startswith("concourse/bin"):
                new.addfile(member, data)
    return path


@contextlib.contextmanager
def served(site, folder):
    """Its address; it has what lies in the folder."""
    command = [sys.executable, mirror.__file__, str(GATEWAY), str(PORT), str(folder)]
    with subprocess.Popen(
        site.lab.park.network.inside(command), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "listening\n"
        try:
            yield f"http://{GATEWAY}:{PORT}"
        finally:
            process.kill()


def test_a_release_that_does_not_come_leaves_the_one_that_runs(site, tarball, tmp_path):
    """One that was changed on its way, then a disk that gets full under it, then the right one."""
    had = release_of(site, "worker/0")
    concourse.another(site.lab, tmp_path / "whole.tgz")
    whole = (tmp_path / "whole.tgz").read_bytes()
    for name, data in (("damaged", whole[:-1]), ("whole", whole)):
        path = tmp_path / name / FILE
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    (tmp_path / "empty.tgz").touch()
    site.lab.model.attach_resource("worker", "concourse", tmp_path / "empty.tgz")
    with served(site, tmp_path) as url:
        version = f"8.3.0@sha256:{hashlib.sha256(whole).hexdigest()}"
        site.configure(concourse_mirror=f"{url}/damaged", concourse_version=version)
        kind, text = site.status()
        assert (kind, text.partition(":")[0]) == ("blocked", "http")
        assert f"{FILE} is not the expected file: its SHA-256 should be " in text
        assert site.task(PROBE).returncode == 0

        site.sh(SMALL)
        site.configure(concourse_mirror=f"{url}/whole")
        kind, text = site.status()
        assert kind == "blocked"
        assert text.startswith(f"{url}/whole/{FILE} can't be downloaded: the disk of /opt/conc")
        assert text.endswith(" is full: make room there")
        assert release_of(site, "worker/0") == had
        assert site.task(PROBE).returncode == 0

        site.sh("umount /opt/concourse/.download")
        site.lab.controller.fire("worker/0", "update-status")
        until_said(site, "worker/0", BEGIN)
    assert release_of(site, "worker/0") != had
    site.worker("lab-worker-0", 60)
    assert site.task(PROBE).returncode == 0
    # Its next event reads them.
    site.lab.model.set_config("worker", {}, OPTIONS)


def test_a_release_that_finds_no_room_waits_for_it_and_the_build_goes_on(site, tarball, tmp_path):
    had = release_of(site, "worker/0")
    running = site.start_task(BUILD)
    concourse.another(site.lab, tmp_path / "another.tgz")
    with site.full("/opt/concourse") as make_room:
        before = site.sh("ls -A /opt/concourse")
        site.lab.model.attach_resource("worker", "concourse", tmp_path / "another.tgz")
        site.lab.settle()
        kind, said = site.status()
        assert (kind, said.startswith("Concourse needs about ")) == ("blocked", True), said
        assert " GiB in /opt/concourse, but 0.0 GiB are free: make room there" in said
        assert site.sh("ls -A /opt/concourse") == before
        assert release_of(site, "worker/0") == had
        make_room()
        site.lab.controller.fire("worker/0", "update-status")
        until_said(site, "worker/0", "Draining (1 step left, 0m of 2h), then Concourse 8.3.0")
    end_build(site)
    succeeded(running)
    until_said(site, "worker/0", BEGIN)
    assert release_of(site, "worker/0") != had
    site.worker("lab-worker-0", 60)
    assert site.task(PROBE).returncode == 0


def test_a_release_that_does_not_run_is_left_again_and_builds_go_on(site, tarball, defect):
    """The worker waits for its build before; web leaves it under one."""
    had = release_of(site, "worker/0")
    running = site.start_task(BUILD)
    site.lab.model.attach_resource("worker", "concourse", defect)
    site.lab.settle()
    until_said(site, "worker/0", "Draining (1 step left, 0m of 2h), then Concourse 8.3.1")
    end_build(site)
    succeeded(running)
    said = until_said(site, "worker/0", "Upgrade to Concourse 8.3.1 failed (its worker does ")
    assert site.status()[0] == "blocked"
    assert "8.3.0" in said
    assert release_of(site, "worker/0") == had
    site.worker("lab-worker-0", 60)

    build = Build(site.fly, *site.fly.task(["sh", "-c", f"echo begun; {BUILD}"], ["gpu"]))
    build.line("begun")
    site.lab.model.attach_resource("web", "concourse", defect)
    site.lab.settle()
    kind, said = site.status("web/0")
    failed = "Upgrade to Concourse 8.3.1 failed (its web does not run"
    assert (kind, said[: len(failed)]) == ("blocked", failed)
    assert "not taken back" not in said
    end_build(site)
    # Its fly may have lost its web.
    assert status_of(site, build) == "succeeded"
    build.wait()
    site.worker("lab-worker-0", 60)
    assert site.task(PROBE).returncode == 0
