# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the virtual machine's cases import is on its disk; `make soak` alone runs the cases."""

import subprocess

from tests.soak import machine


def test_the_cases_find_what_they_import(tmp_path):
    machine.add_cases(tmp_path)
    # No case starts: the module of the cases runs them as it is imported.
    modules = [path.stem for path in tmp_path.glob("*.py")]
    with_the_charm = {"people", "doors", "gpu_run_host", "runners"}
    parts = ", ".join(sorted({*modules} - {"cases", *with_the_charm}))
    argv = [machine.PYTHON, "-Bs", "-c", f"import {parts}"]
    done = subprocess.run(argv, cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
