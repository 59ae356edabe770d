# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Find out why no machine can start here, by trying each thing that a machine needs."""

import pathlib
import shutil
import subprocess

from tests.lab import cgroups, keeper, network
from tests.lab.errors import MachineError
from tests.lab.machines import CLEAN_ENV

PROGRAMS = ("systemd-nspawn", "nsenter", "unshare", "setsid", "ip", "unzip", "gcc")
REMEDY = (
    "run the lab as root of a physical or virtual machine, or of a container that has all "
    "capabilities, /proc, and /sys/fs/cgroup writable"
)
# For one try, in seconds. What takes longer is slow, and may work.
PATIENCE = 15.0
# Its own cgroups, its root, and systemd-nspawn over it; no systemd boots.
_START = """
cd "$1"; shift
while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done
shift
# A layer that was mounted without its syncs is not accepted again.
rm -rf work; mkdir work
"$@"
exec /usr/bin/systemd-nspawn --directory=root --register=no --keep-unit --as-pid2 --quiet \\
    --console=pipe --link-journal=no --resolv-conf=off --timezone=off --private-network /bin/true
"""


def find(net: network.Network, directory: pathlib.Path) -> str:
    """Return why no machine can start, as one sentence with the remedy; empty if one can.

    Args:
        net: the lab's network; it may be up afterwards.
        directory: for the machine that is tried; it is on a file system that can hold layers.
    """
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        return f"{missing[0]} is not installed: run scripts/setup lab"
    groups: list[pathlib.Path] = []
    try:
        groups = cgroups.make(f"{net.name}-{directory.name}")
        net.up()
        why = _start(directory, groups)
    except OSError as error:
        why = f"no cgroup can be made ({error.filename}: {error.strerror})"
    except MachineError as error:
        why = str(error)
    finally:
        cgroups.remove(groups)
        shutil.rmtree(directory, ignore_errors=True)
    return why and f"no machine can start here, since {why}: {REMEDY}"


def _start(directory: pathlib.Path, groups: list[pathlib.Path]) -> str:
    for part in ("upper", "work", "root"):
        (directory / part).mkdir(parents=True, exist_ok=True)
    unshare, mount = ["/usr/bin/unshare", "--mount"], keeper.mount_command(directory)
    start = ["/bin/sh", "-ec", _START, "sh", str(directory), *map(str, groups), "--", *mount]
    return (
        _tried([*unshare, "/bin/true"], "no mount namespace can be made")
        or _tried([*unshare, *mount], "no overlay of / can be mounted")
        or _tried([*unshare, *start], "systemd-nspawn fails")
    )


def _tried(argv: list[str], what: str) -> str:
    """Return what does not work, with the last that the command said of it; empty if it works."""
    try:
        done = subprocess.run(
            argv, env=CLEAN_ENV, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    lines = done.stderr.splitlines()
    said = [line for line in lines if line.strip() and not line.strip().startswith("dmesg(1)")]
    return f"{what} ({said[-1].strip() if said else 'it says nothing'})" if done.returncode else ""
