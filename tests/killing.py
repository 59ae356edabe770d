# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A process that is killed just before one of the changes that it makes."""

import os
import signal
import traceback

from machine import process

CHANGES = {
    os: "open mkdir chmod chown fchmod rename replace rmdir symlink unlink".split(),
    process: ["run"],
}


def die_before(left, calls):
    """From now on this process dies in front of so many of these calls, names by module."""

    def deadly(function):
        def call(*args, **named):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **named)

        return call

    for module, names in calls.items():
        for name in names:
            setattr(module, name, deadly(getattr(module, name)))


def killed_at(step, work):
    """Does `work` in a child that dies in front of so many changes; whether it came so far."""
    child = os.fork()
    if not child:
        status = 1
        try:
            die_before(step, CHANGES)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)  # The tests to come are the parent's.
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, -signal.SIGKILL)
    return ended != 0
