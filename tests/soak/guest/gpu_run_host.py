# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine under systemd with two simulated GPUs, and gpu-run for alice."""

import grp
import json
import pathlib
import pwd
import subprocess

import looks

from gpu_agent import install as app
from gpu_agent.gpu_run import service

POLICY = pathlib.Path("/etc/gpu-ci/policy.json")
STORE = pathlib.Path("/run/gpu-ci/leases/leases.json")
LOGS = (pathlib.Path("/var/log/gpu-ci/oci.log"), STORE)
LOOK = "cat /dev/nvidia0; cat /dev/nvidia1"


class Host:
    """The machine."""

    def __init__(self):
        self.policy = json.loads(POLICY.read_text())
        for name, major, minor in (
            *(("nvidia0", 195, 0), ("nvidia1", 195, 1)),
            *(("nvidiactl", 195, 255), ("nvidia-uvm", 510, 0)),
        ):
            looks.make_node(f"/dev/{name}", major, minor)
        app.HOME, app.CURRENT = pathlib.Path("/srv"), "charm"
        service.install("gpu-users")

    @staticmethod
    def do(*words, user="root"):
        """Run a command to its end."""
        entry = pwd.getpwnam(user)
        groups = [one.gr_gid for one in grp.getgrall() if user in one.gr_mem]
        return subprocess.run(
            words, user=entry.pw_uid, group=entry.pw_gid, extra_groups=groups, cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=240, check=False,
        )  # fmt: skip

    def ok(self, *words):
        """The same, which must come to a good end; what it said."""
        done = self.do(*words)
        assert done.returncode == 0, f"{words}: {done.returncode}: {done.stdout}"
        return done.stdout

    def gpu_run(self, *words):
        return self.do("gpu-run", *words, user="alice")

    def both_are_taken(self):
        """Nobody gets both GPUs now."""
        done = self.gpu_run("--gpus", "2", "--timeout", "1s", "--", "true")
        assert done.returncode == 124, done

    def both_are_free(self):
        done = self.gpu_run("--gpus", "2", "--", "true")
        assert done.returncode == 0, done

    def evidence(self):
        """What helps to see why a case failed."""
        files = [f"{path}: {path.read_text()[-2000:]}" for path in LOGS if path.exists()]
        return "\n".join([*files, self.do("journalctl", "-b", "-n", "40").stdout])


def answers(said):
    return [looks.opened(line) for line in said.splitlines()]
