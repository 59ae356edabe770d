# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The clocks of this machine, and the boot that one of them counts from."""

import time

from machine import procfs


class Clock:
    """The clocks of this machine."""

    def boot(self) -> str:
        """Return the id of this boot.

        Raises:
            OSError: it cannot be read.
        """
        return procfs.boot_id()

    def since_boot(self) -> float:
        """Return seconds since the boot, time asleep included; nothing sets this clock."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> float:
        """Return seconds since the epoch; an operator or a time service may set this clock."""
        return time.time()
