# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Watch builds with fly while other things happen."""

import re
import subprocess
import threading
import time

from tests.fly import Fly
from tests.lab.errors import LabError

# What fly prints around the lines that Concourse itself says.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\r")


class Build:
    """A build that `fly` watches.

    Args:
        fly: logged in.
        arguments: those of fly that start a build and watch it, such as `fly.task(...)`.
    """

    def __init__(self, fly: Fly, *arguments: str):
        self._process = subprocess.Popen(
            fly.command(*arguments), env=fly.environment, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        with self._process.stdout as output:
            for line in output:
                self._lines.append(_COLOURS.sub("", line).rstrip())

    @property
    def output(self) -> str:
        """Return what fly has printed so far."""
        return "\n".join(self._lines)

    @property
    def number(self) -> str:
        """Return the build's number, as fly's `-b` takes it."""
        return self.line(r"executing build (\d+)")[1]

    def line(self, pattern: str, seconds: float = 30) -> re.Match[str]:
        """Wait for the first line whose beginning matches, and return the match.

        Raises:
            LabError: the build ended without it, or it did not come in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            over = not self._reader.is_alive()
            for line in [*self._lines]:
                if found := re.match(pattern, line):
                    return found
            if over or time.monotonic() > deadline:
                end = "ended" if over else f"has gone on for {seconds:.0f} s"
                raise LabError(f"the build {end} without a line {pattern!r}:\n{self.output}")
            time.sleep(0.02)

    def wait(self, seconds: float = 60) -> int:
        """Wait for the build's end; return fly's exit status.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        status = self._process.wait(seconds)
        self._reader.join(seconds)
        return status
