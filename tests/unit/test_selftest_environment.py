# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The environment of the compute checks: which packages, from which archives; and its answers."""

import ast
import pathlib
import re
import sys
import tarfile
import zipfile

import pytest

from gpu_selftest.compute import environment, wheels, work
from gpu_selftest.compute.environment import Environment, UnavailableError
from gpu_selftest.compute.wheels import ArchiveError
from gpu_selftest.compute.work import UnsupportedError, WorkFailedError
from gpu_selftest.starvation_clock import Pulse
from tests.fakes.wheelhouse import as_tar, as_zip

ENTRY = r"^([a-z0-9-]+)==([^ ]+).*\\$((?:\n    --hash=sha256:\S+.*)+)"


@pytest.mark.parametrize(
    ("cuda", "python", "kit"),
    [
        ("13.0", (3, 11), "cuda13"),
        ("13.1", (3, 12), "cuda13"),
        ("14.2", (3, 12), "cuda13"),
        ("12.9", (3, 12), "cuda12"),
        ("12.0", (3, 10), "cuda12"),
        # A newer driver runs what is built for an older CUDA.
        ("13.0", (3, 10), "cuda12"),
        ("", (3, 11), "cuda13"),
        ("", (3, 10), "cuda12"),
    ],
)
def test_the_packages_fit_the_drivers_cuda_and_the_python(cuda, python, kit):
    assert environment.kit_for(cuda, python).name == kit


@pytest.mark.parametrize("cuda", ["11.8", "9.2"])
def test_a_driver_that_is_too_old_is_told_so(cuda):
    with pytest.raises(UnavailableError) as error:
        environment.kit_for(cuda, (3, 12))
    assert str(error.value) == (
        f"the driver supports CUDA {cuda} at most, but the test needs 12.0: "
        "update the driver to branch 525 or later"
    )


@pytest.mark.parametrize("kit", environment.KITS, ids=lambda kit: kit.name)
def test_a_kit_is_locked_exactly_with_hashes_and_without_an_index(kit):
    text = kit.lock.read_text()
    entries = re.findall(ENTRY, text, re.M)
    assert len(entries) == len(re.findall(r"^\S", text, re.M)) > 20
    locked = {name: version for name, version, *_ in entries}
    assert "http" not in text
    for name in kit.asked:
        bare, _, version = name.partition("==")
        bare = bare.partition("[")[0]
        assert bare in locked
        assert version in ("", locked[bare])
    # ONNX Runtime finds CUDA only in packages of the same major version as PyTorch's.
    major = kit.name.removeprefix("cuda")
    assert any(name.startswith("nvidia-cudnn") and name.endswith(major) for name in locked)


def test_the_workload_imports_only_what_its_environment_has():
    own = {path.stem for path in work.PROGRAM.iterdir()}
    allowed = {*sys.stdlib_module_names, *own, "torch", "numpy", "onnx", "onnxruntime"}
    for path in work.PROGRAM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            assert {name.partition(".")[0] for name in names} <= allowed, path


def member(name, kind=tarfile.REGTYPE, link=""):
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    return found


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("../evil.whl", tarfile.REGTYPE, "leads out of it"),
        ("wheels/../../evil.whl", tarfile.REGTYPE, "leads out of it"),
        ("/etc/evil.whl", tarfile.REGTYPE, "leads out of it"),
        ("wheels/run.sh", tarfile.REGTYPE, "not a wheel"),
        ("torch.tar.gz", tarfile.REGTYPE, "not a wheel"),
        ("evil.whl", tarfile.SYMTYPE, "not a wheel"),
        ("evil.whl", tarfile.LNKTYPE, "not a wheel"),
        ("evil.whl", tarfile.FIFOTYPE, "not a wheel"),
        ("evil.whl", tarfile.CHRTYPE, "not a wheel"),
    ],
)
def test_an_archive_with_anything_but_wheels_is_refused(tmp_path, name, kind, words):
    path, folder = tmp_path / "a.tar", tmp_path / "out"
    with tarfile.open(path, "w") as archive:
        archive.addfile(member("good.whl"))
        archive.addfile(member(name, kind, "/etc/passwd"))
    with pytest.raises(ArchiveError, match=words) as error:
        wheels.unpack(path, folder, lambda text: None)
    assert repr(name) in str(error.value)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["../evil.whl", "/etc/evil.whl", "run.sh"])
def test_a_zip_is_held_to_the_same(tmp_path, name):
    archive = as_zip(tmp_path / "a.zip", [("good.whl", b""), (name, b"")])
    with pytest.raises(ArchiveError):
        wheels.unpack(pathlib.Path(archive), tmp_path / "out", lambda text: None)
    link = zipfile.ZipInfo("evil.whl")
    link.external_attr = 0o120777 << 16
    as_zip(tmp_path / "b.zip", [(link, b"/etc/passwd")])
    with pytest.raises(ArchiveError, match="not a wheel"):
        wheels.unpack(tmp_path / "b.zip", tmp_path / "out", lambda text: None)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x1f\x8b" + bytes(50), None])
def test_what_is_no_whole_archive_is_refused(tmp_path, content):
    path = tmp_path / "a"
    if content is None:  # cut off in the middle
        whole = as_tar(tmp_path / "whole", [("a.whl", bytes(range(256)) * 4000)])
        content = pathlib.Path(whole).read_bytes()[:1000]
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match="not a complete tar or zip"):
        wheels.unpack(path, tmp_path / "out", lambda text: None)


def test_an_archive_that_is_empty_or_too_large_is_refused(tmp_path):
    empty = as_tar(tmp_path / "empty", [])
    with pytest.raises(ArchiveError, match="contains no wheel"):
        wheels.unpack(pathlib.Path(empty), tmp_path / "out", lambda text: None)
    many = as_tar(tmp_path / "many", [(f"{number}.whl", b"") for number in range(1001)])
    with pytest.raises(ArchiveError, match="too large: 1001 files with 0 GiB"):
        wheels.unpack(pathlib.Path(many), tmp_path / "out", lambda text: None)
    large = tmp_path / "large"
    with zipfile.ZipFile(large, "w") as archive:
        archive.writestr("a.whl", b"")
        (wheel,) = archive.infolist()
        wheel.file_size = 17 << 30  # what the archive says of it
    with pytest.raises(ArchiveError, match="too large: 1 files with 17 GiB"):
        wheels.unpack(large, tmp_path / "out", lambda text: None)


def program(tmp_path, line):
    """An environment whose interpreter is a shell that runs this line."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\n{line}\n")
    python.chmod(0o755)
    return Environment(tmp_path, "key")


def ask(made, gpus, device="cuda", timeout=5):
    return work.ask(made, "results", device, gpus, timeout=timeout, clock=Pulse(home=made.folder))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kill -SEGV $$", "killed by signal 11"),
        ("echo CUDA error: an illegal address >&2; kill -ABRT $$", "signal 6: CUDA error: an ill"),
        ("echo 'RuntimeError: no GPU' >&2; exit 1", "RuntimeError: no GPU"),
        ("exit 3", "exit status 3 and no output"),
        ("sleep 60", "no answer within 2 s"),
        ("exit 0", "ended without an answer"),
        ("echo hello", "ended without an answer"),
        ("echo '[1]'", "ended without an answer"),
    ],
)
def test_work_that_breaks_off_is_told_in_its_last_words(tmp_path, line, words):
    with pytest.raises(WorkFailedError, match=words):
        ask(program(tmp_path, line), ["GPU-a"], timeout=2)


def test_a_gpu_that_pytorch_has_no_code_for_is_not_blamed(tmp_path):
    line = 'echo \'{"mode": "results", "unsupported": "no code for compute capability 6.1"}\''
    with pytest.raises(UnsupportedError, match=r"6\.1"):
        ask(program(tmp_path, line), ["GPU-a"])


@pytest.mark.parametrize(
    ("device", "seen"), [("cuda", "GPU-a,MIG-b"), ("cpu", "")], ids=["cuda", "cpu"]
)
def test_the_work_sees_its_gpus_alone_and_no_charm(tmp_path, monkeypatch, device, seen):
    monkeypatch.setenv("PYTHONPATH", "/charm/src")
    line = """printf '{"gpus": "%s", "path": "%s"}' "$CUDA_VISIBLE_DEVICES" "$PYTHONPATH" """
    gpus = ["GPU-a", "MIG-b"]
    found = ask(program(tmp_path, line), gpus, device)
    assert found == {"gpus": seen, "path": ""}


def test_removal_takes_what_an_earlier_revision_has_left_but_no_report(tmp_path):
    for name in ("venv-cuda13-0a1b", "scratch", "history"):
        (tmp_path / name).mkdir()
    (tmp_path / "last.json").write_text("{}")
    assert environment.remove(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history", "last.json"]
    assert not environment.remove(tmp_path)
