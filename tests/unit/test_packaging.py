# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What makes the charm: dispatch does what Juju expects, the parts name all that must be in it."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
TELL = """
import json, os, sys
print(json.dumps({"environ": dict(os.environ), "cwd": os.getcwd(), "path": sys.path,
                  "python": sys.executable}))
"""


@pytest.fixture
def charm_directory(tmp_path):
    """Dispatch beside a charm.py that tells how it was started."""
    shutil.copy(ROOT / "dispatch", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/charm.py").write_text(TELL)
    return tmp_path


def dispatch(directory, **environ):
    done = subprocess.run(
        [directory / "dispatch"],
        env={"PATH": "/usr/bin:/bin", **environ},
        cwd="/",
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return json.loads(done.stdout)


def test_dispatch_runs_the_charm_with_its_own_packages(charm_directory):
    told = dispatch(
        charm_directory, JUJU_CHARM_DIR=str(charm_directory), JUJU_DISPATCH_PATH="hooks/install"
    )
    here = str(charm_directory)
    assert told["environ"]["PYTHONPATH"] == f"{here}/lib:{here}/src:{here}/venv"
    assert told["environ"]["JUJU_DISPATCH_PATH"] == "hooks/install"
    assert told["cwd"] == here
    assert told["python"] == "/usr/bin/python3"


def test_dispatch_finds_its_directory_without_juju(charm_directory):
    assert dispatch(charm_directory)["cwd"] == str(charm_directory)


def test_dispatch_gives_no_library_path_to_what_the_charm_starts(charm_directory):
    assert not {name for name in dispatch(charm_directory)["environ"] if name.startswith("LD_")}


def test_dispatch_is_executable():
    assert os.access(ROOT / "dispatch", os.X_OK)


def test_the_charm_part_stages_all_that_the_charm_reads():
    parts = yaml.safe_load((ROOT / "charmcraft.yaml").read_text())["parts"]
    staged = set(parts["charm"]["stage"])
    assert staged == {
        *("dispatch", "src", "lib", "templates"),
        *("LICENSE", "icon.svg", "lxd-profile.yaml"),
    }
    assert all((ROOT / name).exists() for name in staged)


def test_packages_come_as_wheels_with_hashes_only():
    script = yaml.safe_load((ROOT / "charmcraft.yaml").read_text())["parts"]["venv"][
        "override-build"
    ]
    assert "--require-hashes" in script
    assert "--only-binary :all:" in script
    assert "-r requirements.txt" in script
