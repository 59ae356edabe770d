# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Write a line into the log of a runner's job: to the stderr of the process of its running step.

The runner's program, or a worker that it has for its job, starts each step and reads what the
step writes. So a step is a child of that reader, and its stderr is used if the reader holds the
other end. Both are in the runner's unit and run as its user. So a job could deceive this module,
but only about its own log.
"""

import os
import select
import typing

from gpu_agent.reporting.joblog import process_stderr as terminals
from gpu_runtime import cgroups, proc
from machine import systemd as services

_SERVICE: typing.Final = ".service"


def say(slice_: str, reader: str, text: bytes) -> int | None:
    """Write to the stderr of a step of a runner's job, without waiting for a reader.

    Args:
        slice_: the name of the runner's systemd slice; in it are its unit, a service, and the
            containers of its job.
        reader: the name of the program that reads what jobs write, as the kernel has it; empty: it
            is the main process of the unit.
        text: a whole line with its end, at most PIPE_BUF bytes; or the rest of one.

    Returns:
        The number of bytes written; None: no step runs now.

    Raises:
        gpu_agent.reporting.joblog.process_stderr.NotTheirsError: each step has redirected its
            stderr.
        OSError, ValueError, machine.process.CommandError: the unit can't be inspected.
    """
    group = services.show(slice_, "ControlGroup")["ControlGroup"]
    top = cgroups.folder("", group) if group else ""
    refused: terminals.NotTheirsError | None = None
    # Beside the unit there may be containers of the job.
    for unit in [name for name in (proc.names(top) if top else []) if name.endswith(_SERVICE)]:
        folder = f"{top}/{unit}"
        parents = {pid: _parent(pid) for pid in _inside(folder)}
        readers = {services.main_pid(unit)}
        if reader:
            readers = {pid for pid in parents if proc.read(f"/proc/{pid}/comm").rstrip() == reader}
        for pid in [pid for pid, parent in parents.items() if parent in readers]:
            try:
                return _say(pid, parents[pid], folder, text)
            except ProcessLookupError:
                continue
            except terminals.NotTheirsError as error:
                refused = error
    if refused:
        raise refused
    return None


def _say(pid: int, reader: int, folder: str, text: bytes) -> int:
    process = os.pidfd_open(pid)
    try:
        # If it ended in between, its number may be reused; its pidfd shows that.
        def is_meant() -> bool:
            is_there = pid in _inside(folder) and _parent(pid) == reader
            return is_there and not select.select([process], [], [], 0)[0]

        # Gitea's runner gives a step one pipe for both, and all that a step writes is for people.
        return terminals.write(pid, reader, text, is_meant, mixed=True)
    finally:
        os.close(process)


def _inside(folder: str) -> list[int]:
    """Return the processes in a control group; none if it is gone."""
    return [int(pid) for pid in proc.read(f"{folder}/cgroup.procs").split()]


def _parent(pid: int) -> int:
    """Return the parent process; 0 if the process is gone."""
    # The name before it may have any characters.
    fields = proc.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0
