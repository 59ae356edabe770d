# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What integration tests need. It imports the standard library only: two environments read it."""

import json
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def charms() -> list[pathlib.Path]:
    """The charm to test: GPUCI_CHARM, else the packed one."""
    if given := os.environ.get("GPUCI_CHARM"):
        return [pathlib.Path(given).resolve()]
    return list(ROOT.glob("gpu-ci-worker_*.charm"))


def juju(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a juju command that answers at once."""
    return subprocess.run(
        ["juju", *arguments], check=False, capture_output=True, text=True, timeout=30
    )


def what_is_missing() -> str:
    """Say why no test can run here, in a sentence; empty if all can."""
    if not shutil.which("juju"):
        return "there is no juju command on this machine"
    who = juju("whoami")
    if who.returncode != 0:
        return f"juju has no controller here: {who.stderr.strip()}"
    if len(charms()) != 1:
        return "there is no packed charm: run make pack"
    return ""


def what_is_missing_for_juju_36() -> str:
    """Say why the test with pytest-operator cannot run here; empty if it can."""
    if missing := what_is_missing():
        return missing
    (controller,) = json.loads(juju("show-controller", "--format", "json").stdout).values()
    version = controller["details"].get("agent-version", "of an unknown version")
    if not version.startswith("3.6."):
        return f"the controller runs Juju {version}, and this test is for Juju 3.6"
    if not shutil.which("charmcraft"):
        # Its fixture asks for charmcraft, although scripts/pack packs the charm.
        return "pytest-operator finds no charmcraft on PATH: run make integration36"
    return ""
