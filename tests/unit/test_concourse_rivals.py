# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which programs obstruct Concourse's worker: from trees like /proc, and from the real /proc."""

import errno
import os
import pathlib
import re
import socket

import pytest

from ci.concourse.plan.model import Rivals
from ci.concourse.worker import rivals
from gpu_agent.model import errors

TABLE = "Num       RefCount Protocol Flags    Type St Inode Path\n"
SOCKET = "/run/containerd/containerd.sock"


@pytest.fixture
def root(tmp_path):
    """A machine with nothing on it."""
    listeners(tmp_path)
    return tmp_path


def listeners(root, *rows):
    """Rows of /proc/net/unix: inode, path, and flags (00010000 listens)."""
    table = root / "proc/net/unix"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(
        TABLE
        + "0000000000000000: 00000003 00000000 00000000 0001 03 4242\n"
        + "".join(
            f"0000000000000000: 00000002 00000000 {flags} 0001 01 {inode} {path}\n"
            for inode, path, flags in rows
        )
    )


def running(root, pid, program, cgroup, *inodes):
    """A process that has these sockets open."""
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fd/0").symlink_to("/dev/null")
    for number, inode in enumerate(inodes):
        (folder / f"fd/{number + 3}").symlink_to(f"socket:[{inode}]")
    (folder / "exe").symlink_to(program)
    (folder / "cgroup").write_text(cgroup)


def test_a_machine_with_nothing_in_the_way(root):
    assert rivals.look(root) == Rivals()


def test_a_runc_that_containerd_finds_before_ours(root):
    (root / "opt/containerd/bin").mkdir(parents=True)
    (root / "opt/containerd/bin/runc").touch()
    assert rivals.look(root).runc == "/opt/containerd/bin/runc"


OURS = "/opt/concourse/8.3.0-320b0cde/bin/containerd"
V2 = "0::/system.slice/{}\n"
V1 = "12:pids:/system.slice/{0}\n1:name=systemd:/system.slice/{0}\n0::/system.slice/{0}\n"
LISTENS, CONNECTED = "00010000", "00000000"


@pytest.mark.parametrize(
    ("program", "cgroup", "rival"),
    [
        ("/usr/bin/containerd", V2.format("containerd.service"), "containerd.service"),
        ("/usr/bin/containerd", V1.format("containerd.service"), "containerd.service"),
        ("/usr/local/bin/containerd", "0::/user.slice/x.scope\n", "containerd"),
        (
            "/usr/local/concourse/bin/containerd",
            V2.format("concourse.service"),
            "concourse.service",
        ),
        (OURS, V2.format("concourse-worker.service"), ""),
        # Replaced by another release while it runs.
        (f"{OURS} (deleted)", V2.format("concourse-worker.service"), ""),
        (OURS, "0::/somewhere/else\n", ""),
        ("/usr/bin/containerd", V2.format("concourse-worker.service"), ""),
        ("/opt/concourse-other/bin/containerd", "0::/\n", "containerd"),
    ],
)
def test_who_listens_on_containerds_socket(root, program, cgroup, rival):
    listeners(root, (77, SOCKET, LISTENS))
    running(root, 100, "/usr/bin/bash", V2.format("ssh.service"))
    running(root, 101, program, cgroup, 76, 77)
    assert rivals.look(root).containerd == rival


def test_a_rival_that_took_the_socket_from_a_running_worker_is_seen(root):
    listeners(root, (77, SOCKET, LISTENS), (88, SOCKET, LISTENS))
    for pid in (101, 102, 103, 303, 304, 305):  # whatever the order that they are looked at in
        running(root, pid, OURS, V2.format("concourse-worker.service"), 77)
    running(root, 202, "/usr/bin/containerd", V2.format("containerd.service"), 88)
    assert rivals.look(root).containerd == "containerd.service"


@pytest.mark.parametrize(
    ("path", "flags"),
    [
        (SOCKET, CONNECTED),
        (f"{SOCKET}.ttrpc", LISTENS),
        ("/run/docker/containerd/containerd.sock", LISTENS),
        (f"@{SOCKET}", LISTENS),
    ],
)
def test_other_sockets_are_nobodys_rival(root, path, flags):
    listeners(root, (77, path, flags))
    running(root, 101, "/usr/bin/containerd", V2.format("containerd.service"), 77)
    assert rivals.look(root).containerd == ""


def test_the_socket_by_its_other_name(root):
    listeners(root, (77, f"/var{SOCKET}", LISTENS))
    running(root, 101, "/usr/bin/containerd", V2.format("containerd.service"), 77)
    assert rivals.look(root).containerd == "containerd.service"


def test_what_other_users_call_their_sockets_stops_nothing(root):
    listeners(root, (66, f"/tmp/x\n1: 2 3 ZZZZ 1 01 66 {SOCKET}", LISTENS), (77, SOCKET, LISTENS))
    table = root / "proc/net/unix"
    table.write_bytes(table.read_bytes().replace(b"/tmp/x", b"/tmp/\xff\x85\x1c"))
    running(root, 101, "/usr/bin/containerd", "0::/\n", 77)
    (root / "proc/101/cgroup").write_bytes(b"0::/\xff/containerd.service\n")
    assert rivals.look(root).containerd == "containerd.service"


def test_processes_that_end_meanwhile_are_passed_over(root):
    listeners(root, (77, SOCKET, LISTENS))
    (root / "proc/100").mkdir()
    running(root, 101, "/usr/bin/containerd", "", 77)
    (root / "proc/101/cgroup").unlink()
    assert rivals.look(root).containerd == ""


@pytest.mark.parametrize("file", ["fd", "exe", "cgroup"])
@pytest.mark.parametrize("number", [errno.ENFILE, errno.EIO, errno.EACCES])
def test_a_rival_that_can_not_be_looked_at_is_not_none(root, monkeypatch, file, number):
    listeners(root, (77, SOCKET, LISTENS))
    running(root, 101, "/usr/bin/containerd", V2.format("containerd.service"), 77)
    fail_at(monkeypatch, root / "proc/101" / file, number)
    with pytest.raises(errors.UnknownError, match=re.escape(os.strerror(number))):
        rivals.look(root)


def test_who_can_not_be_looked_at_does_not_matter_where_all_owners_are_known(root, monkeypatch):
    listeners(root, (77, SOCKET, LISTENS))
    running(root, 101, OURS, V2.format("concourse-worker.service"), 77)
    running(root, 102, "/usr/sbin/sshd", "0::/\n")
    fail_at(monkeypatch, root / "proc/102/fd", errno.EACCES)
    assert rivals.look(root).containerd == ""


def test_a_table_of_sockets_that_can_not_be_read_is_not_an_empty_one(root, monkeypatch):
    fail_at(monkeypatch, root / "proc/net/unix", errno.ENFILE)
    with pytest.raises(errors.UnknownError, match="Too many open files in system"):
        rivals.look(root)


def fail_at(monkeypatch, bad, number):
    """Have the kernel refuse one path."""

    def failing(real):
        def call(path, *rest, **named):
            if path == bad:
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *rest, **named)

        return call

    for name in ("iterdir", "readlink", "read_text"):
        monkeypatch.setattr(pathlib.Path, name, failing(getattr(pathlib.Path, name)))


def test_a_real_listener_is_found_in_the_real_proc(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        assert rivals.look(socket=path).containerd == ""
        listener.listen()
        groups = pathlib.Path("/proc/self/cgroup").read_text()
        service = re.search(r"/([^/\n]+\.service)$", groups, re.M)
        program = os.path.basename(os.readlink("/proc/self/exe"))
        assert rivals.look(socket=path).containerd == (service.group(1) if service else program)
    assert rivals.look().containerd == ""
