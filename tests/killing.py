# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A process that is killed just before one of the changes that it makes."""

import os
import signal

from machine import process

CALLS = "open mkdir chmod chown fchmod rename replace rmdir symlink unlink"


def killed_at(step, work):
    """Does `work` in a child that dies in front of so many changes; whether it came so far."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])

    def deadly(function):
        def call(*args, **named):
            nonlocal step
            step -= 1
            if step == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **named)

        return call

    for name in CALLS.split():
        setattr(os, name, deadly(getattr(os, name)))
    process.run = deadly(process.run)
    work()
    os._exit(0)
