# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Transient systemd services: a program that outlives the hook that starts it, once."""

import collections.abc
import typing

from machine import process
from machine import systemd as services

_SYSTEMD_RUN: typing.Final = "/usr/bin/systemd-run"

# systemd answers as soon as the program was started.
_TIMEOUT: typing.Final = 30.0


def start(
    name: str,
    argv: collections.abc.Sequence[str],
    *,
    description: str,
    properties: collections.abc.Mapping[str, str],
) -> None:
    """Start a program as a service of its own, with systemd's environment.

    What an earlier one of this name has left, if it failed, is forgotten.

    Args:
        name: of the unit, with `.service`.
        argv: the program's absolute path and its arguments.
        description: one line that systemd shows of it, and of no other start.
        properties: of systemd.service(5) and systemd.exec(5), such as `RuntimeMaxSec`. Every user
            of the machine can read them: a secret goes through an `EnvironmentFile`.

    Raises:
        machine.process.CommandError: if it can't be started, as where one of this name runs.
    """
    command = [
        *(_SYSTEMD_RUN, "--quiet", f"--unit={name}", f"--description={description}"),
        # Else a program that is not there would be found out only later.
        "--property=Type=exec",
        *(f"--property={key}={value}" for key, value in properties.items()),
        *("--", *argv),
    ]

    def begin() -> None:
        # What was asked for once may have come through, and only the answer not.
        if services.show(name, "Description")["Description"] != description:
            process.run(command, timeout=_TIMEOUT)

    services.forget_failure(name)
    services.patiently(begin)
