# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The environment of the compute checks, by the real venv and pip, offline: never half of it.

From archives of tiny wheels; tests/functional/test_selftest_compute.py has the real packages.
"""

import os
import pathlib
import sys

import pytest

from gpu_selftest.compute import environment
from gpu_selftest.compute.environment import UnavailableError
from tests.fakes.wheelhouse import as_tar, as_zip, tiny

PYTHON = sys.version_info[:2]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "selftest"


@pytest.fixture
def ensure(root):
    def ensure(archive, told=lambda text: None):
        return environment.ensure("12.4", archive, "worker", told, root)

    return ensure


def test_an_environment_from_wheels_is_made_once_and_the_one_before_goes(ensure, root, tmp_path):
    told = []
    first = ensure(as_tar(tmp_path / "a.tar.gz", tiny()), told.append)
    assert told[0] == "Making a virtual environment for PyTorch"
    assert "Unpacking a.tar.gz" in told
    assert first.folder.name == f"venv-{first.key}"
    assert first.key.startswith("wheels-")
    assert not (first.folder / "scratch").exists()

    again = []
    assert ensure(str(tmp_path / "a.tar.gz"), again.append) == first
    assert again == []

    # Killed half-way: nothing but the last file tells that it is whole.
    (first.folder / "complete").unlink()
    (first.folder / "bin" / "python").unlink()
    assert ensure(str(tmp_path / "a.tar.gz")) == first
    assert pathlib.Path(first.python).exists()

    second = ensure(as_zip(tmp_path / "b.zip", tiny()))
    assert second.key != first.key
    assert [path.name for path in root.iterdir()] == [second.folder.name]


def test_packages_that_do_not_load_are_no_environment(ensure, root, tmp_path):
    members = tiny(torch="raise OSError('libgomp.so.1 is missing')")
    with pytest.raises(UnavailableError, match="PyTorch can't be installed: OSError: libgomp"):
        ensure(as_tar(tmp_path / "a.tar", members, "w"))
    assert [*root.iterdir()] == []


def test_a_missing_wheel_is_named_with_the_way_to_make_the_archive(ensure, root, tmp_path):
    with pytest.raises(UnavailableError) as error:
        ensure(as_tar(tmp_path / "a.tgz", tiny()[1:]))
    text = str(error.value)
    assert "No matching distribution found for torch" in text
    machine = f"of this architecture ({os.uname().machine}) with Python {PYTHON[0]}.{PYTHON[1]}"
    assert f"on a machine {machine} and a network, run `python3 -m pip download" in text
    assert "--dest wheels 'numpy' 'onnx' 'onnxruntime-gpu[cuda,cudnn]==" in text
    assert "`juju attach-resource worker selftest-wheels=wheels.tar.gz`" in text


def test_an_archive_that_is_gone_is_told(ensure, root, tmp_path):
    with pytest.raises(UnavailableError, match=r"can.t be read: .*gone"):
        ensure(str(tmp_path / "gone"))


def test_an_empty_archive_counts_as_none(ensure, root, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_SPARE_GIB", 1 << 30)
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(UnavailableError, match="free some space there"):
        ensure(str(empty))


def test_without_room_on_the_disk_nothing_is_begun(ensure, root, monkeypatch):
    monkeypatch.setattr(environment, "_SPARE_GIB", 1 << 30)
    told = []
    with pytest.raises(UnavailableError, match="GiB free: free some space there"):
        ensure("", told.append)
    assert told == []
    assert [*root.iterdir()] == []
