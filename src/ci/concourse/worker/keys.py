# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The worker's key and its rotation: at each moment web accepts the key that the worker uses.

The next key lies beside the current one until each web accepts both. Then it takes the current
one's file name. The old public key stays noted until the worker's process runs with the new key.
So both keys are published as long as either may be used, even if a hook is killed.
"""

import pathlib
import typing

from ci.concourse import rsa_keys as keys
from ci.concourse import service
from machine import files
from relations.worker_view import fingerprint

PRIVATE: typing.Final = service.KEYS / "worker_key"
_NEXT: typing.Final = service.KEYS / "worker_key.next"
_FORMER: typing.Final = service.KEYS / "worker_key.former.pub"
FILES: typing.Final = (PRIVATE, _NEXT, _FORMER)
"""All that there may be."""


def ensure(private_key: str) -> str:
    """Have a key, and return its public half as a line of OpenSSH.

    Args:
        private_key: the operator's, in PEM, in whose place none of ours comes; empty: the one on
            this machine, made if there is none.
    """
    service.ensure_keys_folder()
    if private_key:
        for path in (_NEXT, _FORMER):
            files.ensure_absent(path)
    pem = private_key or files.read_text(PRIVATE) or keys.generate_private_key()
    files.ensure_file(PRIVATE, pem, mode=0o600)
    return keys.public_key_line(pem)


def shown() -> str:
    """The key that web is shown for all that is known; empty before there is one."""
    return (files.read_text(_FORMER) or "").strip() or _public(PRIVATE)


def second() -> str:
    """The other key that web is to take, which is or will be shown; empty where there is none."""
    return _public(_NEXT) or (_public(PRIVATE) if _FORMER.exists() else "")


def every() -> tuple[str, ...]:
    """All keys that this worker may show."""
    return tuple(filter(None, (shown(), second())))


def begin() -> bool:
    """Make the next key. Return False where one already waits for its turn."""
    if second():
        return False
    return files.ensure_file(_NEXT, keys.generate_private_key(), mode=0o600)


def take_turn(taken: tuple[str, ...]) -> bool:
    """Make the next key the worker's if web accepts it. Return True if it now is.

    Args:
        taken: fingerprints of the keys that each web takes.
    """
    pem, shown_now = files.read_text(_NEXT), shown()
    if not pem or fingerprint(keys.public_key_line(pem)) not in taken:
        return False
    files.ensure_file(_FORMER, f"{shown_now}\n", mode=0o600)
    files.move(_NEXT, PRIVATE)
    return True


def is_changing() -> bool:
    """Whether the next key has had its turn, and the process may still show the former."""
    return _FORMER.exists() and not _NEXT.exists()


def settle() -> bool:
    """Forget the former key: the process shows the new one. Return True if there was one."""
    return files.ensure_absent(_FORMER)


def _public(path: pathlib.Path) -> str:
    pem = files.read_text(path)
    return keys.public_key_line(pem) if pem else ""
