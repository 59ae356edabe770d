# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Close TCP ports of 127.0.0.1 to all users but root, for as long as a service runs.

It is a program of its own, which needs nothing of the charm. Its rules are an nftables table,
which no rule of another table can override. A flush of all tables removes it (`nft flush ruleset`,
the start of nftables.service): `keep` restores it.

    ports.py shut UNIT OWN SHARED    before UNIT's process starts; fails if a port is in use
    ports.py open                    after it has ended
    ports.py keep                    restores the table when it is missing; a service of its own
    ports.py reach PORTS             prints the ports that accept this user's connection

OWN and SHARED are ports, separated by commas. Only root may connect to either, and only root's
programs may answer there. If cgroup v2 is mounted, only UNIT's own processes may connect to OWN:
root in a container with the host's network may not.
"""

import collections.abc
import contextlib
import fcntl
import os
import pathlib
import re
import select
import socket
import subprocess
import sys
import time
import typing

TABLE: typing.Final = "gpu_ci"
HOST: typing.Final = "127.0.0.1"
STATE: typing.Final = pathlib.Path("/run/gpu-ci-ports")
"""For root only: the lock, and the list of closed ports."""

RULES: typing.Final = "rules"
LOSSES: typing.Final = "losses"
"""A line for each time that the table was restored, in seconds since boot."""

_LISTED: typing.Final = "listed"
_NFT: typing.Final = "/usr/sbin/nft"
_TIMEOUT: typing.Final = 10.0  # seconds for one call of nft, which takes a hundredth of a second
_EVERY: typing.Final = 4.0
"""Seconds between two checks if the kernel announces no change; a check takes 7 ms."""
_ANSWER: typing.Final = 2.0  # seconds for a connection on this machine
_PAUSE: typing.Final = 0.1  # seconds after a check, in case changes follow each other
_MOST_LOSSES: typing.Final = 1000
# Linux include/uapi/linux/netfilter/nfnetlink.h and netlink.h.
_NETLINK_NETFILTER, _NFNLGRP_NFTABLES = 12, 7
_CGROUP: typing.Final = pathlib.Path("/sys/fs/cgroup")


class PortsError(Exception):
    """The ports can't be closed; the text says why and what to do."""


def shut(
    unit: str, own: collections.abc.Sequence[int], shared: collections.abc.Sequence[int]
) -> None:
    """Close the ports before a unit's process starts. The caller is in the unit's own group.

    Raises:
        PortsError: another program listens on a port, or the kernel refuses the rules.
    """
    with _alone(), contextlib.ExitStack() as opened:
        listeners = [_listener(port, opened) for port in (*own, *shared)]
        group = _group(unit)
        _apply(text(own, shared, group))
        if group and own and not _reaches_itself(listeners[0]):
            # In a container, kernels before 6.12 count group levels from the host's root.
            sys.stderr.write(f"this kernel can't match {unit}'s group: all of root may connect\n")
            _apply(text(own, shared))


def open_again() -> None:
    """Remove the table.

    Raises:
        PortsError: the kernel refuses to remove it.
    """
    with _alone():
        for name in (RULES, _LISTED, LOSSES):
            (STATE / name).unlink(missing_ok=True)
        if TABLE in _nft("list", "tables"):
            _nft("delete", "table", "inet", TABLE)


def keep() -> typing.NoReturn:
    """Restore the table when it is missing or changed, and report each time."""
    with contextlib.suppress(FileExistsError):
        STATE.mkdir(mode=0o700)
    changes = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    changes.bind((0, 1 << (_NFNLGRP_NFTABLES - 1)))
    changes.setblocking(False)  # noqa: FBT003
    _ready()
    fault = ""
    while True:
        try:
            _put_back()
            now = ""
        except PortsError as error:
            now = str(error)
        if now and now != fault:
            sys.stderr.write(f"{now}\n")
        fault = now
        time.sleep(_PAUSE)
        if select.select([changes], [], [], _EVERY)[0]:
            _drain(changes)


def text(
    own: collections.abc.Sequence[int], shared: collections.abc.Sequence[int], group: str = ""
) -> str:
    """Return the table in nft's syntax; it replaces the present one.

    Args:
        own: ports that only the unit's own processes may connect to.
        shared: ports that all of root's processes may connect to.
        group: the unit's group, from the root of cgroup v2; empty: all of root may use `own`.
    """
    level = len(pathlib.Path(group).parts)
    inside = f'socket cgroupv2 level {level} "{group}" ' if group else ""
    either = f"{{ {', '.join(map(str, (*own, *shared)))} }}"
    to, of = f"ip daddr {HOST} tcp dport", f"ip saddr {HOST} tcp sport"
    # If a process has closed its socket, the user of a packet is unknown: the packet passes unless
    # it begins a connection.
    return f"""\
table inet {TABLE} {{
}}
delete table inet {TABLE}
table inet {TABLE} {{
	chain outgoing {{
		type filter hook output priority filter; policy accept;
		{to} {{ {", ".join(map(str, own))} }} {inside}meta skuid 0 accept
		{to} {{ {", ".join(map(str, shared))} }} meta skuid 0 accept
		{of} {either} meta skuid 0 accept
		{to} {either} meta skuid >= 0 reject with tcp reset
		{to} {either} tcp flags & (syn | ack) == syn reject with tcp reset
		{of} {either} meta skuid >= 0 drop
	}}
	chain incoming {{
		type filter hook input priority filter; policy accept;
		iif != "lo" ip daddr {HOST} tcp dport {either} drop
	}}
}}
"""


def reached(asked: collections.abc.Sequence[int]) -> list[int]:
    """Return the ports that accept a connection of this process's user."""
    found: list[int] = []
    for port in asked:
        with socket.socket() as one:
            one.settimeout(_ANSWER)
            if one.connect_ex((HOST, port)) == 0:
                found.append(port)
    return found


def losses() -> list[float]:
    """Return when the table was restored since the service started, in seconds since boot."""
    try:
        return [float(line) for line in (STATE / LOSSES).read_text().split()]
    except FileNotFoundError:
        return []


def _apply(rules: str) -> None:
    """Load the rules into the kernel, and save them as the kernel lists them."""
    _nft("-f", "-", given=rules)
    (STATE / RULES).write_text(rules)
    (STATE / _LISTED).write_text(_listed())


def _put_back() -> None:
    with _alone():
        try:
            rules, wanted = (STATE / RULES).read_text(), (STATE / _LISTED).read_text()
        except FileNotFoundError:
            return  # no port is closed now
        if _listed() == wanted:
            return
        _apply(rules)
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        had = losses()[1 - _MOST_LOSSES :]
        (STATE / LOSSES).write_text("".join(f"{at:.1f}\n" for at in (*had, now)))
        sys.stderr.write(f"the table inet {TABLE} was missing or changed: it is restored\n")


def _listed() -> str:
    """Return the kernel's table; empty if there is none."""
    return _nft("list", "table", "inet", TABLE) if TABLE in _nft("list", "tables") else ""


def _listener(port: int, opened: contextlib.ExitStack) -> socket.socket:
    """Listen as the service will."""
    one = opened.enter_context(socket.socket())
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind((HOST, port))
        one.listen()
    except OSError as error:
        raise PortsError(
            f"port {port} of {HOST} is in use by another program ({error.strerror}): stop it, "
            f"ss -ltnp 'sport = :{port}' names it"
        ) from error
    return one


def _reaches_itself(listener: socket.socket) -> bool:
    with socket.socket() as one:
        one.settimeout(_ANSWER)
        try:
            one.connect(listener.getsockname())
        except (ConnectionRefusedError, TimeoutError):
            return False
    return True


def _group(unit: str) -> str:
    """Return the unit's group from the root of cgroup v2; empty if v2 is not mounted alone."""
    if not (_CGROUP / "cgroup.controllers").exists():
        return ""
    own = pathlib.Path("/proc/self/cgroup").read_text()
    found = re.search(f"^0::/(.*?{re.escape(unit)})(/|$)", own, re.MULTILINE)
    return found.group(1) if found else ""


def _nft(*arguments: str, given: str = "") -> str:
    try:
        done = subprocess.run(
            [_NFT, *arguments], input=given, capture_output=True, text=True, timeout=_TIMEOUT,
            check=False, env={"LANG": "C.UTF-8"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PortsError(
            f"ports can't be closed: {error}; check that nftables is installed"
        ) from error
    if done.returncode:
        raise PortsError(f"ports can't be closed: nft: {done.stderr.strip()[:300]}")
    return done.stdout


@contextlib.contextmanager
def _alone() -> collections.abc.Generator[None]:
    """Keep other calls out meanwhile.

    Raises:
        PortsError: another call takes too long.
    """
    with contextlib.suppress(FileExistsError):
        STATE.mkdir(mode=0o700)
    lock = os.open(STATE / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + 2 * _TIMEOUT
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    raise PortsError(f"{STATE}/lock is held for too long") from error
                time.sleep(0.02)
        yield
    finally:
        os.close(lock)


def _drain(changes: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            try:
                changes.recv(1 << 16)
            except OSError as error:
                if isinstance(error, BlockingIOError):
                    raise
                # ENOBUFS: more changes than the kernel keeps; the next check sees the table.


def _ready() -> None:
    """Tell systemd that the table is restored from here on (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.connect(address.replace("@", "\0", 1))
            one.send(b"READY=1")


def main(arguments: collections.abc.Sequence[str]) -> int:
    """Run one of the commands; the exit status is 1 if ports can't be closed or opened."""
    try:
        if arguments[0] == "shut":
            own, shared = ([int(port) for port in one.split(",")] for one in arguments[2:4])
            shut(arguments[1], own, shared)
        elif arguments[0] == "open":
            open_again()
        elif arguments[0] == "reach":
            found = reached([int(port) for port in arguments[1].split(",")])
            sys.stdout.write(f"{' '.join(map(str, found))}\n")
        else:
            keep()
    except PortsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
