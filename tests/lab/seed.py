# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Fill a machine's own layer before its first boot: the host's packages, but none of its services,
settings, data or secrets."""

import os
import pathlib
import shutil
import uuid

from tests.lab.network import GATEWAY, SUBNET

# Directories of the host that a machine sees empty: enabled units and start scripts, and what the
# host's own services keep. Each keeps the owner and mode that it has on the host.
HIDDEN = (
    "/etc/systemd/system",
    "/etc/systemd/network",
    "/etc/netplan",
    *(f"/etc/rc{level}.d" for level in "2345S"),
    "/etc/postgresql",
    "/var/lib/postgresql",
    "/var/log/postgresql",
    "/etc/containerd",
    "/var/lib/containerd",
    "/etc/concourse",
    "/opt/concourse",
    "/etc/gpu-ci",
    "/opt/gpu-ci",
    "/var/lib/juju",
    "/var/lib/concourse",
    "/var/lib/gpu-ci",
    "/root",
)
NETWORK = f"""\
[Match]
Name=host0
[Network]
Address={{address}}/{SUBNET.prefixlen}
Gateway={GATEWAY}
LinkLocalAddressing=no
IPv6AcceptRA=no
"""
WANTS = "etc/systemd/system/multi-user.target.wants"
# Units that would wait for hardware or a terminal that no machine has. Those for passwords would
# take two of the host's 128 inotify instances in each machine.
MASKED = (
    *("console-getty.service", "systemd-firstboot.service", "e2scrub_reap.service"),
    *("systemd-ask-password-console.path", "systemd-ask-password-wall.path"),
)


def seed(upper: pathlib.Path, name: str, address: str, state_dir: pathlib.Path) -> None:
    """Fill the layer of a new machine.

    Args:
        upper: the overlay's upper directory, existing and empty.
        name: the machine's name, its hostname too.
        address: its IPv4 address.
        state_dir: the lab's directory, which the machine must not see.
    """
    for path in (*HIDDEN, str(state_dir)):
        _hide(upper, path)
    etc = upper / "etc"
    (etc / "hostname").write_text(f"{name}\n")
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n")
    (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    # No resolver there: look-ups fail at once, not after a timeout.
    (etc / "resolv.conf").write_text(f"nameserver {GATEWAY}\n")
    for table in ("fstab", "crypttab"):
        (etc / table).write_text("")
    network = etc / "systemd/network/10-host0.network"
    network.write_text(NETWORK.format(address=address))
    units = upper / "etc/systemd/system"
    for unit in MASKED:
        (units / unit).symlink_to("/dev/null")
    (upper / WANTS).mkdir()
    (upper / WANTS / "systemd-networkd.service").symlink_to(
        "/lib/systemd/system/systemd-networkd.service"
    )
    if pathlib.Path("/etc/cloud").is_dir():
        (etc / "cloud").mkdir()
        (etc / "cloud/cloud-init.disabled").touch()
    _allow_services(upper)


def _hide(upper: pathlib.Path, path: str) -> None:
    """Make the directory empty in the machine, where the host has it."""
    host = pathlib.Path(path)
    if not host.is_dir() and path not in ("/etc/systemd/system", "/etc/systemd/network"):
        return
    _parents(upper, host.parent)
    hidden = upper / path.lstrip("/")
    hidden.mkdir(exist_ok=True)
    _like(hidden, host)
    # Linux, Documentation/filesystems/overlayfs.rst, "whiteouts and opaque directories".
    os.setxattr(hidden, "trusted.overlay.opaque", b"y")


def _parents(upper: pathlib.Path, host: pathlib.Path) -> None:
    for parent in reversed([host, *host.parents]):
        mine = upper / str(parent).lstrip("/")
        if not mine.exists():
            mine.mkdir()
            _like(mine, parent)


def _like(mine: pathlib.Path, host: pathlib.Path) -> None:
    if host.exists():
        status = host.stat()
        os.chown(mine, status.st_uid, status.st_gid)
        shutil.copymode(host, mine)


def _allow_services(upper: pathlib.Path) -> None:
    """Hide the host's policy-rc.d, with which packages would not start their services."""
    policy = pathlib.Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        _parents(upper, policy.parent)
        os.mknod(upper / "usr/sbin/policy-rc.d", 0o600 | 0o020000, os.makedev(0, 0))
