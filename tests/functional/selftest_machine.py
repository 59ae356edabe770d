# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine with systemd and two simulated GPUs, where the charm's code lies in /srv/charm."""

import contextlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import tempfile

import pytest

from tests import fakes, once
from tests.lab.park import Park

ROOT = pathlib.Path(__file__).parents[2]
# Stands for the runc that starts tasks.
RUNC = "/opt/ci/runc"
NEEDED = ("systemd-nspawn", "gcc")
MISSING = [name for name in NEEDED if not shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")]

NEEDS = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines need root"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    # A machine's keeper is meant to outlive who started it.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


class Host:
    """The machine; `libraries` is its /srv/nvml."""

    def __init__(self, machine, libraries):
        self.machine, self.libraries = machine, libraries
        paths = ":".join(f"/srv/charm/{part}" for part in ("lib", "src", "venv"))
        self.python = ["/usr/bin/env", f"PYTHONPATH={paths}", "/usr/bin/python3", "-W", "error"]

    def sh(self, script, check=True):
        return self.machine.run(["/bin/sh", "-c", script], check=check, timeout=180)

    def run(self, code):
        return self.machine.run([*self.python, "-c", code], timeout=180).stdout

    def fakegpu(self, *arguments):
        return self.machine.run([fakes.FAKEGPU, *arguments]).stdout


def carried(folder):
    """The packages that the packed charm has, out of this environment, which has many more."""
    locks = ("requirements.txt", "requirements-agent.txt")
    locked = "".join((ROOT / name).read_text() for name in locks)
    for name in re.findall(r"^([A-Za-z0-9._-]+)==", locked, re.M):
        # What is for another interpreter only is not here.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files(name) or ():
                if ".." not in file.parts and file.suffix != ".pyc":
                    target = folder / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file.locate(), target)
    return folder


@contextlib.contextmanager
def started(name, more=()):
    """A Host; its NVML lies in /srv/nvml as `answering`.

    `more`: further paths there, each with what of this machine it shows.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-test-") as folder:
        libraries = pathlib.Path(folder, "nvml")
        once.put("nvml", fakes.build_nvml, libraries)
        shutil.copy(libraries / "libnvidia-ml.so.1", libraries / "answering")
        binds = {f"/srv/charm/{part}": ROOT / part for part in ("src", "lib", "templates")}
        binds |= {"/srv/charm/venv": carried(pathlib.Path(folder, "venv")), "/srv/nvml": libraries}
        binds |= {"/srv/fakes": ROOT / "tests/fakes", **dict(more)}
        park = Park(pathlib.Path(folder, "park"))
        try:
            host = Host(park.up(name, binds_ro=binds), libraries)
            for source, target in fakes.gpu_files(libraries).items():
                shown = "/srv/nvml" if source.parent == libraries else "/srv/fakes"
                host.sh(f"install -D -m 755 {shown}/{source.name} {target}")
            host.fakegpu("install", "--count", "2")
            host.sh(f"mkdir -p /opt/concourse/current; install -D /bin/true {RUNC}")
            yield host
        finally:
            park.destroy()
