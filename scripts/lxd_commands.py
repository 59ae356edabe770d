# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What lxd-gpu and deploy-lxd have in common: ask a program, ask the operator, end in words."""

import collections.abc
import shlex
import subprocess
import sys

# Until juju or lxc has answered; to give a running container a device may take LXD a while.
SECONDS = 120


class Refused(Exception):
    """What was asked for can't be done; the text says why, and what to do."""


def ask(*command: str) -> str:
    """What a command prints.

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
        raise Refused(f"{command[0]} is not installed here: run this on the LXD host") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"{shlex.join(command)}: no answer in {SECONDS} s") from None
    if done.returncode:
        raise Refused(f"{shlex.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def confirm(*, yes: bool) -> None:
    """Ask the operator whether it is to be done, unless `yes` says so.

    Raises:
        Refused: it is not, or nobody is here to ask.
    """
    try:
        if yes or input("Do it? [y/N] ").strip().lower() in ("y", "yes"):
            return
    except EOFError:
        raise Refused("nothing was changed: nobody here to ask, so say --yes") from None
    raise Refused("nothing was changed")


def printable(text: str) -> str:
    """A text of somebody else's without what would change the operator's terminal."""
    lines = (
        "".join(one if one.isprintable() else "?" for one in line) for line in text.split("\n")
    )
    return "\n".join(lines)


def ended(program: str, work: collections.abc.Callable[[], None]) -> int:
    """Do the work; answers the exit status, after the reason where it is not 0."""
    try:
        work()
    except Refused as error:
        print(f"{program}: {printable(str(error))}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"\n{program}: interrupted: run this again to go on", file=sys.stderr)
    else:
        return 0
    return 1
