# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""`make pack` for real: what is in the charm, what is not, and what a second run does."""

import os
import pathlib
import platform
import shutil
import stat
import subprocess
import zipfile

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
YAML_FILES = {"metadata.yaml", "config.yaml", "actions.yaml", "manifest.yaml", "lxd-profile.yaml"}
PACKAGES = ["cryptography", "jinja2", "ops", "pynvml", "tomlkit"]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("apt-get"),
    reason="packing needs root and apt: charmcraft installs build packages with it",
)


def pack():
    done = subprocess.run(
        [ROOT / "scripts/pack"], check=False, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packed():
    """Path of the charm for this machine, packed from the tree as it is."""
    pack()
    (charm,) = ROOT.glob("gpu-ci-worker_*.charm")
    return charm


@pytest.fixture(scope="module")
def unpacked(packed, tmp_path_factory):
    directory = tmp_path_factory.mktemp("charm")
    subprocess.run(["unzip", "-q", packed, "-d", directory], check=True, timeout=60)
    return directory


def test_name_says_base_and_architecture(packed):
    release = platform.freedesktop_os_release()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    assert packed.name == (
        f"gpu-ci-worker_{release['ID']}@{release['VERSION_ID']}-{machine}.charm"
    )


def test_holds_all_of_the_charm(unpacked):
    assert {path.name for path in unpacked.glob("*.yaml")} == YAML_FILES
    assert {"dispatch", "src", "lib", "templates", "venv", "LICENSE", "icon.svg"} <= {
        path.name for path in unpacked.iterdir()
    }
    for folder in ("src", "lib", "templates"):
        committed = {
            path.relative_to(ROOT)
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        assert {
            path.relative_to(unpacked) for path in (unpacked / folder).rglob("*") if path.is_file()
        } == (committed)


def test_holds_nothing_else(unpacked):
    extra = {path.name for path in unpacked.iterdir()} - YAML_FILES
    assert extra == {"dispatch", "src", "lib", "templates", "venv", "LICENSE", "icon.svg"}
    assert not [*unpacked.rglob("__pycache__")], "compiled files of another interpreter"
    assert not (unpacked / "venv/bin").exists()


def test_yaml_files_say_the_same_as_in_the_tree(unpacked):
    for name in YAML_FILES - {"manifest.yaml"}:
        assert yaml.safe_load((unpacked / name).read_text()) == yaml.safe_load(
            (ROOT / name).read_text()
        )


def test_dispatch_keeps_its_mode(packed):
    with zipfile.ZipFile(packed) as archive:
        mode = archive.getinfo("dispatch").external_attr >> 16
    assert stat.S_IMODE(mode) == 0o755


def test_packages_work_under_the_interpreter_of_the_base(unpacked):
    code = f"import {', '.join(PACKAGES)}; print({PACKAGES[0]}.__file__)"
    done = subprocess.run(
        ["/usr/bin/python3", "-B", "-s", "-c", code],
        env={"PYTHONPATH": str(unpacked / "venv")},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(unpacked))


def test_the_charm_starts_and_asks_for_juju(unpacked):
    """Without Juju it ends at the first hook command, after all of its rooms were imported."""
    done = subprocess.run(
        [unpacked / "dispatch"],
        env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "No such file or directory: 'juju-log'" in done.stderr.splitlines()[-1]


def test_a_second_run_packs_nothing_and_sets_other_bases_aside(packed):
    before = packed.stat().st_mtime_ns
    other = ROOT / "gpu-ci-worker_other@1-amd64.charm"
    other.write_bytes(b"")
    try:
        said = pack()
        assert f"{packed.name} is current" in said
        assert packed.stat().st_mtime_ns == before
        assert list(ROOT.glob("gpu-ci-worker_*.charm")) == [packed]
        assert (ROOT / "dist" / other.name).exists()
    finally:
        other.unlink(missing_ok=True)
        (ROOT / "dist" / other.name).unlink(missing_ok=True)
