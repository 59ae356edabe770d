# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The rules that shut ports to other users, in a network and a /run of the test's own."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

from machine import ports

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root"),
    pytest.mark.skipif(not shutil.which("nft", path="/usr/sbin"), reason="not installed: nft"),
]

PROGRAM = f"/usr/bin/python3 -I -S {ports.__file__}"
SHUT = f"{PROGRAM} shut x.service 7777,7788 8888"
AS_NOBODY = "/usr/bin/setpriv --reuid=65534 --regid=65534 --clear-groups --"
# What a user can read wherever this tree lies.
BEGIN = f"""
set -eu
mount -t tmpfs tmpfs /run; mkdir /run/t; chmod 755 /run/t; cp {ports.__file__} /run/t/ports.py
ip link set lo up
serve() {{ "$@" /usr/bin/python3 -c '
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as one:
    while True:
        one.accept()
' "$port" & server=$!; sleep 1; }}
ask() {{ "$@" /usr/bin/python3 -I -S /run/t/ports.py reach 7777,7788,8888; }}
nobody="{AS_NOBODY}"
"""


# All that a script has started ends with it.
APART = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def run(script):
    argv = ["/usr/bin/unshare", *APART, "/bin/bash", "-c", BEGIN + script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_only_root_connects_and_a_socket_of_before_is_cut():
    said = run(f"""
{SHUT}
port=7777; serve env
ask env; ask $nobody
{PROGRAM} open
ask $nobody
nft list tables
""")
    assert said == ["7777", "", "7777"]


def test_only_root_answers_so_that_nobody_takes_the_services_place():
    said = run(f"""
{SHUT}
port=7788; serve $nobody
ask env; ask $nobody
{PROGRAM} open
ask env
""")
    assert said == ["", "", "7788"]


def test_other_ports_and_other_addresses_are_not_touched():
    said = run(f"""
{SHUT}
$nobody /usr/bin/python3 -c '
import socket
for address in (("127.0.0.2", 7777), ("127.0.0.1", 7779)):
    with socket.create_server(address) as one, socket.create_connection(address):
        print(one.accept()[1][0])
'
""")
    assert said == ["127.0.0.1", "127.0.0.1"]


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_port_that_is_taken_is_named_and_nothing_is_shut(address):
    said = run(f"""
/usr/bin/python3 -c '
import socket, time
family = socket.AF_INET6 if ":" in "{address}" else socket.AF_INET
both = family == socket.AF_INET6
one = socket.create_server(("{address}", 8888), family=family, dualstack_ipv6=both)
time.sleep(60)
' & sleep 1
{SHUT} 2>&1 || echo "failed: $?"
nft list tables
kill $!
""")
    why = "port 8888 of 127.0.0.1 is in use by another program (Address already in use): stop it, "
    assert said == [f"{why}ss -ltnp 'sport = :8888' names it", "failed: 1"]


@pytest.mark.parametrize("flush", ["flush ruleset", "flush table inet gpu_ci",
                                   "add rule inet gpu_ci outgoing accept"])  # fmt: skip
def test_what_is_lost_is_back_within_seconds_and_counted(flush):
    said = run(f"""
{PROGRAM} keep & keeper=$!
sleep 1
{SHUT}
port=7777; serve env
nft list table inet gpu_ci >/run/t/before
nft {flush}
for _ in $(seq 50); do
    if nft list table inet gpu_ci 2>&- | cmp -s - /run/t/before; then break; fi; sleep 0.1
done
ask $nobody
wc -l </run/gpu-ci-ports/losses
{PROGRAM} open
sleep 3
nft list tables
kill $keeper
""")
    assert said == ["", "1"]


INSIDE = f"""
import ctypes, os, pathlib, sys, time
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000):  # CLONE_NEWUSER
    raise OSError(ctypes.get_errno(), "unshare")
print("apart", flush=True)
while not pathlib.Path("/proc/self/gid_map").read_text():
    time.sleep(0.05)
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
os.execv("/usr/bin/unshare", ["unshare", *{APART!r}, "/bin/bash", "-c", sys.argv[1]])
"""


def test_in_a_user_namespace_root_is_that_of_the_namespace():
    """As in an unprivileged LXD container."""
    script = f"""
{SHUT}
port=7777; serve env
ask env; ask /usr/bin/setpriv --reuid=1234 --regid=1234 --clear-groups --
"""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        copy = pathlib.Path(folder, "ports.py")
        copy.parent.chmod(0o755)
        copy.write_text(pathlib.Path(ports.__file__).read_text())
        script = (BEGIN + script).replace(ports.__file__, str(copy))
        argv = ["/usr/bin/python3", "-c", INSIDE, script]
        pipe = subprocess.PIPE
        with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True) as child:
            assert child.stdout.readline() == "apart\n"
            for name in ("uid_map", "gid_map"):
                pathlib.Path(f"/proc/{child.pid}/{name}").write_text("0 100000 65536")
            out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert out.splitlines() == ["7777", ""]


def test_a_lock_that_is_held_ends_in_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(ports, "STATE", tmp_path / "state")
    monkeypatch.setattr(ports, "_TIMEOUT", 0.2)
    with ports._alone():
        began = time.monotonic()
        with pytest.raises(ports.PortsError, match="held for too long"), ports._alone():
            pass
    assert time.monotonic() - began < 5
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_the_program_needs_the_standard_library_alone():
    argv = [sys.executable, "-I", "-S", ports.__file__, "reach", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("\n", "")
