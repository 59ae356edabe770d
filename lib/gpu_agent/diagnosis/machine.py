# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads facts of the machine: architecture, NVIDIA runtime, instance, boot."""

import hashlib
import pathlib
import platform
import re
import typing

from gpu_agent.model import errors
from gpu_agent.model.host import Machine, Toolkit
from machine import process

# Not /usr/local/nvidia/toolkit, where NVIDIA's GPU operator puts a script of this name: it sets
# XDG_CONFIG_HOME again, so that the runtime would not read our private configuration.
_RUNTIMES: typing.Final = (
    "usr/bin/nvidia-container-runtime",
    "usr/local/bin/nvidia-container-runtime",
)
# Debian's names (dpkg-architecture); others are left as the kernel says them.
_ARCHITECTURES: typing.Final = {"x86_64": "amd64", "aarch64": "arm64"}

# In seconds; it takes some hundredths of one.
_ANSWER: typing.Final = 10.0


def architecture() -> str:
    """Debian's name of this machine's architecture, such as `amd64`."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def machine(root: pathlib.Path = pathlib.Path("/"), patience: float = _ANSWER) -> Machine:
    """Read the facts of a machine.

    Args:
        root: where its files lie.
        patience: how many seconds a program of it may take to answer.

    Raises:
        gpu_agent.model.errors.UnknownError: the machine is short of time or memory, or a file
            cannot be read.
    """
    try:
        return Machine(
            architecture=architecture(),
            toolkit=_toolkit(root, patience),
            instance=instance(root),
            boot=boot(root),
        )
    except OSError as error:
        raise errors.unknown(error) from error


def instance(root: pathlib.Path) -> str:
    """Return the name of this system container on its LXD host; empty on a machine."""
    if not _is_container(root):
        return ""
    return (root / "proc/sys/kernel/hostname").read_text().strip()


def boot(root: pathlib.Path) -> str:
    """Return an id of the running kernel, unique among machines; empty if it is unknown.

    In a container systemd-nspawn (nspawn.c, setup_boot_id) and LXC (conf.c, lxc_setup_boot_id) put
    an id of their own in the place of the kernel's. LXD shows the whole of /proc below /dev/.lxc
    to containers that may hold containers (`security.nesting`), as Juju's do.
    """
    proc = root / ("dev/.lxc/proc" if _is_container(root) else "proc")
    try:
        told = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        return ""
    # Other units see only this hash, which has no other use.
    return hashlib.sha256(f"gpu-ci-worker {told}".encode()).hexdigest()[:32] if told else ""


def _is_container(root: pathlib.Path) -> bool:
    return (root / "run/systemd/container").exists()


def _toolkit(root: pathlib.Path, patience: float) -> Toolkit | None:
    for name in _RUNTIMES:
        path = root / name
        if path.is_file():
            return Toolkit(str(path), _version(path, patience))
    return None


def _version(runtime: pathlib.Path, patience: float) -> str:
    """Return the version that `--version` prints; empty if it prints none.

    The program prints its own version, and then fails if it finds no runc.

    Raises:
        gpu_agent.model.errors.UnknownError: the program had no time, or no memory.
    """
    argv = [str(runtime), "--version"]
    try:
        done = process.run(argv, timeout=patience, check=False, told=False)
    except process.CommandError as error:
        if error.starved:
            raise errors.unknown(error) from error
        return ""
    match = re.search(r"^NVIDIA Container Runtime version (\S+)", done.stdout, re.MULTILINE)
    if match:
        return match.group(1)
    failure = process.CommandError(argv, done.returncode, done.stderr)
    if done.returncode and failure.starved:
        raise errors.unknown(failure)
    return ""
