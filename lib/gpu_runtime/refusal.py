# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Saying no: the one way in which words of ours reach the log of the user's build.

containerd's shim reads the last line with level=error from the file that `--log` names and shows
its msg; stdout and stderr belong to the step (containerd 2.3.1 cmd/containerd-shim-runc-v2
process/utils.go:57-88).
"""

from __future__ import annotations

import errno
import os
import sys
import time

from gpu_runtime.fast_json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


# What helps where an error is this machine's state. By hand, since most errors are not.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free disk space on this worker"),
    **dict.fromkeys(
        (errno.ENFILE, errno.EMFILE),
        "this worker has too many files open: see /proc/sys/fs/file-nr and its limits",
    ),
    **dict.fromkeys((errno.EROFS, errno.EIO), "look at this worker's disk and at dmesg"),
}


_LONGEST = 1200  # letters of a refusal


class Refused(Exception):
    """A task that was promised a GPU can't have it; the text says why and what to do.

    So for a container of an engine's, and a job of gpu-run's: each is told in its own words. Of a
    long text the middle is left out, since its remedy stands last.
    """

    def __init__(self, text: str) -> None:
        super().__init__(_shown(text))


def _shown(text: str) -> str:
    """A text as one printable line of bounded length: images and people choose parts of it."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(line) <= _LONGEST:
        return line
    return f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"


def failed(noun: str) -> str:
    """How a refusal begins that is no fault of whoever asks, for what is called so."""
    return f"this worker failed to give this {noun} its GPU"


def duration(seconds: float) -> str:
    """A time in seconds for people: `35 s`, `12 min`, `3 h 5 min`, `2 d 3 h`."""
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 2:
        return f"{whole} s"
    if not hours:
        return f"{minutes} min"
    return f"{days} d {hours % 24} h" if days else f"{hours} h {minutes % 60} min"


def fault(error: OSError | ValueError) -> str:
    """What failed, where, and what helps, for the end of a refusal."""
    if not isinstance(error, OSError):
        return f"{error}; that is damaged: run it again, and tell its operator if it stays so"
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}; {_REMEDIES.get(error.errno or 0, 'run it again')}"


def write(log: str, text: str) -> None:
    """Append `text` as one JSON line to the runtime's log file `log`; never raises.

    A line that can't be written (no `--log`, disk full) is lost: the exit status still tells.
    """
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = dumps({"level": "error", "msg": f"gpu-ci-worker: {text}", "time": moment}) + "\n"
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.write(descriptor, line.encode())
        os.close(descriptor)
    except OSError:
        pass


def report_crashes(log: str) -> None:
    """From now on an exception that nobody handles goes to `log`, not to the step's stderr."""

    def report(
        kind: type[BaseException], fault: BaseException, trace: TracebackType | None
    ) -> None:
        place = ""
        while trace is not None:
            code = trace.tb_frame.f_code
            place = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno}"
            trace = trace.tb_next
        write(
            log, _shown(f"internal error, please report it: {kind.__name__}: {fault} at {place}")
        )

    sys.excepthook = report
