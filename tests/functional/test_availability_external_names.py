# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whose use of a GPU goes unnoticed: services and displays of the host, and none in their name."""

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gpu_agent.availability import external_processes as foreign
from tests.functional.foreign_machine import CONTAINER, HOLDER, HOST, SESSION, Machine

PERSISTENCED = "/system.slice/nvidia-persistenced.service"
GARDEN = f"/system.slice/concourse-worker.service/garden/{HOLDER}"
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="a program that belongs to root takes root to make"
)


def harmless(folder, program, owner=0, **process) -> bool:
    """Whether a process that runs that program goes unnoticed."""
    path = folder / "bin" / program
    path.parent.mkdir()
    path.write_text("")
    os.chown(path, owner, owner)
    machine = Machine(folder, folder)
    machine.process(4711, name=program.encode()[:15], exe=str(path), **process)
    said = foreign._stranger(machine.root / "proc/4711", {}, Path(HOST))
    assert said in ("", f"pid 4711 ({program[:15]})")
    return not said


@pytest.mark.parametrize(
    ("program", "cgroup", "uid"),
    [
        ("nvidia-persistenced", PERSISTENCED, 112),
        ("nv-hostengine", "/system.slice/nvidia-dcgm.service", 0),
        ("nv-hostengine", "/system.slice/dcgm.service", 997),
        ("dcgm-exporter", "/system.slice/snap.dcgm.dcgm-exporter.service", 997),
        # Root's own, wherever.
        ("nvidia-smi", "/user.slice/user-0.slice/session-1.scope", 0),
        ("dcgmi", "/system.slice/cron.service", 0),
        ("Xorg", "/system.slice/lightdm.service", 0),
        # A user's own display.
        ("Xorg", SESSION, 1000),
        ("gnome-shell", "/user.slice/user-1000.slice/user@1000.service/session.slice/g", 1000),
    ],
)
def test_services_displays_and_roots_programs_do_not_count(tmp_path, program, cgroup, uid):
    assert harmless(tmp_path, program, cgroup=cgroup, uid=uid)


@pytest.mark.parametrize(
    ("program", "process"),
    [
        # LD_PRELOAD=... nvidia-smi, by anybody.
        ("nvidia-smi", {"uid": 1000}),
        ("dcgmi", {"uid": 1000}),
        ("nvidia-persistenced", {"uid": 1000}),
        ("nv-hostengine", {"uid": 1000, "cgroup": "/system.slice/ssh.service"}),
        ("nv-hostengine", {"uid": 1000, "cgroup": PERSISTENCED}),
        ("nvidia-smi", {"uid": 112, "cgroup": PERSISTENCED}),
        ("nvidia-persistenced", {"uid": 112, "cgroup": f"{GARDEN}{PERSISTENCED}"}),
        ("nvidia-persistenced", {"uid": 112, "cgroup": f"{PERSISTENCED}.x"}),
        ("Xorg", {"uid": 1000, "cgroup": "/system.slice/x.service"}),
        ("Xorg", {"uid": 1000, "cgroup": f"{GARDEN}{SESSION}"}),
        # In a container: root's own there, and in a group that has the right name.
        ("nvidia-smi", {"uid": 0, "ns": CONTAINER}),
        ("nvidia-persistenced", {"uid": 0, "ns": CONTAINER, "cgroup": PERSISTENCED}),
        ("Xorg", {"uid": 1000, "ns": CONTAINER}),
        # A program of their own, under that name.
        ("nvidia-smi", {"uid": 0, "owner": 1000}),
        ("Xorg", {"uid": 1000, "owner": 1000}),
        ("python3", {"uid": 0}),
    ],
)
def test_whoever_takes_such_a_name_is_a_stranger(tmp_path, program, process):
    assert not harmless(tmp_path, program, **process)


def test_a_name_with_lines_of_its_own_is_not_root(tmp_path):
    machine, program = Machine(tmp_path, tmp_path), tmp_path / "nvidia-smi"
    program.write_text("")
    machine.process(4711, name=b"x\nUid:\t0\t0\t0", exe=str(program))
    assert foreign._stranger(machine.root / "proc/4711", {}, Path(HOST))


@pytest.mark.parametrize("user", [0, 65534])
@pytest.mark.parametrize("around", [[], ["unshare", "--pid", "--fork", "--kill-child"]])
def test_a_real_process_is_told_by_its_user_and_its_process_ids(tmp_path, user, around):
    program = tmp_path / "nvidia-smi"
    shutil.copy(shutil.which("sleep"), program)
    argv = [*around, "setpriv", f"--reuid={user}", "--clear-groups", "--inh-caps=-all"]
    # By its descriptor: the user may not go through this test's folder.
    with (
        program.open("rb") as file,
        subprocess.Popen(
            [*argv, f"/proc/self/fd/{file.fileno()}", "60"], pass_fds=[file.fileno()]
        ) as child,
    ):
        try:
            pid = pid_of(str(program))
            own = Path("/proc/self/ns/pid").readlink()
            said = foreign._stranger(Path(f"/proc/{pid}"), {}, own)
        finally:
            child.kill()
    assert bool(said) == bool(user or around)


def pid_of(program):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if str((folder / "exe").readlink()) == program:
                    return int(folder.name)
        time.sleep(0.02)
    raise AssertionError(f"nothing runs {program}")
