# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""`scripts/again` on a tree with tests that pass, fail beside others, or fail."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/again"
HOLDS = "def test_holds():\n    assert True\n"
BESIDE_OTHERS = """
import os
def test_load():
    assert "PYTEST_XDIST_WORKER" not in os.environ
"""
BROKEN = "def test_broken():\n    assert 0\ndef test_after():\n    assert 0\n"
CRASHES_BESIDE_OTHERS = """
import os
def test_crash():
    if "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(3)
"""
HANGS_BESIDE_OTHERS = """
import os, time
def test_hang():
    while "PYTEST_XDIST_WORKER" in os.environ:
        time.sleep(1)
"""
NOT_COLLECTED = "import no_such_module\n"
MEND = "fail beside other tests: fix them"


@pytest.fixture
def again(tmp_path):
    """A function that writes test files, and runs the script on them side by side."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    # What CI and the run that this test is part of have set is theirs.
    kept = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "CI": "true"}
    # To find the installed plugins takes longer than all else here.
    kept |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def run(patience="600", **files):
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        words = [SCRIPT, sys.executable, "-p", "xdist", "-n2", "-rfEs"]
        return subprocess.run(
            words, cwd=tmp_path, env={**kept, "GPUCI_TESTS_PATIENCE": patience},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=300, start_new_session=True,
        )  # fmt: skip

    return run


def test_green_at_once(again):
    done = again(holds=HOLDS)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    assert "once more" not in done.stdout


def test_what_fails_only_beside_others_is_green_and_named(again, tmp_path):
    """Also a test that kills its process."""
    done = again(holds=HOLDS, load=BESIDE_OTHERS, crash=CRASHES_BESIDE_OTHERS)
    assert done.returncode == 0, done.stdout
    first, once_more, second = done.stdout.partition("running these files again, alone")
    assert once_more
    assert "FAILED test_load.py::test_load" in first
    assert "FAILED test_crash.py::test_crash" in first
    assert "2 failed, 1 passed" in first
    # Their files alone.
    assert "2 passed" in second
    assert MEND in second
    assert not list(tmp_path.glob("gpuci-*"))


def test_what_fails_again_is_red_at_its_first_failure(again):
    done = again(broken=BROKEN, load=BESIDE_OTHERS)
    assert done.returncode == 1, done.stdout
    first, _, second = done.stdout.partition("running these files again, alone")
    assert "3 failed" in first
    assert "1 failed" in second
    assert second.count("FAILED test_broken.py::") == 1
    assert MEND not in done.stdout
    assert "failed alone too" in second


def test_a_test_that_hangs_beside_others_ends(again):
    done = again(holds=HOLDS, hang=HANGS_BESIDE_OTHERS, patience="5")
    assert done.returncode == 0, done.stdout
    assert "in test_hang" in done.stdout
    assert "FAILED test_hang.py::test_hang" in done.stdout
    assert MEND in done.stdout


def test_what_is_not_collected_is_red_at_once(again):
    done = again(absent=NOT_COLLECTED, load=BESIDE_OTHERS)
    assert done.returncode not in (0, 5), done.stdout
    assert "once more" not in done.stdout
