# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Ends a service's process that has not answered for minutes, so that systemd restarts it.

A program of its own, which needs nothing of the charm: `http_watchdog.py UNIT PORT PATIENCE`. It
asks PORT on the loopback by HTTP. Once that has not answered 200 for PATIENCE seconds, it ends the
unit's main process alone: with SIGABRT, on which a program of Go writes what it was about, and
where that was in vain, with SIGKILL. What else the unit has running is left alone.
"""

import http.client
import signal
import subprocess
import sys
import time
import typing

# A worker's answer waits 5 s for each of its parts (95872ce1a worker/healthchecker.go).
_ANSWER: typing.Final = 15.0  # seconds
_SYSTEMCTL: typing.Final = "/usr/bin/systemctl"


def answers(port: int) -> bool:
    """Whether the service answers 200.

    Raises:
        OSError: this program itself is out of something, which tells nothing of the service.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == http.client.OK
    except (ConnectionError, TimeoutError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def process_of(unit: str) -> str:
    """Which process is the unit's main one, as systemd started it; empty if none runs.

    Raises:
        OSError, subprocess.SubprocessError: systemd can't be asked.
    """
    argv = [_SYSTEMCTL, "show", "--property=MainPID,ExecMainStartTimestampMonotonic", unit]
    said = subprocess.run(argv, check=True, timeout=60, capture_output=True, text=True).stdout
    return "" if "MainPID=0\n" in said else said


def end(unit: str, sig: signal.Signals, seconds: float) -> None:
    """Send a signal to the unit's main process alone.

    Raises:
        OSError, subprocess.SubprocessError: systemd can't be asked.
    """
    said = f"{unit} has not answered for {seconds:.0f} s: {sig.name} to its process alone"
    sys.stderr.write(f"{said}, which systemd starts again\n")
    argv = [_SYSTEMCTL, "kill", "--kill-who=main", f"--signal={sig.name}", unit]
    subprocess.run(argv, check=True, timeout=60)


def watch(unit: str, port: int, patience: float) -> typing.NoReturn:
    """Check the service forever, twenty times within `patience`.

    Raises:
        OSError, subprocess.SubprocessError: systemd or the service cannot be asked. A restart
            of this program begins to count at 0.
    """
    asked, since = "", time.monotonic()
    while True:
        time.sleep(patience / 20)
        process = process_of(unit)
        if not process or answers(port):
            asked, since = "", time.monotonic()
            continue
        silent = time.monotonic() - since
        if asked and process != asked:  # a restarted process has its full time again
            asked, since = "", time.monotonic()
        elif silent >= patience * (1.2 if asked else 1):
            end(unit, signal.SIGKILL if asked else signal.SIGABRT, silent)
            asked = process


if __name__ == "__main__":
    watch(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
