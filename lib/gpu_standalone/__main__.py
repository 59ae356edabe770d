# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The command gpu-ci-agent: `python3 -m gpu_standalone VERB`."""

import argparse
import collections.abc
import contextlib
import dataclasses
import logging
import os
import pathlib
import sys
import typing

from gpu_agent import install as app
from gpu_agent.availability import operator
from gpu_agent.availability.lease_report import LeaseError
from gpu_agent.gpu.vendors import detect
from gpu_agent.model import errors
from gpu_selftest import report as selftest_report
from gpu_selftest import results
from gpu_selftest import service as selftest_service
from gpu_selftest.check import Level
from gpu_selftest.retests import Retests
from gpu_standalone import installation, report, settings
from gpu_standalone import start as starting
from gpu_standalone.settings import Settings
from gpu_standalone.wording import without_juju
from machine import files, locks, process
from machine.errors import PartError

# Exit statuses. FAILED: also a self-test that failed. WRONG_USE is argparse's own.
FAILED: typing.Final = 1
WRONG_USE: typing.Final = 2

# In seconds. The timer's start takes some seconds, and two minutes with a self-test.
_PATIENCE: typing.Final = 300.0
_MOST_MINUTES: typing.Final = 24 * 60
# How long a self-test by hand is followed, in seconds, beside the minutes of a burn-in: as long as
# its unit may run.
_FOLLOWED: typing.Final = 7200


class UsageError(PartError):
    """The command cannot be used like this here; the text says why and what to do."""


class RemovedError(PartError):
    """The agent was removed while this waited; the text says what to do."""


@dataclasses.dataclass(frozen=True)
class Here:
    """This machine, as the command uses it; the defaults are the real one.

    Attributes:
        user: returns the id of the user.
        systemd: the folder that exists if systemd has booted the machine.
        lock: the folder of the command's lock.
        tree: the folder that this program runs from.
        home: the folder of the installed copies.
        execute: replaces this process by another program.
        agent: what is installed.
        start: hands out the GPUs as the settings say.
        look: closes GPUs in use outside and unusable ones; for settings that cannot be read.
    """

    user: collections.abc.Callable[[], int] = os.geteuid
    systemd: pathlib.Path = pathlib.Path("/run/systemd/system")
    lock: pathlib.Path = pathlib.Path("/run/gpu-ci-agent")
    tree: pathlib.Path = pathlib.Path(__file__).resolve().parents[2]
    home: pathlib.Path = app.HOME
    execute: collections.abc.Callable[[str, list[str]], object] = os.execv
    agent: installation.Installation = installation.Installation()
    start: collections.abc.Callable[[Settings, installation.Say], starting.Started] = (
        starting.start
    )
    look: collections.abc.Callable[[], object] = starting.look


_HERE: typing.Final = Here()


def main(arguments: collections.abc.Sequence[str], here: Here = _HERE) -> int:
    """Carry out one verb. Return the exit status."""
    asked = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="gpu-ci-agent: %(message)s")
    try:
        _check_machine(here)
        with _alone(asked, here) if asked.changes else contextlib.nullcontext():
            if asked.verb == "start" and is_outdated(here.tree, here.home):
                # An installation has ended while this waited. The new process waits for the lock.
                command = str(here.agent.command)
                here.execute(command, [command, "start"])
            return asked.do(asked, here)
    except (PartError, LeaseError, OSError, process.CommandError, errors.UnknownError) as error:
        for line in without_juju(str(error)).splitlines():
            sys.stderr.write(f"gpu-ci-agent: {line}\n")
        return WRONG_USE if isinstance(error, UsageError) else FAILED
    except KeyboardInterrupt:
        sys.stderr.write(f"gpu-ci-agent: stopped. Run gpu-ci-agent {asked.verb} again to finish\n")
        return FAILED


def is_outdated(tree: pathlib.Path, home: pathlib.Path) -> bool:
    """Return whether a tree is an installed copy in this folder, and no longer the current one."""
    return home in tree.parents and tree != (home / app.CURRENT).resolve()


def _check_machine(here: Here) -> None:
    """Check that this user may, and that this machine can.

    Raises:
        UsageError: not so.
    """
    if here.user() != 0:
        raise UsageError("this needs root: use sudo")
    if not here.systemd.is_dir():
        raise UsageError("systemd does not run this machine: use one that systemd has booted")


@contextlib.contextmanager
def _alone(asked: argparse.Namespace, here: Here) -> collections.abc.Generator[None]:
    """Wait until no other call of this command changes the machine.

    Raises:
        RemovedError: that call was a removal.
        machine.locks.BusyError: it takes too long.
    """
    files.ensure_directory(here.lock, mode=0o700)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locks.alone_in(here.lock, _PATIENCE))
        except FileNotFoundError as error:
            raise RemovedError(
                f"gpu-ci-agent remove has ended meanwhile: run {asked.verb} again"
            ) from error
        yield
        if asked.verb == "remove":
            files.ensure_absent(here.lock)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _install(asked: argparse.Namespace, here: Here) -> int:
    changed = here.agent.install(_say)
    _say(f"Installed: {here.agent.command}" if changed else "This version is installed already")
    if here.agent.is_started():
        return _start(asked, here)
    _say(f"Next: edit {settings.PATH}, then sudo gpu-ci-agent start")
    return 0


def _start(_asked: argparse.Namespace, here: Here) -> int:
    owner = here.agent.owner
    owner.check()
    try:
        found = settings.read(here.agent.settings) if owner.is_ours() else None
    except settings.SettingsError:
        here.look()
        raise
    if found is None:
        raise UsageError("the agent is not installed: sudo scripts/agent install, in its tree")
    started = here.start(found, _say)
    for line in (*report.gpus(started.gpus), *(out := report.unavailable(started.gpus))):
        _say(line)
    if found.engines:
        _say(f"Container engines: {', '.join(found.container_engines)}")
    if found.gpu_run_group:
        _say(f"gpu-run: for members of {found.gpu_run_group}")
    if started.report:
        _say(f"Self-test {selftest_report.headline(started.report)}")
        return FAILED if out else 0
    return 0


def _status(_asked: argparse.Namespace, _here: Here) -> int:
    sys.stdout.write(report.status())
    return 0


def _self_test(asked: argparse.Namespace, here: Here) -> int:
    level, minutes = Level(asked.level), asked.duration
    if minutes and level is not Level.BURN_IN:
        raise UsageError(f"--duration {minutes} is for --level burn-in, not for {level.value}")
    if not 0 <= minutes <= _MOST_MINUTES:
        raise UsageError(f"--duration {minutes}: use 1 to {_MOST_MINUTES} minutes")
    if not here.agent.is_started():
        raise UsageError("the agent is not started: sudo gpu-ci-agent start")
    found = starting.run_test(
        level, _say, gpu=asked.gpu, minutes=minutes, seconds=_FOLLOWED + 60 * minutes
    )
    if found is None:
        raise selftest_service.SelftestError(
            f"The self-test still runs: see {selftest_service.LOG}, or stop it: sudo systemctl "
            f"stop {selftest_service.RUN}"
        )
    # A verdict that the health service has asked for is not asked for again, as at the next boot.
    Retests().ensure(_say)
    sys.stdout.write(report.table(found))
    return results.STATUS[found.outcome]


def _uncordon(asked: argparse.Namespace, here: Here) -> int:
    here.agent.owner.check()
    told = operator.uncordon(asked.gpu, asked.reason, detect.in_time())
    for key, value in told.items():
        _say(f"{key}: {without_juju(value)}")
    return 0


def _remove(asked: argparse.Namespace, here: Here) -> int:
    here.agent.remove(_say, leave_running=asked.leave_running)
    _say("Removed")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-ci-agent",
        description="Hand out the GPUs of this machine to podman, Docker and gpu-run, without "
        "Juju.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(
        name: str,
        do: collections.abc.Callable[[argparse.Namespace, Here], int],
        text: str,
        *,
        changes: bool = True,
    ) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(do=do, changes=changes)
        return added

    verb("install", _install, f"put this version on the machine, and {settings.PATH}")
    verb("start", _start, f"hand out the GPUs as {settings.PATH} says, now and at each boot")
    verb("status", _status, "show the GPUs, their holders and the queue", changes=False)
    test = verb("self-test", _self_test, "test the GPUs; a GPU that passes returns", changes=False)
    levels = [level.value for level in Level]
    test.add_argument("--level", choices=levels, default=Level.QUICK.value, help="default: quick")
    test.add_argument("--gpu", default="", help="index or UUID of the only GPU to test")
    test.add_argument(
        "--duration", type=int, default=0, metavar="MINUTES", help="for --level burn-in"
    )
    back = verb("uncordon", _uncordon, "return a quarantined GPU without a test", changes=False)
    back.add_argument("--gpu", required=True, help="index or UUID of the GPU")
    back.add_argument("--reason", required=True, help="for the log, one line")
    away = verb("remove", _remove, "take the agent away, with its settings and records")
    away.add_argument(
        "--leave-running", action="store_true", help="also if GPUs are in use; they stay in use"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
