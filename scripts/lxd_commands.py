# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run programs and ask the operator, for lxd-gpu and deploy-lxd."""

import collections.abc
import shlex
import subprocess
import sys

# The time limit for juju or lxc; LXD may take a while to give a running container a device.
SECONDS = 120


class Refused(Exception):
    """The request can't be fulfilled; the text says why, and what to do."""


class Host:
    """The programs of the LXD host, and the operator at its terminal."""

    def ask(self, *command: str) -> str:
        """Return a command's output.

        Raises:
            Refused: it is not installed, fails or gives no answer.
        """
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise Refused(
                f"{command[0]} is not installed here: run this on the LXD host"
            ) from None
        except subprocess.TimeoutExpired:
            raise Refused(f"{shlex.join(command)}: no answer in {SECONDS} s") from None
        if done.returncode:
            raise Refused(f"{shlex.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def read(self, prompt: str) -> str:
        """Return the operator's answer.

        Raises:
            EOFError: the operator has no terminal.
        """
        return input(prompt)


def confirm(host: Host, *, yes: bool) -> None:
    """Ask the operator for confirmation, unless `yes` is set.

    Raises:
        Refused: the operator declines, or there is no terminal.
    """
    try:
        if yes or host.read("Do it? [y/N] ").strip().lower() in ("y", "yes"):
            return
    except EOFError:
        raise Refused("nothing was changed: no terminal to ask on, so use --yes") from None
    raise Refused("nothing was changed")


def printable(text: str) -> str:
    """Return a foreign text without characters that would change the operator's terminal."""
    lines = (
        "".join(one if one.isprintable() else "?" for one in line) for line in text.split("\n")
    )
    return "\n".join(lines)


def ended(program: str, work: collections.abc.Callable[[], None]) -> int:
    """Do the work and return the exit status; print the reason if it is not 0."""
    try:
        work()
    except Refused as error:
        print(f"{program}: {printable(str(error))}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"\n{program}: interrupted: run this again to continue", file=sys.stderr)
    else:
        return 0
    return 1
