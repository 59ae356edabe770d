# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which driver Concourse's volumes get, by the real overlay mounts of this kernel."""

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")

CODE = """
import pathlib, sys
from ci.concourse.worker import volumes
folder = pathlib.Path(sys.argv[1])
def proof(driver):
    try:
        volumes.prove(driver, folder)
    except volumes.VolumeError as error:
        return f"refused: {error}" if error.refused else f"starved: {error}"
    return "works"
print(*(volumes.choose(had, folder) for had in ("", "overlay", "naive")))
print(proof("overlay"))
print(proof("naive"))
left = [path.name for path in folder.iterdir()]
print(left, str(folder) + "/" in pathlib.Path("/proc/self/mounts").read_text())
"""
NOTHING = "[] False"
USER_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
# On a disk, since a machine's /tmp may be in memory.
DISK = "/var/tmp"


@pytest.mark.parametrize(
    ("around", "so", "chosen", "overlay", "naive"),
    [
        pytest.param([], ":", "overlay overlay naive", "works", "works", id="machine"),
        pytest.param(
            USER_NAMESPACE, ":", "naive naive naive",
            "refused: overlay: mount of a volume (overlay): Operation not permitted", "works",
            id="unprivileged container",
        ),
        pytest.param(
            ["unshare", "--mount"],
            "cd $1; mkdir a b c; mount -t overlay o -o lowerdir=a,upperdir=b,workdir=c $1/w",
            "naive naive naive",
            "refused: overlay: mount of a volume (overlay): Invalid argument", "works",
            id="on an overlay",
        ),
        pytest.param(
            ["unshare", "--mount"], "mount -t tmpfs -o nr_inodes=2 t $1/w",
            "overlay overlay naive",
            "starved: overlay: No space left on device",
            "starved: naive: No space left on device",
            id="full",
        ),
    ],
)  # fmt: skip
def test_a_worker_layers_where_that_works_and_copies_where_it_is_refused(
    around, so, chosen, overlay, naive
):
    """A machine that is out of something says nothing of the driver: the worker keeps its own."""
    with tempfile.TemporaryDirectory(dir=DISK) as folder:
        pathlib.Path(folder, "w").mkdir()
        script = f'set -e; {so}; shift; cd /; exec "$@"'
        program = [sys.executable, "-c", CODE, f"{folder}/w"]
        done = subprocess.run(
            [*around, "sh", "-c", script, "sh", folder, *program],
            env={"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib", "PATH": os.environ["PATH"]},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [chosen, overlay, naive, NOTHING]
