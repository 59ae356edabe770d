# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The script through which Concourse's worker starts containerd."""

import subprocess

import pytest

from ci.concourse import release, service
from ci.concourse.worker import launcher
from gpu_agent import paths
from machine import templates


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the GPU runtime and the launcher are."""
    monkeypatch.setattr(paths, "FRONT", tmp_path / "runc")
    monkeypatch.setattr(launcher, "PATH", tmp_path / "containerd-launcher")
    return tmp_path


def test_it_is_beside_the_runtime_once_that_is_there_and_goes_alone(folder):
    assert not launcher.ensure()
    assert list(folder.iterdir()) == []
    (folder / "runc").touch()
    assert launcher.ensure()
    assert not launcher.ensure()
    assert launcher.PATH.stat().st_mode & 0o777 == 0o755
    assert f"'{paths.BIN}'" in launcher.PATH.read_text()
    assert f"exec '{release.CURRENT}/bin/containerd' \"$@\"" in launcher.PATH.read_text()
    launcher.PATH.write_text("x")
    assert launcher.ensure()
    assert launcher.remove()
    assert not launcher.remove()
    assert [path.name for path in folder.iterdir()] == ["runc"]


@pytest.mark.parametrize(
    ("before", "after"),
    [("/usr/bin:/bin", "/opt/gpu-ci/bin:/usr/bin:/bin"), ("", "/opt/gpu-ci/bin")],
)
def test_the_launcher_becomes_containerd_and_puts_our_runc_first(tmp_path, before, after):
    containerd = tmp_path / "containerd"
    containerd.write_text('#!/bin/sh\necho $$ "$PATH" "$@"\n')
    containerd.chmod(0o755)
    launcher = tmp_path / "launcher"
    launcher.write_text(
        templates.render(
            service.TEMPLATES, "containerd-launcher", bin="/opt/gpu-ci/bin", containerd=containerd
        )
    )
    launcher.chmod(0o755)
    with subprocess.Popen(
        [launcher, "--config", "a b"], env={"PATH": before}, stdout=subprocess.PIPE
    ) as process:
        said, _ = process.communicate(timeout=30)
    assert said.decode() == f"{process.pid} {after} --config a b\n"


@pytest.mark.parametrize("has", ["", '[timeouts]\n  "io.containerd.timeout.shim.load" = "1m"\n'])
def test_the_launcher_gives_shims_time_to_answer_once(tmp_path, has):
    launcher, config = tmp_path / "launcher", tmp_path / "a b.toml"
    text = templates.render(
        service.TEMPLATES, "containerd-launcher", bin="/opt/gpu-ci/bin", containerd="/bin/true"
    )
    launcher.write_text(text)
    launcher.chmod(0o755)
    config.write_text(f'version = 2\n[debug]\n  format = "json"\n{has}')
    before = config.read_text()
    for _ in range(2):
        command = [launcher, "--address=/x", f"--config={config}", f"--config={tmp_path}/none"]
        done = subprocess.run(command, capture_output=True, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    added = '\n[timeouts]\n"io.containerd.timeout.shim.load" = "30s"\n'
    assert config.read_text() == before + ("" if has else added)
    assert not (tmp_path / "none").exists()
