# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The first process of a scope: it holds the number of the one that is to come, and looks around.

As root, from within, it tries to open device nodes: so it is known whether the scope's rules hold,
and not only that systemd was asked for them. A machine may have no means to, such as a container.
"""

import os
import sys

from machine import child_process as children
from machine import systemd_scopes as scopes


def main(words: list[str]) -> None:
    """Trace the process of that number, then answer each path with an errno, until stdin ends."""
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
