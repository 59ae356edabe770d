# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runs the charm once a drain may go on, by a service of systemd that outlasts the hook."""

import logging
import time
import typing

from gpu_agent.reporting.notifier import device_watch as watch
from machine import process
from machine import systemd as services
from machine import systemd_transient as transient

SERVICE: typing.Final = "gpu-ci-drain.service"

# The first branch waits for the worker's end or the time's, the second for the time alone. An
# agent that is away for some minutes, as for its own upgrade, is asked again.
_SCRIPT: typing.Final = """
if [ "$1" -gt 0 ]; then /usr/bin/timeout "$2" /usr/bin/tail --pid="$1" -f /dev/null
else /usr/bin/sleep "$2"; fi
shift 2
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  "$@" && exit
  /usr/bin/sleep 15
done
"""

_log = logging.getLogger(__name__)


class Waker:
    """The service that runs the charm later; there is one on a machine."""

    def wake(self, unit: str, pid: int, seconds: float) -> None:
        """Let the charm run when a process has ended, at the latest after so many seconds.

        Args:
            unit: Juju's name of this unit.
            pid: the process; 0: none.
            seconds: 0: however long it takes.
        """
        self.sleep()
        limit = "0" if not seconds else f"{seconds + 1:.0f}"
        argv = ["/bin/sh", "-c", _SCRIPT, "sh", str(pid), limit, *watch.command(unit)]
        description = f"Runs the charm once the worker has no build (asked at {time.time():.3f})"
        try:
            transient.start(
                SERVICE, argv, description=description, properties={"TimeoutStopSec": "5"}
            )
        except process.CommandError as error:
            _log.warning("%s: the drain goes on at Juju's next event", error)

    def sleep(self) -> None:
        """Run the charm no more."""
        services.ensure_stopped(SERVICE)
