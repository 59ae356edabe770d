# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A plugin of pytest's for `scripts/again`: notes the files whose tests failed.

It also names the tests at once, since a run that is ended from outside shows no summary.
"""

import os
import pathlib
import typing

# Names the file that takes them, one a line.
_NOTES: typing.Final = "GPUCI_TESTS_FAILED"


def pytest_configure(config) -> None:
    """Side by side, only the process that hears of all tests notes them."""
    if not hasattr(config, "workerinput") and os.environ.get(_NOTES):
        config.pluginmanager.register(_Failed(pathlib.Path(os.environ[_NOTES]), config))


class _Failed:
    def __init__(self, notes: pathlib.Path, config):
        self._notes, self._config = notes, config

    def pytest_runtest_logreport(self, report) -> None:
        """A test, or what comes before or after it; also one that killed its process."""
        if report.failed:
            self._note(report.nodeid.partition("::")[0])
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            terminal.ensure_newline()
            terminal.write_line(f"failed so far: {report.nodeid} ({report.when})")

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self._note("not collected")

    def _note(self, line: str) -> None:
        with self._notes.open("a") as notes:
            notes.write(line + "\n")
