# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The first process of a scope: it holds the caller's process id, and tests the device rules.

As root in the scope, it tries to open device nodes. That shows whether the scope's rules are in
effect, and not only requested from systemd. A machine may not support them, such as a container.
"""

import os
import sys

from machine import child_process as children
from machine import systemd_scopes as scopes


def main(words: list[str]) -> None:
    """Trace a process by its id, then answer each path with an errno, until stdin ends."""
    parent, pid = map(int, words)
    children.end_with(parent, "gpu-run-pin")
    try:
        scopes.trace(pid)
    except OSError as error:
        children.tell_parent(f"lost {error.errno}".encode())
        return
    children.tell_parent(b"held")
    for line in sys.stdin.buffer:
        children.tell_parent(str(scopes.open_fault(os.fsdecode(line.rstrip(b"\n")))).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
