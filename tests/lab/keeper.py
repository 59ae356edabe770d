# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keep one machine running, as a process: keeper.py MACHINE_DIRECTORY.

It runs in a session, a mount namespace and the lab's network namespace (machines.py starts it so).
It mounts the machine's root there, where the mount ends with the last process, and starts
systemd-nspawn again each time that the machine reboots.
"""

import json
import os
import pathlib
import subprocess
import sys

# systemd-nspawn(1): exit status 133 means that the machine asked for a reboot.
REBOOTED = 133


def mount_command(directory: pathlib.Path) -> list[str]:
    """Return mount's argv for the host's root with the machine's own layer over it."""
    layers = f"lowerdir=/,upperdir={directory}/upper,workdir={directory}/work,volatile"
    return ["/bin/mount", "-t", "overlay", "overlay", "-o", layers, str(directory / "root")]


def nspawn_command(directory: pathlib.Path, settings: dict[str, dict[str, str]]) -> list[str]:
    """Return systemd-nspawn's argv for the machine."""
    command = [
        "/usr/bin/systemd-nspawn",
        f"--directory={directory}/root",
        f"--machine={directory.name}",
        "--boot",
        # No machined on the host, and the cgroup is made by us.
        "--register=no",
        "--keep-unit",
        "--console=pipe",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
        "--network-bridge=br0",
        # runc asks for keyrings and loads device filters.
        "--system-call-filter=@keyring bpf",
    ]
    command += [f"--bind={source}:{path}" for path, source in settings["binds"].items()]
    command += [f"--bind-ro={source}:{path}" for path, source in settings["binds_ro"].items()]
    return [*command, "systemd.unit=multi-user.target"]


def main() -> int:
    """Keep the machine running until it powers off; the exit status is nspawn's last."""
    directory = pathlib.Path(sys.argv[1])
    settings = json.loads((directory / "settings.json").read_text())
    for cgroup in settings["cgroups"]:
        pathlib.Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    subprocess.run(mount_command(directory), check=True, timeout=30)
    command = nspawn_command(directory, settings)
    status = REBOOTED
    while status == REBOOTED:
        status = subprocess.run(command, check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
