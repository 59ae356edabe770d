# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Shuts TCP ports of 127.0.0.1 to all users but root, for as long as a service runs.

A program of its own, which needs nothing of the charm. Its rules are a table of nftables, which no
rule of another table can undo. A flush of all tables removes it (`nft flush ruleset`, the start of
nftables.service): `keep` puts it back.

    ports.py shut UNIT OWN SHARED    before UNIT's process starts; fails if a port is taken
    ports.py open                    after it has ended
    ports.py keep                    puts the table back while it is missing; a service of its own
    ports.py reach PORTS             prints those of the ports that take this user's connection

OWN and SHARED are ports with commas between them. Only root may connect to either, and only
root's programs may answer there. If cgroup v2 is mounted, only UNIT's own processes may connect to
OWN: root in a container with the host's network may not.
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
"""Only root enters it: the lock and what is shut."""

RULES: typing.Final = "rules"
LOSSES: typing.Final = "losses"
"""A line for each time that the table was put back, in seconds since boot."""

_LISTED: typing.Final = "listed"
_NFT: typing.Final = "/usr/sbin/nft"
_TIMEOUT: typing.Final = 10.0  # seconds for one call of nft; it takes a hundredth
_EVERY: typing.Final = 4.0
"""Seconds between two looks where the kernel announces no change; a look takes 7 ms."""
_ANSWER: typing.Final = 2.0  # seconds for a connection on this machine
_PAUSE: typing.Final = 0.1  # seconds after a look, where changes come one after the other
_MOST_LOSSES: typing.Final = 1000
# Linux include/uapi/linux/netfilter/nfnetlink.h and netlink.h.
_NETLINK_NETFILTER, _NFNLGRP_NFTABLES = 12, 7
_CGROUP: typing.Final = pathlib.Path("/sys/fs/cgroup")


class PortsError(Exception):
    """The ports can't be shut; the text says why and what to do."""


def shut(
    unit: str, own: collections.abc.Sequence[int], shared: collections.abc.Sequence[int]
) -> None:
    """Shut the ports before the process of a unit starts. The caller is in the unit's own group.

    Raises:
        PortsError: another program listens on one of them, or the kernel takes no rules.
    """
    with _alone(), contextlib.ExitStack() as opened:
        listeners = [_listener(port, opened) for port in (*own, *shared)]
        group = _group(unit)
        _apply(text(own, shared, group))
        if group and own and not _reaches_itself(listeners[0]):
            # Kernels before 6.12 count the levels of a group from the host's root, in a container.
            sys.stderr.write(f"this kernel can't tell {unit} by its group: all of root gets in\n")
            _apply(text(own, shared))


def open_again() -> None:
    """Remove the table.

    Raises:
        PortsError: the kernel does not let it go.
    """
    with _alone():
        for name in (RULES, _LISTED, LOSSES):
            (STATE / name).unlink(missing_ok=True)
        if TABLE in _nft("list", "tables"):
            _nft("delete", "table", "inet", TABLE)


def keep() -> typing.NoReturn:
    """Put the table back while it is missing or changed, and report each time."""
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
    """Return the table, as nft reads it; it takes the place of the one that is there.

    Args:
        own: ports to which only a unit's own processes connect.
        shared: ports to which all of root's processes connect.
        group: of the unit, from the root of cgroup v2; empty: all of root's may connect to `own`.
    """
    level = len(pathlib.Path(group).parts)
    inside = f'socket cgroupv2 level {level} "{group}" ' if group else ""
    either = f"{{ {', '.join(map(str, (*own, *shared)))} }}"
    to, of = f"ip daddr {HOST} tcp dport", f"ip saddr {HOST} tcp sport"
    # Of a packet whose process has closed its socket no user is known: it passes, unless it begins
    # a connection.
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
    """Return those of the ports that take a connection of this process's user."""
    found: list[int] = []
    for port in asked:
        with socket.socket() as one:
            one.settimeout(_ANSWER)
            if one.connect_ex((HOST, port)) == 0:
                found.append(port)
    return found


def losses() -> list[float]:
    """Return when the table was put back, in seconds since boot, since the service started."""
    try:
        return [float(line) for line in (STATE / LOSSES).read_text().split()]
    except FileNotFoundError:
        return []


def _apply(rules: str) -> None:
    """Have the kernel take the rules, and note what it makes of them."""
    _nft("-f", "-", given=rules)
    (STATE / RULES).write_text(rules)
    (STATE / _LISTED).write_text(_listed())


def _put_back() -> None:
    with _alone():
        try:
            rules, wanted = (STATE / RULES).read_text(), (STATE / _LISTED).read_text()
        except FileNotFoundError:
            return  # nothing is shut now
        if _listed() == wanted:
            return
        _apply(rules)
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        had = losses()[1 - _MOST_LOSSES :]
        (STATE / LOSSES).write_text("".join(f"{at:.1f}\n" for at in (*had, now)))
        sys.stderr.write(f"the table inet {TABLE} was missing or changed: it is back\n")


def _listed() -> str:
    """Return the table as the kernel has it; empty if it has none."""
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
            f"port {port} of {HOST} is taken by another program ({error.strerror}): end it, "
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
    """Return the unit's group from the root of cgroup v2; empty if that is not mounted alone."""
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
            f"ports can't be shut: {error}; see that nftables is installed"
        ) from error
    if done.returncode:
        raise PortsError(f"ports can't be shut: nft: {done.stderr.strip()[:300]}")
    return done.stdout


@contextlib.contextmanager
def _alone() -> collections.abc.Generator[None]:
    """Keep others out meanwhile.

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
                # ENOBUFS: more changes than the kernel keeps; the look at the table follows.


def _ready() -> None:
    """Tell systemd that from here on the table is put back (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.connect(address.replace("@", "\0", 1))
            one.send(b"READY=1")


def main(arguments: collections.abc.Sequence[str]) -> int:
    """Run one of the three commands; the exit status is 1 if ports can't be shut or opened."""
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
