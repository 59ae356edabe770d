# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Start transient systemd services: programs that outlive the hook that starts them."""

import collections.abc
import typing

from machine import process
from machine import systemd as services

_SYSTEMD_RUN: typing.Final = "/usr/bin/systemd-run"

# systemd answers when the program was started.
_TIMEOUT: typing.Final = 30.0


def start(
    name: str,
    argv: collections.abc.Sequence[str],
    *,
    description: str,
    properties: collections.abc.Mapping[str, str],
) -> None:
    """Start a program as its own service, with systemd's environment.

    If an earlier service of this name failed, its state is reset.

    Args:
        name: the unit's name, with `.service`.
        argv: the program's absolute path and its arguments.
        description: one line that systemd shows for it, and for no other start.
        properties: of systemd.service(5) and systemd.exec(5), such as `RuntimeMaxSec`. Every user
            of the machine can read them: pass a secret through an `EnvironmentFile`.

    Raises:
        machine.process.CommandError: it can't be started, for example because it already runs.
    """
    command = [
        *(_SYSTEMD_RUN, "--quiet", f"--unit={name}", f"--description={description}"),
        # Otherwise a missing program would be noticed only later.
        "--property=Type=exec",
        *(f"--property={key}={value}" for key, value in properties.items()),
        *("--", *argv),
    ]

    def begin() -> None:
        # An earlier call may have come through, and only its answer was lost.
        if services.show(name, "Description")["Description"] != description:
            process.run(command, timeout=_TIMEOUT)

    services.forget_failure(name)
    services.patiently(begin)
