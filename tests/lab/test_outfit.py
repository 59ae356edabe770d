# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the lab gives a machine beside what the charm installs."""

import pathlib
import subprocess

import pytest

from tests.lab import outfit

HOOK = "#!/bin/sh\necho begun >>$3\nsleep 0.3\necho over >>$3\n"


@pytest.fixture
def hook(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """NVIDIA's hook as a machine gets it; the real one notes when it begins and ends."""
    for name in outfit.RUNTIME_FILES:
        (tmp_path / name).write_text(HOOK)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("GPUCI_NVIDIA_RUNTIME", str(tmp_path / outfit.RUNTIME_FILES[0]))
    outfit.prepare(tmp_path / "shared")
    return tmp_path / "shared/outfit/bin" / outfit.HOOK


def notes(hook: pathlib.Path, *roots: pathlib.Path) -> list[str]:
    """What hooks note that run at once in these roots."""
    path = hook.with_name("notes")
    both = [subprocess.Popen([hook, "hook", "update-ldcache", path], cwd=root) for root in roots]
    assert [one.wait(20) for one in both] == [0, 0]
    return path.read_text().split()


def test_hooks_of_one_root_take_turns(hook, tmp_path):
    assert notes(hook, tmp_path, tmp_path) == ["begun", "over"] * 2


def test_hooks_of_other_roots_do_not_wait(hook, tmp_path):
    assert notes(hook, tmp_path, hook.parent) == ["begun", "begun", "over", "over"]
