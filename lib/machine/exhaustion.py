# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What says that the machine is out of something, as any program can bring about.

Whoever was refused for that has shown nothing of itself: it is no verdict, and tried again.
"""

import errno
import os
import typing

_NUMBERS: typing.Final = frozenset({
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT,
})  # fmt: skip
_WORDS: typing.Final = (
    *(os.strerror(number).lower() for number in _NUMBERS),
    # As Go's runtime ends where it gets no thread, Python where it gets no memory, and C++.
    *("failed to create new os thread", "memoryerror", "can't start new thread", "std::bad_alloc"),
)


def is_told_by(error: str | OSError) -> bool:
    """Whether an error, or what a program said last, is one of that kind."""
    if isinstance(error, OSError):
        return error.errno in _NUMBERS
    said = error.lower()
    return any(word in said for word in _WORDS)
