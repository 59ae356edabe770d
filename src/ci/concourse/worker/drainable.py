# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Concourse's worker, as a drain or a pause sees it."""

import collections.abc
import logging
import pathlib
import sys
import typing

from ci.concourse.api import build_info as handles
from ci.concourse.api import build_info_program as names
from ci.concourse.restart import running_steps as steps
from ci.concourse.worker import worker
from gpu_agent.reporting.joblog import build_names
from machine import process

_CODE: typing.Final = pathlib.Path(__file__).resolve().parents[4]
_PATH: typing.Final = f"{_CODE}/lib:{_CODE}/src"
_NAMES: typing.Final = (sys.executable, "-B", "-S", "-m", "ci.concourse.api.build_info_program")

_log = logging.getLogger(__name__)


class Worker:
    """The worker on this machine; its jobs are the containers in which a step runs."""

    job = "build"

    def name(self) -> str:
        """Return its name in web; empty: there is none."""
        return worker.name()

    def running(self) -> tuple[str, ...]:
        """Return the containers in which a step runs.

        Raises:
            OSError: they cannot be read.
        """
        return steps.running()

    def builds(self, ids: collections.abc.Sequence[str]) -> collections.abc.Mapping[str, str]:
        """Return the builds of these containers, if web is on this machine and answers."""
        if not handles.SETTINGS.exists():
            return {}
        try:
            done = process.run(
                [*_NAMES, *ids], timeout=names.SECONDS + 5, env={"PYTHONPATH": _PATH}
            )
            known = build_names.read(done.stdout)
        except (process.CommandError, build_names.AnswerError) as error:
            _log.info("the names of builds are not known: %s", error)
            return {}
        return {
            step: "/".join(filter(None, (one.team, one.pipeline, one.job))) + f" #{one.build}"
            for step, one in known.items()
        }

    def pid(self) -> int:
        """Return the worker's process; 0: it does not run."""
        return worker.main_pid()

    def is_connected(self) -> bool:
        """Whether web can give it work.

        Raises:
            OSError: its connections cannot be seen.
        """
        return worker.is_connected()

    def land(self) -> int:
        """Let it take no further step; return its process, which ends with the last build."""
        return worker.land()

    def halt(self) -> bool:
        """End its process; its builds go on. Return True if it ran."""
        return worker.halt()

    def resume(self, say: collections.abc.Callable[[str], None]) -> None:
        """Let it take steps again; its builds go on."""
        worker.take_up(say)
