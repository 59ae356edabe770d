# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether a service answers, by real sockets, and what is no verdict on it."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest

from ci.concourse.worker import http_watchdog as unanswered

SRC = pathlib.Path(unanswered.__file__).parents[3]
# No descriptor is left for a socket.
STARVED = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
from ci.concourse.worker import http_watchdog as unanswered
free = os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
try:
    print("verdict", unanswered.answers(int(sys.argv[2])))
except OSError as error:
    print("no verdict", error.errno)
"""


@pytest.fixture
def port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        yield listening.getsockname()[1]


def test_nobody_who_listens_is_no_answer(port):
    assert unanswered.answers(port) is False


def test_a_watch_that_is_out_of_descriptors_has_seen_nothing(port):
    done = subprocess.run(
        [sys.executable, "-c", STARVED, SRC, str(port)],
        capture_output=True, text=True, timeout=60, check=True, env={"PATH": os.defpath},
    )  # fmt: skip
    assert done.stdout == "no verdict 24\n"
