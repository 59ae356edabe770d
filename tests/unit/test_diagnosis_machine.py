# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the machine says of itself: from trees like its own, programs that run, a real /proc."""

import errno
import os
import platform
import re
import subprocess

import pytest

from gpu_agent.diagnosis import machine as facts
from gpu_agent.model import errors
from gpu_agent.model.host import Machine, Toolkit


@pytest.fixture
def root(tmp_path):
    """A machine with nothing on it."""
    (tmp_path / "proc").mkdir()
    return tmp_path


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_machine_with_nothing_in_the_way(root):
    assert facts.machine(root) == Machine(facts.architecture())


def test_a_container_has_the_name_by_which_its_host_knows_it(root):
    written(root, "run/systemd/container", "lxc")
    written(root, "proc/sys/kernel/hostname", "c1\n")
    assert facts.machine(root).instance == "c1"


def test_containers_of_one_kernel_know_it_by_the_id_that_is_no_containers_own(root):
    """LXC has put another in the place of the kernel's; LXD shows the whole of /proc elsewhere."""
    assert facts.machine(root).boot == ""
    written(root, "proc/sys/kernel/random/boot_id", "9f86d081\n")
    boot = facts.machine(root).boot
    assert re.fullmatch(r"[0-9a-f]{32}", boot)
    written(root, "run/systemd/container", "lxc")
    written(root, "proc/sys/kernel/hostname", "c1\n")
    assert facts.machine(root).boot == ""
    written(root, "proc/sys/kernel/random/boot_id", "0a0a0a0a\n")
    written(root, "dev/.lxc/proc/sys/kernel/random/boot_id", "9f86d081\n")
    assert facts.machine(root).boot == boot


def written(root, name, text):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(
    ("kernel", "debian"),
    [("x86_64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64")],
)
def test_architecture_is_debians_name(monkeypatch, kernel, debian):
    monkeypatch.setattr(platform, "machine", lambda: kernel)
    assert facts.architecture() == debian


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("echo 'NVIDIA Container Runtime version 1.20.0'; echo 'commit: 5505'", "1.20.0"),
        ("echo 'NVIDIA Container Runtime version 1.19.1-rc.2'", "1.19.1-rc.2"),
        # As it ends where it finds no runc.
        ("echo 'NVIDIA Container Runtime version 1.20.0'; exit 1", "1.20.0"),
        ("echo 'runc version 1.3.0'", ""),
        ("echo 'NVIDIA Container Runtime version 1.20.0' >&2", ""),
        ("exit 3", ""),
    ],
)
def test_the_toolkits_version_is_asked_for(root, said, version):
    path = script(root / "usr/bin/nvidia-container-runtime", said)
    assert facts.machine(root).toolkit == Toolkit(str(path), version)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("exec sleep 60", "ran out of time: no end within 0.5 s"),
        ("kill -KILL $$", "failed with -9"),
        ("echo 'runtime: failed to create new OS thread' >&2; exit 2", "failed with 2"),
        ("echo 'fork/exec: resource temporarily unavailable' >&2; exit 1", "failed with 1"),
    ],
    ids=["no time", "no memory", "no thread", "no process"],
)
def test_a_toolkit_that_a_busy_machine_kept_from_answering_is_no_toolkit_without_a_version(
    root, said, why
):
    path = script(root / "usr/bin/nvidia-container-runtime", said)
    with pytest.raises(errors.UnknownError) as caught:
        facts.machine(root, patience=0.5)
    begin = "This machine can't be looked at, so nothing is changed for now: "
    assert str(caught.value).startswith(f"{begin}{path} --version {why}")


def test_a_toolkit_for_which_there_is_no_process_left_is_unknown(root, monkeypatch):
    script(root / "usr/bin/nvidia-container-runtime", "exit 0")

    def refuse(*_, **__):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(errors.UnknownError, match="can't be started: Resource temporarily"):
        facts.machine(root)


def test_a_toolkit_that_can_not_be_started_has_no_version(root):
    path = root / "usr/bin/nvidia-container-runtime"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x7fELF of another architecture")
    path.chmod(0o755)
    assert facts.machine(root).toolkit == Toolkit(str(path), "")


def test_the_toolkit_is_looked_for_in_its_places_in_order(root):
    said = "echo NVIDIA Container Runtime version 1.2.3"
    script(root / "usr/local/nvidia/toolkit/nvidia-container-runtime", said)
    assert facts.machine(root).toolkit is None
    local = script(root / "usr/local/bin/nvidia-container-runtime", said)
    assert facts.machine(root).toolkit == Toolkit(str(local), "1.2.3")
    packaged = script(root / "usr/bin/nvidia-container-runtime", said)
    assert facts.machine(root).toolkit == Toolkit(str(packaged), "1.2.3")
