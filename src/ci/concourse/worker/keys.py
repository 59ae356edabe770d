# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The worker's key and its rotation: at each moment web accepts the key that the worker uses.

The next key lies beside the current one until each web accepts both. Then it takes the current
one's file name. The old public key stays noted until the worker's process runs with the new key.
So both keys are published as long as either may be used, even if a hook is killed.
"""

import collections.abc
import dataclasses
import pathlib
import typing

from ci.concourse import rsa_keys as keys
from ci.concourse import service
from machine import files
from relations.worker_view import fingerprint


@dataclasses.dataclass(frozen=True)
class WorkerKeys:
    """The keys of the worker on this machine.

    Attributes:
        folder: the folder of their files.
        new_key: makes a private key, in PEM.
    """

    folder: pathlib.Path = service.KEYS
    new_key: collections.abc.Callable[[], str] = keys.generate_private_key

    @property
    def private(self) -> pathlib.Path:
        """The file of the private key that the worker's process reads as it starts."""
        return self.folder / "worker_key"

    @property
    def paths(self) -> tuple[pathlib.Path, ...]:
        """All files that there may be."""
        return self.private, self._next, self._former

    @property
    def _next(self) -> pathlib.Path:
        return self.folder / "worker_key.next"

    @property
    def _former(self) -> pathlib.Path:
        return self.folder / "worker_key.former.pub"

    def ensure(self, private_key: str) -> str:
        """Have a key, and return its public half as a line of OpenSSH.

        Args:
            private_key: the operator's, in PEM, in whose place none of ours comes; empty: the one
                on this machine, made if there is none.
        """
        service.ensure_keys_folder(self.folder)
        if private_key:
            for path in (self._next, self._former):
                files.ensure_absent(path)
        pem = private_key or files.read_text(self.private) or self.new_key()
        files.ensure_file(self.private, pem, mode=0o600)
        return keys.public_key_line(pem)

    def shown(self) -> str:
        """The key that web is shown for all that is known; empty before there is one."""
        return (files.read_text(self._former) or "").strip() or _public(self.private)

    def second(self) -> str:
        """The other key that web is to take, which is or will be shown; empty: there is none."""
        return _public(self._next) or (_public(self.private) if self._former.exists() else "")

    def every(self) -> tuple[str, ...]:
        """All keys that this worker may show."""
        return tuple(filter(None, (self.shown(), self.second())))

    def begin(self) -> bool:
        """Make the next key. Return False where one already waits for its turn."""
        if self.second():
            return False
        return files.ensure_file(self._next, self.new_key(), mode=0o600)

    def take_turn(self, taken: tuple[str, ...]) -> bool:
        """Make the next key the worker's if web accepts it. Return True if it now is.

        Args:
            taken: fingerprints of the keys that each web takes.
        """
        pem, shown_now = files.read_text(self._next), self.shown()
        if not pem or fingerprint(keys.public_key_line(pem)) not in taken:
            return False
        files.ensure_file(self._former, f"{shown_now}\n", mode=0o600)
        files.move(self._next, self.private)
        return True

    def is_changing(self) -> bool:
        """Whether the next key has had its turn, and the process may still show the former."""
        return self._former.exists() and not self._next.exists()

    def settle(self) -> bool:
        """Forget the former key: the process shows the new one. Return True if there was one."""
        return files.ensure_absent(self._former)


PRIVATE: typing.Final = WorkerKeys().private
FILES: typing.Final = WorkerKeys().paths


def _public(path: pathlib.Path) -> str:
    pem = files.read_text(path)
    return keys.public_key_line(pem) if pem else ""
