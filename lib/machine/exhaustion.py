# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Recognise errors of a machine that is out of some resource, which any program can cause.

A program that fails for that reason has shown no fault of its own: it gets no verdict, and the
work is tried again.
"""

import errno
import os
import typing

_NUMBERS: typing.Final = frozenset({
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT,
})  # fmt: skip
_WORDS: typing.Final = (
    *(os.strerror(number).lower() for number in _NUMBERS),
    # Go's runtime ends so without a new thread, Python and C++ without memory.
    *("failed to create new os thread", "memoryerror", "can't start new thread", "std::bad_alloc"),
)


def is_told_by(error: str | OSError) -> bool:
    """Return whether an error, or a program's last output, is one of that kind."""
    if isinstance(error, OSError):
        return error.errno in _NUMBERS
    said = error.lower()
    return any(word in said for word in _WORDS)
