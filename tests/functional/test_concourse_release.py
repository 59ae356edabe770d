# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Releases are unpacked by the real tar, switched in one step, and survive a hook's death."""

import dataclasses
import hashlib
import http.server
import io
import json
import os
import pathlib
import tarfile
import threading
import time

import pytest

from ci.concourse import release as concourse_release
from ci.concourse.plan.model import ReleasePlan
from ci.concourse.upgrade import trial
from machine import download, files, process
from machine import systemd as services

PROGRAMS = {
    "concourse/bin/concourse": '#!/bin/sh\n[ "$1" = --version ] && echo {version}\n',
    "concourse/bin/containerd": "#!/bin/sh\n",
    "concourse/bin/runc": "#!/bin/sh\n",
    "concourse/resource-types/mock/resource_metadata.json": "{{}}\n",
}


class Killed(BaseException):
    """The hook's process is gone."""


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    root = tmp_path / "opt/concourse"
    for name, path in (("ROOT", ""), ("CURRENT", "current"), ("_UNPACK", ".unpack"),
                       ("_DOWNLOADS", ".download")):  # fmt: skip
        monkeypatch.setattr(concourse_release, name, root / path)
    yield root
    assert not (root / ".unpack").exists(), "half of a release takes the disk's room"


def tarball(path, version="8.3.0", without="", **more):
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, text in {**PROGRAMS, **more}.items():
            if name == without:
                continue
            data = text.format(version=version).encode()
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.uid = len(data), 0o755, 12345
            archive.addfile(member, io.BytesIO(data))
    return path


def given(path):
    return ReleasePlan("8.3.0", "amd64", "", str(path))


def ensure(path, say=lambda _: None):
    return concourse_release.ensure(given(path), say)


def sha8(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def test_release_is_unpacked_under_its_version_and_checksum(root, tmp_path):
    path = tarball(tmp_path / "concourse.tgz")
    said = []
    release = ensure(path, said.append)
    assert release == concourse_release.Release("8.3.0", root / f"8.3.0-{sha8(path)}")
    assert concourse_release.installed() == release
    assert os.readlink(root / "current") == release.path.name
    assert (root / "current/bin/concourse").stat().st_mode & 0o777 == 0o755
    assert (root / "current/bin/concourse").stat().st_uid == os.geteuid()
    assert root.stat().st_mode & 0o777 == 0o755
    assert said == ["Checking the resource concourse", "Unpacking concourse.tgz"]
    assert sorted(os.listdir(root)) == sorted([release.path.name, "current"])


@pytest.mark.parametrize("change", [86400, -86400])
def test_a_service_is_on_the_release_if_it_was_started_after_the_switch_whatever_the_clock_says(
    root, tmp_path, monkeypatch, change
):
    before = time.monotonic()
    ensure(tarball(tmp_path / "concourse.tgz"))
    # The clock was set back, or forward, since the switch.
    os.utime(root / "current", (0, time.time() - change), follow_symlinks=False)
    for started, found in ((before, trial.Verdict.OPEN), (time.monotonic(), trial.Verdict.WELL)):
        shown = {"MainPID": "7", "ActiveState": "active", "NRestarts": "0"}
        shown["ExecMainStartTimestampMonotonic"] = str(int(started * 1e6) + 1)
        monkeypatch.setattr(services, "show", lambda *_, shown=shown: shown)
        assert trial._look("concourse-web.service", lambda: True) is found
    # In the next boot that clock begins anew.
    boot = tmp_path / "boot_id"
    boot.write_text("another\n")
    monkeypatch.setattr(concourse_release, "_BOOT", boot)
    assert not concourse_release.is_older_than_switch(0.5)
    (root / "current/.switched.json").unlink()  # of an earlier charm
    assert not concourse_release.is_older_than_switch(0.5)


def test_second_run_reads_no_tarball_and_starts_no_process(tmp_path, monkeypatch):
    path = tarball(tmp_path / "concourse.tgz")
    release = ensure(path)
    monkeypatch.setattr(process, "run", None)
    monkeypatch.setattr(download, "sha256_of", None)
    said = []
    assert ensure(path, said.append) == release
    assert said == []


def test_same_tarball_fetched_again_is_not_unpacked_again(tmp_path, monkeypatch):
    path = tarball(tmp_path / "concourse.tgz")
    release = ensure(path)
    os.utime(path, (1, 1))
    monkeypatch.setattr(process, "run", None)
    said = []
    assert ensure(path, said.append) == release
    assert ensure(path, said.append) == release
    assert said == ["Checking the resource concourse"]


def test_the_one_before_is_kept_and_older_ones_go(root, tmp_path):
    versions = ["8.2.4", "8.2.5", "8.3.0"]
    paths = [tarball(tmp_path / f"{version}.tgz", version) for version in versions]
    names = [ensure(path).path.name for path in paths]
    assert sorted(os.listdir(root)) == [*names[1:], "current"]
    assert os.readlink(root / "current") == names[2]
    assert ensure(paths[1]).version == "8.2.5"
    assert os.readlink(root / "current") == names[1]


@pytest.mark.parametrize("missing", ["bin/concourse", "bin/containerd", "bin/runc"])
def test_tarball_that_is_no_release_is_told_by_what_it_lacks(root, tmp_path, missing):
    before = ensure(tarball(tmp_path / "good.tgz"))
    path = tarball(tmp_path / "fly.tgz", without=f"concourse/{missing}")
    with pytest.raises(concourse_release.ReleaseError, match=f"fly.tgz .* no concourse/{missing}"):
        ensure(path)
    assert concourse_release.installed() == before


def test_tarball_that_is_cut_off_is_told(tmp_path):
    path = tarball(tmp_path / "concourse.tgz")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(concourse_release.ReleaseError, match=r"can't be unpacked: ") as caught:
        ensure(path)
    assert "unexpected end of file" in str(caught.value)
    assert "--extract" not in str(caught.value)


def test_a_resource_that_is_no_release_is_said_with_the_remedy(tmp_path):
    path = tmp_path / "concourse.tgz"
    path.write_text("this is no tarball")
    plan = dataclasses.replace(given(path), attach="juju attach-resource web2 concourse=FILE")
    with pytest.raises(concourse_release.ReleaseError) as caught:
        concourse_release.ensure(plan, lambda _: None)
    assert str(caught.value) == (
        "The resource concourse is not a release (concourse.tgz can't be unpacked: /usr/bin/tar: "
        "This does not look like a tar archive): juju attach-resource web2 concourse=FILE"
    )


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("\x7fELF of another machine", "another architecture"),
        ("#!/bin/sh\necho ../../etc\n", "tells no version"),
        ("#!/bin/sh\nexit 1\n", "another architecture.* failed with 1"),
    ],
)
def test_program_that_does_not_run_here_is_told(tmp_path, program, said):
    path = tarball(tmp_path / "concourse.tgz", **{"concourse/bin/concourse": program})
    with pytest.raises(concourse_release.ReleaseError, match=said):
        ensure(path)


def test_too_little_room_says_how_much_is_needed(tmp_path, monkeypatch):
    path = tarball(tmp_path / "concourse.tgz")
    monkeypatch.setattr(concourse_release, "_UNPACKED", 1e12)
    with pytest.raises(
        concourse_release.ReleaseError, match=r"needs about \d+\.\d GiB .* are free"
    ):
        ensure(path)


@pytest.mark.parametrize(
    ("link", "member"),
    [
        (None, "concourse/../../../../../victim"),
        ("..", "concourse/out/../../victim"),
        ("/", "concourse/out{root}/victim"),
        ("../../..", "concourse/out/victim"),
    ],
)
def test_no_member_gets_out_of_the_folder(tmp_path, link, member):
    path = tmp_path / "evil.tgz"
    with tarfile.open(path, "w:gz") as archive:
        if link:
            out = tarfile.TarInfo("concourse/out")
            out.type, out.linkname = tarfile.SYMTYPE, link
            archive.addfile(out)
        archive.addfile(tarfile.TarInfo(member.format(root=tmp_path)))
    with pytest.raises(concourse_release.ReleaseError, match=r"evil\.tgz can't be unpacked"):
        ensure(path)
    assert not list(tmp_path.rglob("victim"))


def test_everything_is_removed(root, tmp_path):
    ensure(tarball(tmp_path / "concourse.tgz"))
    assert concourse_release.remove()
    assert not root.exists()
    assert not concourse_release.remove()
    assert concourse_release.installed() is None


CHANGES = [
    *((files, name) for name in ("ensure_file", "ensure_directory", "ensure_symlink")),
    *((files, name) for name in ("ensure_absent", "move")),
    (process, "run"),
]


def die_at(step, monkeypatch):
    """Let the hook die before its change number `step`, or after it for odd numbers."""
    count = [0]

    def dying(change):
        def call(*args, **kwargs):
            if count[0] == step // 2 and step % 2 == 0:
                raise Killed
            result = change(*args, **kwargs)
            if count[0] == step // 2:
                raise Killed
            count[0] += 1
            return result

        return call

    for module, name in CHANGES:
        monkeypatch.setattr(module, name, dying(getattr(module, name)))


def test_hook_killed_at_any_point_and_run_again_ends_in_the_same_state(root, tmp_path):
    old, older = tarball(tmp_path / "b.tgz", "8.2.5"), tarball(tmp_path / "a.tgz", "8.2.4")
    new = tarball(tmp_path / "concourse.tgz")
    deaths = 0
    for step in range(100):
        concourse_release.remove()
        ensure(older)
        ensure(old)
        with pytest.MonkeyPatch.context() as monkeypatch:
            die_at(step, monkeypatch)
            try:
                ensure(new)
            except Killed:
                deaths += 1
            else:
                break
        current = concourse_release.installed()
        assert current is not None
        assert current.version in ("8.2.5", "8.3.0")
        release = ensure(new)
        assert ensure(new) == release
        assert concourse_release.installed() == release
        names = [f"8.2.5-{sha8(old)}", f"8.3.0-{sha8(new)}", "current"]
        assert sorted(os.listdir(root)) == names, f"killed at step {step}"
    assert deaths >= 12


class Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        data = self.server.body
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def upstream(tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    server.asked, server.body = [], tarball(tmp_path / "served").read_bytes()
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_download_is_checked_unpacked_and_thrown_away(root, upstream):
    sha256 = hashlib.sha256(upstream.body).hexdigest()
    wanted = ReleasePlan("8.3.0", "arm64", sha256, "")
    for _ in range(2):
        release = concourse_release.ensure(wanted, lambda _: None, base_url=upstream.url)
    assert upstream.asked == ["/v8.3.0/concourse-8.3.0-linux-arm64.tgz"]
    assert sorted(os.listdir(root)) == [f"8.3.0-{sha256[:8]}", "current"]
    assert json.loads((release.path / ".release.json").read_text())["sha256"] == sha256


def test_download_with_another_checksum_changes_nothing(root, upstream, tmp_path):
    before = ensure(tarball(tmp_path / "b.tgz", "8.2.5"))
    wanted = ReleasePlan("8.3.0", "amd64", "0" * 64, "")
    with pytest.raises(download.DownloadError, match="do not work around it"):
        concourse_release.ensure(wanted, lambda _: None, base_url=upstream.url)
    assert concourse_release.installed() == before


EMPTIED = ReleasePlan(
    "8.3.0", "amd64", "0" * 64, "", attach="juju attach-resource worker concourse=FILE"
)


def test_an_emptied_resource_does_not_take_the_release_that_runs_away(root, upstream, tmp_path):
    """Juju empties it where an attach-resource fails."""
    before = ensure(tarball(tmp_path / "b.tgz"))
    left = concourse_release.ensure(EMPTIED, lambda _: None, base_url=upstream.url)
    assert (left.version, left.path) == (before.version, before.path)
    assert left.waits.code == "release-resource-empty"
    assert left.waits.text.endswith(": juju attach-resource worker concourse=FILE")
    assert upstream.asked == []
    # A checksum that the operator has named means that file, and another version is another.
    sha256 = hashlib.sha256(upstream.body).hexdigest()
    named = dataclasses.replace(EMPTIED, sha256=sha256, is_named=True)
    assert concourse_release.ensure(named, lambda _: None, base_url=upstream.url).waits is None
    assert os.readlink(root / "current") == f"8.3.0-{sha256[:8]}"


def test_without_the_network_the_remedy_is_the_resource(upstream):
    upstream.shutdown()
    upstream.server_close()
    with pytest.raises(download.UnreachableError) as caught:
        concourse_release.ensure(EMPTIED, lambda _: None, base_url=upstream.url)
    assert str(caught.value).endswith(f"tries again, or {EMPTIED.attach}")


def test_resource_goes_before_a_download(upstream, tmp_path):
    path = tarball(tmp_path / "concourse.tgz")
    wanted = ReleasePlan("8.3.0", "amd64", "0" * 64, str(path))
    assert concourse_release.ensure(wanted, lambda _: None, base_url=upstream.url).version
    assert upstream.asked == []


@pytest.mark.skipif(
    not os.environ.get("GPUCI_CONCOURSE_TARBALL"), reason="GPUCI_CONCOURSE_TARBALL is not set"
)
def test_real_release():
    path = pathlib.Path(os.environ["GPUCI_CONCOURSE_TARBALL"])
    release = ensure(path)
    assert release.path.name == f"{release.version}-{download.sha256_of(path)[:8]}"
    assert (release.path / "fly-assets/fly-linux-amd64.tgz").exists()
