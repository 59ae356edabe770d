# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Another containerd's socket is found where it really lies, on a /run of the test's own."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# The second socket has a name that is made up to look like a row of the kernel's table.
CODE = r"""
import json, os, pathlib, re, socket
from ci.concourse.worker import rivals
seen = [rivals.look().containerd]
os.mkdir("/run/containerd")
with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as odd:
    odd.bind(b"\0\xff\n1: 2 3 x 5 6 7 /run/containerd/containerd.sock")
    odd.listen()
    listener.bind("/run/containerd/containerd.sock")
    seen.append(rivals.look().containerd)
    listener.listen()
    seen.append(rivals.look().containerd)
seen.append(rivals.look().containerd)
service = re.search(r"/([^/\n]+\.service)$", pathlib.Path("/proc/self/cgroup").read_text(), re.M)
name = service.group(1) if service else pathlib.Path("/proc/self/exe").readlink().name
print(json.dumps([name, *seen]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_a_listener_on_containerds_socket_is_named_while_it_listens():
    script = 'mount -t tmpfs none /run && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", script, sys.executable, CODE],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}/src:{ROOT}/lib"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    name, *seen = json.loads(done.stdout)
    assert seen == ["", "", name, ""]
