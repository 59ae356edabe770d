# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a killed test run leaves goes with the next one, and a run that lives is left alone."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from tests import runs
from tests.lab import cgroups, network, processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not cgroups.writable(), reason="cgroups need root"
)
# A run with a process that outlives it, in cgroups of its own, a lab's network, and a folder.
RUN = """
import pathlib, subprocess, sys, time
from tests import runs
from tests.lab import cgroups, network
folder, net, made = sys.argv[1:]
run = runs.begin(pathlib.Path(folder))
runs.note("network", net)
network.Network(net).up()
runs.note("folder", made)
pathlib.Path(made, "machines").mkdir(parents=True)
with cgroups.entered(runs.cgroup_name()):
    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(run.folder, left.pid, flush=True)
    sys.stdin.read()
    left.kill()
    left.wait()
network.Network(net).down()
run.end()
"""


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A function that begins a run in a process of its own: process, mark, what it started."""
    monkeypatch.delenv("GPUCI_TESTS_RUN", raising=False)
    with contextlib.ExitStack() as stack:

        def begin(name):
            net = f"gpucilab-{os.getpid()}-{name}"
            words = [tmp_path / "runs", net, tmp_path / name]
            run = subprocess.Popen(
                [sys.executable, "-c", RUN, *words], cwd=ROOT,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.enter_context(run)
            mark, left = run.stdout.readline().split()
            stack.callback(runs.sweep, pathlib.Path(mark))
            stack.callback(run.wait, 60)
            stack.callback(run.kill)
            return run, pathlib.Path(mark), int(left)

        yield begin


def test_what_a_killed_run_left_goes_when_the_next_begins(begun, tmp_path):
    run, mark, left = begun("killed")
    net = network.Network(f"gpucilab-{os.getpid()}-killed")
    assert net.path.exists()
    assert cgroups.find(f"gpuci-tests-{mark.name}")
    run.send_signal(signal.SIGKILL)
    run.wait(60)
    assert processes.is_alive(left)

    begun("next")
    assert not processes.is_alive(left)
    assert not net.path.exists()
    assert not cgroups.find(f"gpuci-tests-{mark.name}")
    assert not (tmp_path / "killed").exists()
    assert not mark.exists()


def test_what_stood_still_in_a_killed_run_goes_too(begun):
    run, mark, left = begun("frozen")
    run.send_signal(signal.SIGKILL)
    run.wait(60)
    switches = [
        switch
        for directory in cgroups.find(f"gpuci-tests-{mark.name}")
        for name, word in (("freezer.state", "FROZEN"), ("cgroup.freeze", "1"))
        for switch in directory.rglob(name)
        if switch.write_text(word)
    ]
    assert switches

    begun("next")
    assert not processes.is_alive(left)
    assert not mark.exists()


def test_what_a_process_of_a_run_left_goes_when_that_ends(begun, tmp_path):
    """A lab, say, whose pytest-xdist worker died."""
    run, mark, _left = begun("broken")
    other = f"gpuci-tests-{mark.name}-other"
    made = cgroups.make(other)
    sleeping = subprocess.Popen(["sleep", "600"])
    try:
        for directory in made:
            (directory / "cgroup.procs").write_text(str(sleeping.pid))
        run.communicate("", timeout=60)
        assert run.returncode == 0
        assert sleeping.wait(60) == -signal.SIGKILL
    finally:
        sleeping.kill()
        sleeping.wait()
    assert not cgroups.find(f"gpuci-tests-{mark.name}")


def test_a_run_that_lives_is_left_alone(begun, tmp_path):
    run, mark, left = begun("first")
    begun("second")
    assert processes.is_alive(left)
    assert network.Network(f"gpucilab-{os.getpid()}-first").path.exists()
    assert cgroups.find(f"gpuci-tests-{mark.name}")
    assert (tmp_path / "first").exists()
    run.communicate("", timeout=60)
    assert run.returncode == 0
    assert not mark.exists()


def test_runs_that_end_as_another_begins_are_passed_over(tmp_path, monkeypatch):
    """Their folders vanish between two looks, or their marks alone have by then."""
    monkeypatch.delenv("GPUCI_TESTS_RUN", raising=False)
    ended = [tmp_path / name for name in ("one", "other")]
    for folder in ended:
        folder.mkdir()
        (folder / "lock").touch()
    half = tmp_path / "half"
    half.mkdir()
    swept = []

    def sweep(left):
        swept.append(left)
        for folder in (left, *ended):
            shutil.rmtree(folder, ignore_errors=True)

    monkeypatch.setattr(runs, "sweep", sweep)
    run = runs.begin(tmp_path)
    assert [*tmp_path.glob("[!l]*")] == [run.folder]
    assert half in swept
    monkeypatch.undo()
    run.end()


def test_a_folder_on_which_something_is_mounted_is_not_emptied(tmp_path):
    """As long as it is: what is mounted may be somebody's."""
    dead, folder = tmp_path / "dead", tmp_path / "folder"
    for path in (dead, folder / "mounted"):
        path.mkdir(parents=True)
    (dead / "notes").write_text(f"folder {folder}\n")
    mount = ["mount", "-t", "tmpfs", "tmpfs", folder / "mounted"]
    try:
        subprocess.run(mount, check=True, timeout=60)
        (folder / "mounted/file").touch()
        runs.sweep(dead)
        assert (folder / "mounted/file").exists()
    finally:
        subprocess.run(["umount", folder / "mounted"], check=True, timeout=60)


def test_memory_of_a_killed_run_is_given_back(tmp_path):
    dead, memory, never_mounted = (tmp_path / name for name in ("dead", "memory", "never"))
    for path in (dead, memory, never_mounted):
        path.mkdir()
    (dead / "notes").write_text(f"memory {memory}\nmemory {never_mounted}\nmemory {memory}-gone\n")
    subprocess.run(["mount", "-t", "tmpfs", "gpuci-tests", memory], check=True, timeout=60)
    (memory / "file").touch()
    runs.sweep(dead)
    assert [*tmp_path.iterdir()] == []


def test_a_part_of_a_run_marks_and_sweeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUCI_TESTS_RUN", str(tmp_path / "run"))
    assert runs.begin(tmp_path / "runs") is None
    assert not (tmp_path / "runs").exists()
    runs.note("network", "none")  # Of a run that has ended meanwhile.
    assert not (tmp_path / "run").exists()
