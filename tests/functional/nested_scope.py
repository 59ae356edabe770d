# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A program: another user's process is moved into a scope's control groups; see the test.

It is root of a user namespace with control groups of its own.
"""

import json
import os
import pathlib
import subprocess

from gpu_runtime import cgroups as groups
from machine import systemd_scopes as scopes

UNIT = "gpu-run-0123456789ab.scope"
USER = 1001


def main():
    tops = [path for path in pathlib.Path("/sys/fs/cgroup").iterdir() if path.name != "cpuset"]
    first = subprocess.Popen(["/bin/sleep", "60"])
    caller = subprocess.Popen(["/bin/sleep", "60"], user=USER)
    for top in tops:
        (top / UNIT).mkdir()
        (top / UNIT / "cgroup.procs").write_text(str(first.pid))
    scopes.move(caller.pid, first.pid, UNIT)
    found = groups.of("", f"/proc/{caller.pid}")[0]
    alive = caller.poll() is None
    for child in (first, caller):
        child.kill()
        child.wait()
    print(json.dumps({"groups": found, "alive": alive, "user": os.geteuid()}), flush=True)


if __name__ == "__main__":
    main()
