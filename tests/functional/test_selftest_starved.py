# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine whose processor or processes somebody else has: no GPU is taken out for that."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests.unit.hanging import hanging, the_result

CGROUPS = pathlib.Path("/sys/fs/cgroup")
HAS_V2 = (CGROUPS / "cgroup.controllers").exists()
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not (HAS_V2 or (CGROUPS / "cpu").exists()),
    reason="needs root, and control groups to make",
)


@contextlib.contextmanager
def group(controller, pid, **values):
    """A control group with a process in it, which goes to the root when it is over."""
    top = CGROUPS if HAS_V2 else CGROUPS / controller
    folder = top / f"gpu-ci-test-{os.getpid()}-{pid}"
    folder.mkdir()
    try:
        for name, value in values.items():
            (folder / f"{controller}.{name}").write_text(f"{value}\n")
        (folder / "cgroup.procs").write_text(f"{pid}\n")
        yield
    finally:
        while folder.exists():
            for left in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (top / "cgroup.procs").write_text(f"{left}\n")
            with contextlib.suppress(OSError):  # somebody was just starting
                folder.rmdir()


@contextlib.contextmanager
def no_processor(pid):
    """Another has nearly all of it: 10 of 1024 parts are left, as beside a hundred programs."""
    weights = ({"weight": 1}, {"weight": 100}) if HAS_V2 else ({"shares": 10}, {"shares": 1024})
    command = ["taskset", "-c", "0", sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(command) as hog, contextlib.ExitStack() as stack:
        stack.callback(hog.kill)
        subprocess.run(["taskset", "-a", "-p", "-c", "0", str(pid)], check=True)
        stack.enter_context(group("cpu", hog.pid, **weights[1]))
        stack.enter_context(group("cpu", pid, **weights[0]))
        yield


@contextlib.contextmanager
def no_process(pid):
    """Nobody can start one more."""
    with group("pids", pid, max=1):
        yield


@pytest.mark.parametrize("starve", [no_processor, no_process])
def test_a_driver_whose_answer_others_may_keep_back_is_not_blamed(tmp_path, starve):
    with hanging(tmp_path, 4, deaf=True) as process:
        assert process.stderr.readline() == "Asking NVML\n"
        with starve(process.pid):
            time.sleep(5)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    result = the_result(out)
    assert result["outcome"] == "not-run"
    assert "this machine was starved" in result["text"]
