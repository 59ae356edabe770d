# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""`python3 -m gpu_agent.reporting.notifier UNIT DISPATCH`: what gpu-ci-devices.service runs."""

import logging
import pathlib
import sys

from gpu_agent.reporting.notifier import device_watch as watch
from machine import inotify


def main(unit: str, dispatch: str) -> None:
    """Wake this unit's charm as long as its dispatch exists."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with inotify.Watch() as changes:
        watch.DeviceWatch(changes).follow(lambda: watch.wake(unit), pathlib.Path(dispatch).exists)


if __name__ == "__main__":
    main(*sys.argv[1:])
