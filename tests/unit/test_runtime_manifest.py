# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What was installed is told so that each later change of it shows."""

import hashlib
import os

import pytest

from gpu_agent import paths as wrapper
from gpu_agent.runtime import install, manifest
from tests.unit.host_site import ENGINES_CONFIG, ENGINES_FRONT, Site


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "runc"
    path.write_text("front")
    path.chmod(0o755)
    return path


def test_a_file_is_told_by_mode_owner_and_content(file):
    found = file.stat()
    digest = hashlib.sha256(b"front").hexdigest()
    told = f"file 755 {found.st_uid}:{found.st_gid} sha256:{digest}"
    assert manifest.describe(file) == told
    assert manifest.difference(file, told) == ""
    file.write_text("other")
    assert manifest.difference(file, told) == "has another content"
    file.chmod(0o4755)
    assert manifest.difference(file, told) == "has the mode 4755, not 755"
    owner = told.replace(f" {found.st_uid}:", " 4711:").replace(" 755 ", " 4755 ")
    assert manifest.difference(file, owner).startswith("has the owner ")
    file.unlink()
    assert manifest.difference(file, told) == "is missing"
    assert manifest.difference(file / "below", told) == "is missing"
    os.mkfifo(file)
    assert manifest.difference(file, told) == "is now a special, not a file"


def test_a_link_is_told_by_where_it_leads(tmp_path, file):
    link = tmp_path / "link"
    link.symlink_to("a b")
    told = manifest.describe(link)
    assert (told, manifest.difference(link, told)) == ("link a b", "")
    link.unlink()
    link.symlink_to("a c")
    assert manifest.difference(link, told) == "leads to a c, not a b"
    assert manifest.difference(file, told) == "is now a file, not a link"


def test_a_folder_is_told_by_what_it_may_hold(tmp_path, file):
    any_names, told = (manifest.folder(tmp_path, names) for names in (None, ["runc", "other"]))
    assert manifest.difference(tmp_path, told) == ""
    (tmp_path / ".runc.new").touch()
    assert manifest.difference(tmp_path, told) == ""
    (tmp_path / "containerd-shim-runc-v2").touch()
    (tmp_path / "json.py").touch()
    assert manifest.difference(tmp_path, told) == (
        "holds containerd-shim-runc-v2, json.py, which gpu-ci-worker did not install"
    )
    assert manifest.difference(tmp_path, any_names) == ""
    tmp_path.chmod(0o777)
    assert manifest.difference(tmp_path, any_names).startswith("has the mode 777, not ")


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_the_manifest_tells_every_file_that_was_installed(site):
    told = {path: what.split(" ")[0] for path, what in site.settings.files.items()}
    folders = [site.path(name) for name in ("opt/gpu-ci", "etc/gpu-ci")]
    there = {f"/{path.relative_to(site.root)}" for top in folders for path in top.rglob("*")}
    assert set(told) == there | {"/opt/gpu-ci", "/etc/gpu-ci", "/usr/local/bin/runc-gpu-wrapper"}
    assert sorted(set(told.values())) == ["file", "folder", "link"]
    assert [path for path, what in told.items() if what == "link"] == [
        "/usr/local/bin/runc-gpu-wrapper",
        "/opt/gpu-ci/lib/gpuci",
    ]


def test_without_a_wrapper_there_is_no_manifest(tmp_path, monkeypatch):
    monkeypatch.setattr(wrapper, "FRONT", tmp_path / "runc")
    assert install.installed() == {}


def test_a_link_to_runc_that_stays_for_engines_is_nobodys_business(site):
    """It is there while containers run that were started by the runtime, which has gone."""
    runtime = site.path(ENGINES_FRONT)
    runtime.unlink()
    runtime.symlink_to("/usr/sbin/runc")
    site.path(ENGINES_CONFIG).unlink()
    told = site.installed()
    assert [path for path in told if "engines" in path] == []
    assert f"/{ENGINES_FRONT}" in site.settings.files


def test_a_compiled_module_that_was_changed_is_made_again(site):
    before = site.settings.files
    (path,) = site.root.glob("opt/gpu-ci/lib/*/gpu_runtime/__pycache__/task_call.*.pyc")
    path.write_bytes(b"")
    assert site.install()
    assert site.installed() == before
    assert not site.install()
