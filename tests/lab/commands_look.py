# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Implement the lab commands that change nothing in the model, and those of Concourse."""

import argparse
import os
import pathlib
import subprocess
import sys
import time

from tests.lab import concourse, download, session, table
from tests.lab.errors import WrongUse
from tests.lab.session import Lab

WATCH_SECONDS = 1.0
# What the charm runs on a machine.
UNITS = ("concourse-*", "gpu-ci-*", "containerd*")


def status(args: argparse.Namespace) -> int:
    """Print the table; repeat it with --watch."""
    while True:
        lab = session.look()
        text = table.table(lab.store)
        lab.controller.close()
        if args.watch:
            sys.stdout.write("\033[H\033[2J")
        print(text, flush=True)
        if not args.watch:
            return 0
        time.sleep(WATCH_SECONDS)


def _machine_command(lab: Lab, unit: str, *argv: str) -> list[str]:
    machine = lab.model.machine(unit)
    if not machine.is_up():
        raise WrongUse(f"{unit}'s machine is down: lab up boots it")
    terminal = {"TERM": os.environ["TERM"]} if "TERM" in os.environ else {}
    return [*machine.enter_command(**terminal), *argv]


def logs(args: argparse.Namespace) -> int:
    """Print the unit's log and its services' journal."""
    lab = session.look()
    journal = _machine_command(
        lab,
        args.unit,
        "/bin/journalctl",
        "--no-pager",
        "--quiet",
        "--output=short-iso",
        *(f"--unit={unit}" for unit in UNITS),
    )
    log = lab.controller.log_path(args.unit)
    log.touch()
    if not args.follow:
        print(log.read_text(), end="", flush=True)
        return subprocess.run(journal, check=False).returncode
    with subprocess.Popen([*journal, "--follow"]) as follower:
        try:
            return subprocess.run(["/usr/bin/tail", "-F", "-n", "+1", str(log)]).returncode
        finally:
            follower.terminate()


def shell(args: argparse.Namespace) -> int:
    """Open a root shell, or run one command, in a unit's machine."""
    lab = session.look()
    argv = _plain(args.command) or ["/bin/bash", "--login"]
    return subprocess.run(_machine_command(lab, args.unit, *argv), check=False).returncode


def _plain(argv: list[str]) -> list[str]:
    return argv[1:] if argv[:1] == ["--"] else argv


def _fly(lab: Lab) -> concourse.Fly:
    fly = concourse.Fly(lab)
    # A session lasts a day; web may have been deployed again since.
    if not fly.program.exists() or fly.run("workers").returncode:
        with session.changing(print):
            fly.login()
    return fly


def task(args: argparse.Namespace) -> int:
    """Run a command as a CI task."""
    command = _plain(args.command)
    if not command:
        raise WrongUse("which command? lab task -- ls -l /dev")
    tags = ["gpu"] if args.tag is None else args.tag
    params = {}
    for item in args.param:
        key, equals, value = item.partition("=")
        if not equals:
            raise WrongUse(f"parameters are written KEY=VALUE, not {item!r}")
        params[key] = value
    fly = _fly(session.look())
    return fly.attached(*fly.task(command, [tag for tag in tags if tag], params))


def fly(args: argparse.Namespace) -> int:
    """Run fly, logged in to the lab's web."""
    return _fly(session.look()).attached(*_plain(args.arguments))


def fetch(args: argparse.Namespace) -> int:
    """Download the Concourse release for the lab."""
    path: pathlib.Path = download.fetch(session.Progress())
    print(path)
    return 0
