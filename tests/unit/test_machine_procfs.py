# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What is seen of a process from outside, and of its connections: all of it real."""

import math
import os
import re
import socket
import subprocess
import time

import pytest

from machine import procfs as outside
from machine import tcp_connections as sockets

FILES = re.compile(r"/.*/(one|two)-stdout")


def test_what_a_process_has_open_and_whose_child_it_is(tmp_path):
    paths = [tmp_path / name for name in ("one-stdout", "other-stdout")]
    for path in paths:
        path.touch()
    with paths[0].open() as one, paths[1].open() as other:
        child = subprocess.Popen(["/bin/sleep", "60"], pass_fds=[one.fileno(), other.fileno()])
    try:
        assert [*outside.open_files(child.pid, FILES).values()] == [str(paths[0])]
        assert outside.parent(child.pid) == os.getpid()
    finally:
        child.kill()
        child.wait()
    assert outside.open_files(child.pid, FILES) == {}
    assert outside.parent(child.pid) == 0


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_silence_ends_with_data_of_either_side(family, address):
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError as error:
        pytest.skip(f"{address}: {error}")
    with server, socket.create_connection(server.getsockname()[:2]) as client:
        answering, _ = server.accept()
        with answering:
            ends = [{os.fstat(one.fileno()).st_ino} for one in (client, answering)]
            time.sleep(0.3)
            assert all(sockets.silence(end) >= 0.25 for end in ends)
            client.send(b"x")
            answering.recv(1)
            assert all(sockets.silence(end) < 0.25 for end in ends)
            # Who has asked for something is in expectation of the answer.
            assert [sockets.expecting(end) for end in ends] == [1, 0]
            answering.send(b"x")
            client.recv(1)
            assert sockets.expecting(set.union(*ends)) == 0


def test_without_a_connection_there_is_nothing_but_silence():
    assert sockets.silence(()) == math.inf
    assert sockets.expecting(()) == 0
