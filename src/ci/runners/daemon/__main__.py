# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""`python3 -m ci.runners.daemon`: what gpu-ci-runners.service runs."""

import logging
import os
import sys
import time
import typing

from ci.runners import daemon_unit, http, services, settings
from ci.runners.daemon.keeper import Keeper, Outside, boottime
from ci.runners.daemon.leases import Leases
from ci.runners.units import Units
from gpu_agent.health.charm_notifier import NoCharm, Waker
from gpu_agent.model.observations import Moment
from gpu_runtime.refusal import Refused
from machine import files, process
from machine import sd_notify as notify
from machine.ending import Ending

# A file that exists while a call of the charm is due.
_UNTOLD: typing.Final = settings.RUN / "untold"
_EVERY: typing.Final = 1.0  # seconds between two turns

_log = logging.getLogger(__name__)


def main() -> int:
    """Keep the runners until systemd asks to end. Return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    found = settings.parse(settings.PATH.read_bytes())
    process.set_proxies(found.proxies)
    service = services.make(found)
    files.ensure_directory(settings.RUN, mode=0o700)
    outside = Outside(service, http.talk, Units(), Leases(), boottime, os.uname().machine)
    # The process before may have written its report after the charm had changed the settings.
    keeper, told, fault = Keeper(found, outside), daemon_unit.report().text, ""
    waker = Waker(found.unit, _UNTOLD) if found.unit else NoCharm()
    notify.ready()
    with Ending(found.dispatch) as ending:
        while not ending.is_due():
            notify.alive()
            try:
                keeper.turn()
                now = ""
            except (OSError, ValueError, Refused, process.CommandError) as error:
                now = f"cannot look at the runners: {error}"
            if now != fault:
                _log.warning("%s", now or "can look at the runners again")
                fault = now
            files.ensure_file(settings.REPORT, keeper.report(), mode=0o600)
            files.ensure_file(settings.FIGURES, keeper.figures(), mode=0o600)
            # Status shows it.
            if keeper.trouble_text() != told:
                told = keeper.trouble_text()
                waker.want()
            waker.turn(Moment(boottime(), time.time(), ()), ())
            time.sleep(_EVERY)
    waker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
