# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Refusals: the only messages of the GPU runtime that reach the log of the user's build.

containerd's shim reads the last line with level=error from the file that `--log` names and shows
its msg, which therefore begins with the code. stdout and stderr belong to the step (containerd
2.3.1 cmd/containerd-shim-runc-v2 process/utils.go:57-88).
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


# The remedies of errors that come from the state of the machine. Most errors have none.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free disk space on this worker"),
    **dict.fromkeys(
        (errno.ENFILE, errno.EMFILE),
        "This worker has too many open files: check /proc/sys/fs/file-nr and the limits",
    ),
    **dict.fromkeys((errno.EROFS, errno.EIO), "Check this worker's disk and dmesg"),
}
# By the nouns of lease_table.NOUNS.
_AGAIN = {"task": "rerun the task", "container": "start the container again"}
_LONGEST = 1200  # letters of a refusal


class Refused(Exception):
    """A request for GPUs that is refused; the text has the reason and, last, the remedy.

    The request is a task's, an engine container's or a gpu-run command's. A long text loses its
    middle.

    Attributes:
        code: what the refusal means, for programs; see refusal_codes.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(_shown(text))
        self.code = code


def _shown(text: str) -> str:
    """Make one printable line of bounded length: images and users choose parts of the text."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(line) <= _LONGEST:
        return line
    return f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"


def failed(noun: str) -> str:
    """Return the beginning of a refusal that is the worker's fault, for a request of this kind."""
    return f"this worker could not give this {noun} its GPU"


def again(noun: str) -> str:
    """Return how to repeat a request of this kind, such as `rerun the task`."""
    return _AGAIN.get(noun, "run the command again")


def duration(seconds: float) -> str:
    """Format seconds for people: `35 s`, `12 min`, `3 h 5 min`, `2 d 3 h`."""
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 2:
        return f"{whole} s"
    if not hours:
        return f"{minutes} min"
    return f"{days} d {hours % 24} h" if days else f"{hours} h {minutes % 60} min"


def fault(error: OSError | ValueError, noun: str = "task") -> str:
    """Return what failed, where, and the remedy, for the end of a refusal.

    Args:
        error: the error.
        noun: the kind of the request, as in lease_table.NOUNS.
    """
    repeat = again(noun).capitalize()
    if not isinstance(error, OSError):
        return f"{error} (file damaged). {repeat}; if it fails again, ask the worker's operator"
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}. {_REMEDIES.get(error.errno or 0, repeat)}"


def write(log: str, code: str, text: str) -> None:
    """Append a refusal as one JSON line to the runtime's log file `log`; never raises.

    A line that cannot be written (no `--log`, disk full) is lost. The exit status still shows the
    failure.
    """
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    said = f"gpu-ci-worker: {code}: {text}"
    line = dumps({"level": "error", "msg": said, "code": code, "time": moment}) + "\n"
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.write(descriptor, line.encode())
        os.close(descriptor)
    except OSError:
        pass


def report_crashes(log: str) -> None:
    """Write unhandled exceptions to `log` from now on, and not to the step's stderr."""

    def report(
        kind: type[BaseException], fault: BaseException, trace: TracebackType | None
    ) -> None:
        place = ""
        while trace is not None:
            code = trace.tb_frame.f_code
            place = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno}"
            trace = trace.tb_next
        text = f"{kind.__name__}: {fault} at {place}. Report this bug of gpu-ci-worker"
        write(log, "internal-error", _shown(text))

    sys.excepthook = report
