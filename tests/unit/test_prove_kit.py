# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The packages that travel with the tree for `make prove-gpu` are all that lib needs, and pure."""

import ast
import importlib.util
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The names by which the kit's packages are imported.
IMPORTED = {"jinja2", "pynvml", "tenacity", "tomlkit"}
OURS = {"gpu_agent", "gpu_runtime", "gpu_selftest", "gpu_standalone", "machine"}


@pytest.fixture(scope="module")
def kit():
    spec = importlib.util.spec_from_file_location("kit", ROOT / "scripts/prove_gpu/kit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_lib_imports_no_other_package():
    workload = ROOT / "lib/gpu_selftest/compute/workload"
    files = [path for path in (ROOT / "lib").rglob("*.py") if workload not in path.parents]
    found = {name for path in files for name in imported(path)}
    assert found - sys.stdlib_module_names - OURS == IMPORTED


def test_the_agents_lock_has_these_packages_and_what_they_need():
    lock = (ROOT / "requirements-agent.txt").read_text()
    entries = {line.partition("==")[0] for line in lock.splitlines() if not line.startswith(" ")}
    modules = {name: "pynvml" if name == "nvidia-ml-py" else name for name in entries}
    # jinja2 needs markupsafe.
    assert {*modules.values()} == IMPORTED | {"markupsafe"}


def test_compiled_parts_are_left_out(kit, tmp_path):
    wheel = tmp_path / "made-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("made/__init__.py", "made/_native.py", "made/_speedups.cpython-311.so"):
            archive.writestr(name, "")
    kit._unpack(wheel, tmp_path / "kit")
    found = {path.name for path in (tmp_path / "kit").rglob("*") if path.is_file()}
    assert found == {"__init__.py", "_native.py"}


def test_a_wheel_writes_nowhere_else(kit, tmp_path):
    wheel = tmp_path / "made-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../made.py", "")
    with pytest.raises(SystemExit):
        kit._unpack(wheel, tmp_path / "kit")
    assert not (tmp_path / "made.py").exists()
