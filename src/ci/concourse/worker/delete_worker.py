# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Removes a worker whose process no longer runs from its Concourse's list of workers.

`concourse retire-worker` cannot do that: Concourse requires an address of a retiring worker, and a
landed or stalled one has none (8.3.0 atc/db/migration, addr_when_running), so web answers 500. The
TSA's command `delete-worker` can. Concourse has no program that sends it, except a worker that
ends. A TSA is an SSH server, so this module sends it by ssh.
"""

import collections.abc
import dataclasses
import json
import logging
import pathlib
import time
import typing

from ci.concourse import service
from machine import files, process

_SSH: typing.Final = "/usr/bin/ssh"
# In seconds: for each TSA, and for all of them.
_PATIENCE: typing.Final = 10.0
_ALL: typing.Final = 30.0

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Tsas:
    """The TSAs of a worker's web, and the program that asks them.

    Attributes:
        hosts: HOST:PORT of each.
        host_keys: those that a TSA may show, a line each.
        key: the file of the worker's private key.
        known: the file of host keys that ssh reads; it is there only meanwhile.
        run: runs a program.
        clock: seconds that no change of the machine's clock touches.
    """

    hosts: collections.abc.Collection[str]
    host_keys: collections.abc.Collection[str]
    key: str
    known: pathlib.Path = service.KEYS / "known_hosts"
    run: collections.abc.Callable[..., object] = process.run
    clock: collections.abc.Callable[[], float] = time.monotonic

    def delete(self, worker: collections.abc.Mapping[str, str]) -> bool:
        """Have web forget a worker, whatever state it has there. The first that answers is asked.

        Args:
            worker: its `name`, and its `team` if it has one.

        Returns:
            Whether a TSA took it.
        """
        asked = json.dumps({name: value for name, value in worker.items() if value}) + "\n"
        end = self.clock() + _ALL
        for tsa in self.hosts:
            try:
                self._ask(tsa, "delete-worker", asked, end)
                return True
            except (process.CommandError, OSError) as error:
                _log.warning("%s keeps the worker in its list: %s", tsa, error)
                if isinstance(error, TimeoutError):  # The other TSAs would be asked too late.
                    break
        return False

    def refuse(self) -> bool:
        """Return whether a TSA refuses the worker's key and none takes it.

        Web takes the key of a worker that left its relation no more: then it learns of no end of
        a build there.
        """
        refused, end = False, self.clock() + _ALL
        for tsa in self.hosts:
            try:
                # No command of the TSA's, which says so to whom it lets in.
                self._ask(tsa, "gpu-ci-hello", "", end)
            except process.CommandError as error:
                if "Permission denied" not in error.stderr:
                    return False
                refused = True
            except OSError:
                return False
            else:
                return False
        return refused

    def _ask(self, tsa: str, command: str, stdin: str, end: float) -> None:
        """Give a TSA a command, before this moment of the clock.

        Raises:
            machine.process.CommandError: it refuses, or gives no answer.
            OSError: ssh can't be started, or the moment is over.
        """
        timeout = min(_PATIENCE, end - self.clock())
        if timeout <= 0:
            raise TimeoutError(f"no TSA has answered within {_ALL:g} s")
        host, _, port = tsa.rpartition(":")
        host = host.strip("[]")
        # As ssh looks it up (openssh-9.2p1 misc.c, put_host_port).
        shown = host if port == "22" else f"[{host}]:{port}"
        lines = "".join(f"{shown} {line}\n" for line in self.host_keys)
        try:
            files.ensure_file(self.known, lines, mode=0o600)
            self.run(self._command(host, port, command), timeout=timeout, stdin=stdin)
        finally:
            files.ensure_absent(self.known)

    def _command(self, host: str, port: str, command: str) -> list[str]:
        settings = (
            "BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={self.known}", "GlobalKnownHostsFile=/dev/null",
            f"ConnectTimeout={_PATIENCE / 2:.0f}",
        )  # fmt: skip
        options = [word for setting in settings for word in ("-o", setting)]
        program = [_SSH, "-F", "/dev/null", "-p", port, "-i", self.key]
        return [*program, *options, f"beacon@{host}", command]
