# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runs a program: a list, an absolute path, a time limit, a clean environment."""

import collections.abc
import dataclasses
import logging
import os
import pathlib
import shlex
import signal
import subprocess
import typing

_PATH: typing.Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Completed:
    """A program that has ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


class CommandError(Exception):
    """A program failed. The text is one line: the command, and the last that it said.

    Attributes:
        returncode: its exit status, negative for a signal; None if it ran out of time.
    """

    def __init__(
        self, argv: collections.abc.Sequence[str], returncode: int | None, stderr: str
    ) -> None:
        said = [line.strip() for line in stderr.splitlines() if line.strip()]
        how = "ran out of time" if returncode is None else f"failed with {returncode}"
        super().__init__(
            f"{shlex.join(argv)} {how}" + (f": {' / '.join(said[-3:])}" if said else "")
        )
        self.returncode = returncode
        self.stderr = stderr


def proxies() -> dict[str, str]:
    """The Juju model's proxies by the names that programs know, such as `http_proxy`."""
    names = {
        "http_proxy": "JUJU_CHARM_HTTP_PROXY",
        "https_proxy": "JUJU_CHARM_HTTPS_PROXY",
        "no_proxy": "JUJU_CHARM_NO_PROXY",
    }
    return {name: os.environ[juju] for name, juju in names.items() if os.environ.get(juju)}


def run(
    argv: collections.abc.Sequence[str],
    *,
    timeout: float,
    stdin: str | None = None,
    env: collections.abc.Mapping[str, str] | None = None,
    check: bool = True,
) -> Completed:
    """Run a program to its end.

    Nothing of the charm's own environment reaches it but the proxies: PYTHONPATH or
    LD_LIBRARY_PATH would break the machine's programs.

    Args:
        argv: the program's absolute path and its arguments. They are logged and seen by every
            user of the machine, so a secret goes through stdin or a file.
        timeout: in seconds; then the program and its children are killed.
        stdin: what it is given to read; else /dev/null.
        env: variables to add.
        check: whether an exit status other than 0 is an error.

    Raises:
        CommandError: if it failed, ran out of time, or can't be started.
    """
    if not pathlib.PurePath(argv[0]).is_absolute():
        raise ValueError(f"{argv[0]} is no absolute path")
    _log.debug("run %s", shlex.join(argv))
    child = _start(argv, subprocess.DEVNULL if stdin is None else subprocess.PIPE, env or {})
    stdout, stderr = _outcome(argv, child, stdin, timeout)
    if check and child.returncode:
        raise CommandError(argv, child.returncode, stderr or stdout)
    return Completed(child.returncode, stdout, stderr)


def _start(
    argv: collections.abc.Sequence[str], stdin: int, env: collections.abc.Mapping[str, str]
) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": _PATH, "LANG": "C.UTF-8", "HOME": "/root", **proxies(), **env},
            cwd="/",
            start_new_session=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise CommandError(argv, 127, f"can't be started: {error.strerror}") from error


def _outcome(
    argv: collections.abc.Sequence[str],
    child: subprocess.Popen[str],
    stdin: str | None,
    timeout: float,
) -> tuple[str, str]:
    try:
        return child.communicate(stdin, timeout)
    except BaseException as error:
        # Its children too, which would hold the pipes open.
        os.killpg(child.pid, signal.SIGKILL)
        _, stderr = child.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise CommandError(argv, None, f"{stderr}\nno end within {timeout:g} s") from error
        raise
