# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Where no machine can start, the lab says why at once, and does not try again and again."""

import os
import subprocess
import time

import pytest

from tests.lab import cgroups, shellcharm
from tests.lab.park import Park
from tests.lab.session import ROOT

# What the lab has in a minute, a busy machine included.
SECONDS = 60
REMEDY = "run the lab as root of a physical or virtual machine"
# A container's view of them: there, and read-only.
NO_CGROUPS = "mount -t tmpfs -o ro none /sys/fs/cgroup"
# / of a chroot is not a mount point, and its content is the machine's.
CHROOT = """
mount -t tmpfs none "$TOP"; mkdir "$TOP/root"; cd "$TOP/root"
for path in /*; do
  if [ -L "$path" ]; then cp -a "$path" .
  elif [ -d "$path" ]; then mkdir ".$path"; mount --rbind "$path" ".$path"; fi
done
exec chroot . "$@"
"""


def within(script):
    """Run a command after a script, in mounts of its own."""
    return ["/usr/bin/unshare", "--mount", "/bin/sh", "-ec", f'{script}\nexec "$@"', "sh"]


def without(capability):
    """Run a command that can't get this capability."""
    return ["/usr/bin/setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}"]


@pytest.fixture
def lab(machines_work, tmp_path):
    """Run a lab command somewhere; exit status, output, errors."""
    (tmp_path / "top").mkdir()
    env = {
        **os.environ, "GPUCI_LAB_DIR": str(tmp_path / "lab"), "PYTHONPATH": str(ROOT),
        "TOP": str(tmp_path / "top"),
    }  # fmt: skip

    def lab(*arguments: str, where: tuple[str, ...] = ()) -> tuple[int, str, str]:
        command = [*where, str(ROOT / ".venv/bin/python"), "-m", "tests.lab.cli", *arguments]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return done.returncode, done.stdout, done.stderr

    yield lab
    assert lab("destroy")[0] == 0


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (within(NO_CGROUPS), "no cgroup can be made (/sys/fs/cgroup"),
        (within("umount --recursive --lazy /sys/fs/cgroup"), "no cgroup can be made (/sys/fs/cg"),
        (within(CHROOT), '"mount --make-rslave /" failed'),
        (without("sys_admin"), "Operation not permitted"),
        (without("net_admin"), "link set lo up: RTNETLINK answers: Operation not permitted"),
    ],
    ids=["cgroups-read-only", "no-cgroups", "chroot", "no-sys-admin", "no-net-admin"],
)
def test_where_no_machine_can_start_one_line_says_why_and_what_to_do(lab, tmp_path, where, why):
    charm = str(shellcharm.pack(tmp_path / "shell.charm", {}))
    status, out, errors = lab("deploy", charm, "one", where=tuple(where))
    assert (status, out, errors.count("\n")) == (2, "", 1), out + errors
    assert errors.startswith("lab: no machine can start here, since ")
    assert why in errors
    assert REMEDY in errors
    assert "no lab is up" in lab("status")[2]
    network = Park(tmp_path / "lab").network
    assert not network.path.exists()
    assert cgroups.find(network.name) == []


def test_a_machine_that_cannot_start_is_tried_once(lab, tmp_path):
    charm = str(shellcharm.pack(tmp_path / "shell.charm", {}))
    assert lab("deploy", charm, "one")[0] == 0
    begun = time.monotonic()
    out = lab("add-unit", "one", where=tuple(within(NO_CGROUPS)))[1]
    print(f"told after {time.monotonic() - begun:.1f} s")
    assert out.count("one/1: no machine can start here, since no cgroup can be made") == 1, out
    assert out.count("one/1: making machine") == 1
    # What is up goes on, and where it can start it does.
    assert lab("shell", "one/0", "hostname")[1] == "one-0\n"
    assert lab("resolved", "one/1")[0] == 0
    assert lab("shell", "one/1", "hostname")[1] == "one-1\n"
